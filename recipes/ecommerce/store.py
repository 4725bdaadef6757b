"""A store that is generated: a year of orders in SQLite, and what only its generator knows, by
seed.

    Market(seed)      categories with seasons and elasticities, products with demand and returns,
                      campaigns, planted causes
    write(market, f)  its year, drawn order by order, as a database; the same dump byte for byte
    database(seed)    the file, from a cache

What sells on a day: base x season x weekday x (price / list price)^-elasticity, and nothing of what
is out of stock. Money is in cents.
"""

import functools
import math
import os
import random
import sqlite3
import tempfile
import zlib
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import accumulate
from pathlib import Path

CATEGORIES = ("tea", "cups", "pots", "lamps", "chairs", "desks", "toys", "bikes")
CITIES = ("Bonn", "Kyiv", "Oslo", "Rome")
REASONS = ("broken", "late", "wrong")
CAUSES = ("stock", "price", "campaign")
"""Why a category's sales fall in a month: best sellers out of stock, higher prices, or a campaign
that has just ended."""
FIRST, DAYS = date(2025, 1, 1), 365
TODAY = FIRST + timedelta(DAYS - 1)
PRODUCTS, CUSTOMERS, ORDERS, FIRST_ORDER = 64, 400, 4000, 4000
WEEKDAYS = (1.0, 0.9, 0.9, 1.0, 1.2, 1.5, 0.6)
HOLDING = 0.3
"""What it costs to keep a unit that is not sold, as a share of its cost."""
SCHEMA = """
CREATE TABLE categories(id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE products(id INTEGER PRIMARY KEY, name TEXT, category INTEGER REFERENCES categories, cost INTEGER, price INTEGER,
  stock INTEGER, reorder_at INTEGER, lead_days INTEGER);
CREATE TABLE customers(id INTEGER PRIMARY KEY, name TEXT, city TEXT);
CREATE TABLE orders(id INTEGER PRIMARY KEY, customer INTEGER REFERENCES customers, day TEXT, status TEXT);
CREATE TABLE order_lines(order_id INTEGER REFERENCES orders, product INTEGER REFERENCES products, quantity INTEGER, price INTEGER);
CREATE TABLE refunds(id INTEGER PRIMARY KEY, order_id INTEGER REFERENCES orders, product INTEGER REFERENCES products, day TEXT,
  reason TEXT, amount INTEGER, state TEXT);
CREATE TABLE campaigns(id INTEGER PRIMARY KEY, category INTEGER REFERENCES categories, starts TEXT, ends TEXT, discount INTEGER);
CREATE TABLE price_changes(product INTEGER REFERENCES products, starts TEXT, ends TEXT, percent INTEGER);
CREATE TABLE stockouts(product INTEGER REFERENCES products, starts TEXT, ends TEXT);
CREATE INDEX orders_by_day ON orders(day);
CREATE INDEX lines_by_order ON order_lines(order_id);
CREATE INDEX lines_by_product ON order_lines(product);
CREATE INDEX refunds_by_order ON refunds(order_id);
"""  # noqa: E501 (the text of tables as it is in the database, which agents see)
SALES = """
CREATE TABLE sales AS
  SELECT o.id AS order_id, o.day, CAST(substr(o.day, 6, 2) AS INTEGER) AS month, o.customer, c.name AS category,
    p.id AS product_id, p.name AS product, l.quantity AS units, l.quantity * l.price AS revenue,
    l.quantity * (l.price - p.cost) AS profit
  FROM order_lines l JOIN orders o ON o.id = l.order_id JOIN products p ON p.id = l.product
    JOIN categories c ON c.id = p.category WHERE o.status <> 'cancelled' ORDER BY l.rowid;
CREATE INDEX sales_by_category ON sales(category, month);
CREATE INDEX sales_by_product ON sales(product);
CREATE INDEX sales_by_order ON sales(order_id);
"""  # noqa: E501
"""What was sold, order line by order line, without cancelled orders: the table that most questions
are about."""


@dataclass(frozen=True)
class Product:
    """One product; `base` is its part in the demand, `returned` how likely a line of it comes back,
    mostly for `reason`."""

    id: int
    name: str
    category: str
    cost: int
    price: int
    stock: int
    reorder_at: int
    lead_days: int
    base: float
    returned: float
    reason: str


