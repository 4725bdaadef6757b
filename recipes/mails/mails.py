"""Customers' mails, generated: an order, an item, and a matter in one of several wordings.

Train and eval never share an order and an item: which split a pair belongs to is a function of the
two alone.
"""

import random
import zlib

from marl_plugins import Task

ITEMS = ("lamp", "desk", "kettle", "radio", "chair", "clock", "heater", "mirror")
TEAMS = {"broken": "repair", "late": "delivery", "price": "billing"}
"""Which team a matter belongs to."""
WORDINGS = {
    "broken": (
        "The {item} of order {order} does not work any more.",
        "Order {order}: the {item} came with a crack in it.",
        "My {item} stopped after two days. The order is {order}.",
    ),
    "late": (
        "The {item} of order {order} has not come yet.",
        "Order {order}: where is my {item}?",
        "I am still waiting for a {item}. The order is {order}.",
    ),
    "price": (
        "I paid twice for the {item} of order {order}.",
        "Order {order}: you charged too much for the {item}.",
        "The bill for my {item} is wrong. The order is {order}.",
    ),
}
HELD_OUT = 5
"""One pair of an order and an item in this many is for evaluation."""


def generate(split, count, seed=0):
    """`count` mails of `train` or `eval`; the first n are the same whatever the count."""
    draw, tasks = random.Random(f"{split}-{seed}"), []
    while len(tasks) < count:
        item, order = draw.choice(ITEMS), str(draw.randrange(1000, 10000))
        if (zlib.crc32(f"{item} {order}".encode()) % HELD_OUT == 0) != (split == "eval"):
            continue
        matter = draw.choice(list(TEAMS))
        text = draw.choice(WORDINGS[matter]).format(item=item, order=order)
        label = {"order": order, "item": item, "matter": matter, "team": TEAMS[matter]}
        tasks.append(Task(f"{len(tasks)}:{order}", text, label, {"type": matter}))
    return tasks


def load(split):
    """800 mails to train on, 96 that are held out."""
    return generate(split, 800 if split == "train" else 96)