class Market:
    """What the generator knows of a store."""

    def __init__(self, seed: int):
        self.seed = seed
        draw = random.Random(f"market {seed}")
        self.elasticity = {name: round(draw.uniform(1.5, 4.0), 2) for name in CATEGORIES}
        self.peak = {name: draw.randrange(DAYS) for name in CATEGORIES}
        self.products = [self._product(draw, number) for number in range(PRODUCTS)]
        by_elasticity = sorted(CATEGORIES, key=lambda name: -self.elasticity[name])
        fallen = {
            "price": by_elasticity[0],
            "campaign": by_elasticity[1],
            "stock": draw.choice(by_elasticity[2:]),
        }
        self.causes = {
            (fallen[cause], month): cause
            for cause, month in zip(CAUSES, draw.sample(range(3, 12), 3), strict=True)
        }
        """(category, month) to why its sales fell in it."""
        self.campaigns: list[tuple[str, date, date, int]] = []
        for name in CATEGORIES:
            if name not in fallen.values():
                first = date(2025, draw.randint(2, 11), 8)
                self.campaigns.append(
                    (name, first, first + timedelta(13), draw.choice((10, 20, 30)))
                )
        self.rises, self.outages = [], []
        for (name, month), cause in self.causes.items():
            starts, ends = date(2025, month, 1), date(2025, month + 1, 1) - timedelta(1)
            own = sorted((p for p in self.products if p.category == name), key=lambda p: -p.base)
            if cause == "campaign":
                self.campaigns.append((name, date(2025, month - 1, 1), starts - timedelta(1), 30))
            elif cause == "price":
                self.rises += [(p.id, starts, ends, 30) for p in own]
            else:
                self.outages += [(p.id, starts, ends) for p in own[:4]]
        self.shares = {
            p.id: [
                (a, b, 1 - off / 100) for name, a, b, off in self.campaigns if name == p.category
            ]
            for p in self.products
        }
        """Of a product: first and last day, and its price in between as a share of the list
        price."""
        for product, starts, ends, percent in self.rises:
            self.shares[product].append((starts, ends, 1 + percent / 100))
        self.out = {product: (starts, ends) for product, starts, ends in self.outages}

    def _product(self, draw: random.Random, number: int) -> Product:
        category = CATEGORIES[number % len(CATEGORIES)]
        cost = draw.randint(300, 9000)
        dead = number // len(CATEGORIES) == 6  # one product of each category is hardly ever sold
        bad = number // len(CATEGORIES) == 2  # and one comes back
        base = 0.0 if dead else round(draw.uniform(0.5, 2.0), 3)
        return Product(
            100 + number, f"{category}-{100 + number}", category, cost,
            round(cost * draw.uniform(1.25, 2.2)),
            draw.randint(60, 200) if dead else draw.randint(0, 30), draw.randint(5, 15),
            draw.randint(10, 60),
            base, 0.3 if bad else round(draw.uniform(0.01, 0.06), 3), draw.choice(REASONS),
        )  # fmt: skip

    def season(self, category: str, day: date) -> float:
        return 1 + 0.5 * math.cos(2 * math.pi * ((day - FIRST).days - self.peak[category]) / DAYS)

    def price(self, product: Product, day: date) -> float:
        """Its price on a day, as a share of the list price."""
        return math.prod(
            share for starts, ends, share in self.shares[product.id] if starts <= day <= ends
        )

    def demand(self, product: Product, day: date) -> float:
        """How much is wanted of a product on a day, where the average product has 1 on the average
        day."""
        starts, ends = self.out.get(product.id, (day, None))
        if ends is not None and starts <= day <= ends:
            return 0.0
        usual = product.base * self.season(product.category, day) * WEEKDAYS[day.weekday()]
        return round(usual * self.price(product, day) ** -self.elasticity[product.category], 6)

    def units_a_day(self, product: Product, price: float = 1.0) -> float:
        """Units that are sold on an average day at a share of the list price, without campaigns."""
        per_day = (
            ORDERS * 0.95 * 1.6 * 1.75 / DAYS
        )  # orders that are not cancelled, lines of an order, units of a line
        total = sum(p.base for p in self.products)
        return per_day * product.base / total * price ** -self.elasticity[product.category]

    def profit(self, category: str, percent: int) -> float:
        """Cents of profit on an average day of a category whose prices are changed by some
        percent."""
        share = 1 + percent / 100
        own = [p for p in self.products if p.category == category]
        return sum(self.units_a_day(p, share) * (p.price * share - p.cost) for p in own)

    def reorder(self, product: Product, units: float) -> float:
        """Cents that an order of so many units brings by the time after the next delivery: its
        profit, less what is left over."""
        wanted = self.units_a_day(product) * 2 * product.lead_days
        sold = max(0.0, min(units, wanted - product.stock))
        return (
            sold * (product.price - product.cost) - max(0.0, units - sold) * HOLDING * product.cost
        )


def write(market: Market, path: Path) -> None:
    """Draw the year of a store and write it down."""
    draw = random.Random(f"year {market.seed}")
    days = [FIRST + timedelta(n) for n in range(DAYS)]
    wanted = [list(accumulate(market.demand(p, day) for p in market.products)) for day in days]
    orders, lines, refunds = [], [], []
    for number, day in enumerate(
        sorted(draw.choices(days, [total[-1] for total in wanted], k=ORDERS))
    ):
        order, recent = FIRST_ORDER + number, (TODAY - day).days < 8
        weights = (0, 5, 4, 1) if recent else (93, 1, 1, 5)
        (status,) = draw.choices(("delivered", "shipped", "paid", "cancelled"), weights)
        orders.append((order, draw.randint(1, CUSTOMERS), str(day), status))
        chosen = draw.choices(
            market.products, cum_weights=wanted[(day - FIRST).days], k=draw.choice((1, 1, 1, 2, 3))
        )
        for product in dict.fromkeys(chosen):
            quantity, paid = (
                draw.choice((1, 1, 2, 3)),
                round(product.price * market.price(product, day)),
            )
            lines.append((order, product.id, quantity, paid))
            if draw.random() < product.returned and status == "delivered":
                reason = product.reason if draw.random() < 0.7 else draw.choice(REASONS)
                back = min(TODAY, day + timedelta(draw.randint(2, 12)))
                state = draw.choice(("paid", "paid", "open", "refused"))
                refunds.append(
                    (len(refunds) + 1, order, product.id, str(back), reason, quantity * paid, state)
                )
    connection = sqlite3.connect(path)
    with connection as db:
        db.executescript(SCHEMA)
        number = {name: n for n, name in enumerate(CATEGORIES, 1)}
        fill = {
            "categories": [(n, name) for name, n in number.items()],
            "products": [
                (
                    p.id,
                    p.name,
                    number[p.category],
                    p.cost,
                    p.price,
                    p.stock,
                    p.reorder_at,
                    p.lead_days,
                )
                for p in market.products
            ],
            "customers": [
                (n, f"customer {n}", draw.choice(CITIES)) for n in range(1, CUSTOMERS + 1)
            ],
            "orders": orders,
            "order_lines": lines,
            "refunds": refunds,
            "campaigns": [
                (n, number[name], str(a), str(b), percent)
                for n, (name, a, b, percent) in enumerate(market.campaigns, 1)
            ],
            "price_changes": [(p, str(a), str(b), percent) for p, a, b, percent in market.rises],
            "stockouts": [(p, str(a), str(b)) for p, a, b in market.outages],
        }
        for table, rows in fill.items():
            db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    connection.executescript(SALES)
    connection.close()


@functools.cache
def market_of(seed: int) -> Market:
    return Market(seed)


def database(seed: int) -> Path:
    """The file with a store's year; written where it is not there yet."""
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        / "openrlhf-marl"
        / "ecommerce"
    )
    path = cache / f"{zlib.crc32(Path(__file__).read_bytes()):08x}-{seed}.db"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".new-") as fresh:
            write(market_of(seed), Path(fresh) / path.name)
            (Path(fresh) / path.name).replace(path)
    return path
