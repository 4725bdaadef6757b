"""Queries that do their worst to the sql tool, by what has to become of them, for tests and
benchmarks/sql.py."""

COUNT = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) "
CHAIN = ", ".join(
    f"a{n}(x) AS MATERIALIZED (SELECT 1 FROM a{n - 1}, a{n - 1} b)" for n in range(1, 25)
)

REFUSED = {
    "delete": "DELETE FROM orders",
    "update": "UPDATE orders SET status = 'x'",
    "insert": "INSERT INTO orders VALUES (1, 1, '2025-01-01', 'x')",
    "replace": "REPLACE INTO orders SELECT * FROM orders",
    "returning": "DELETE FROM orders RETURNING id",
    "with and delete": "WITH t AS (SELECT 1) DELETE FROM orders WHERE id IN t",
    "drop": "DROP TABLE orders",
    "alter": "ALTER TABLE orders ADD COLUMN x",
    "create": "CREATE TABLE x(a)",
    "create temporary": "CREATE TEMP TABLE x AS SELECT * FROM orders",
    "create a trigger": "CREATE TRIGGER x AFTER INSERT ON orders BEGIN SELECT 1; END",
    "create a view": "CREATE VIEW x AS SELECT 1",
    "create a virtual table": "CREATE VIRTUAL TABLE x USING fts5(a)",
    "attach": "ATTACH '/etc/passwd' AS x",
    "attach memory": "ATTACH ':memory:' AS x",
    "detach": "DETACH main",
    "vacuum": "VACUUM",
    "vacuum into": "VACUUM INTO 'stolen.db'",
    "reindex": "REINDEX",
    "analyze": "ANALYZE",
    "begin": "BEGIN EXCLUSIVE",
    "commit": "COMMIT",
    "savepoint": "SAVEPOINT x",
    "pragma": "PRAGMA query_only = 0",
    "pragma writable_schema": "PRAGMA writable_schema = 1",
    "pragma journal_mode": "PRAGMA journal_mode = WAL",
    "pragma by a function": "SELECT * FROM pragma_table_info('orders')",
    "pragma by a function, counted": "SELECT count(*) FROM pragma_journal_mode",
    "statistics of the file": "SELECT * FROM dbstat",
    "pages of the file": "SELECT * FROM sqlite_dbpage",
    "load_extension": "SELECT load_extension('libc.so.6')",
    "readfile": "SELECT readfile('/etc/passwd')",
    "writefile": "SELECT writefile('stolen', 'x')",
    "a tokenizer's address": "SELECT fts3_tokenizer('simple')",
    "random": "SELECT random()",
    "order by random": "SELECT id FROM orders ORDER BY random()",
    "randomblob": "SELECT randomblob(1000000000)",
    "zeroblob": "SELECT hex(zeroblob(100000000))",
    "printf": "SELECT printf('%.*c', 100000000, 'x')",
    "format": "SELECT format('%.*c', 100000000, 'x')",
    "the clock": "SELECT current_date",
    "the clock's time": "SELECT current_timestamp",
    "the time zone": "SELECT datetime('2025-01-01', 'LocalTime')",
    "now as a blob": "SELECT date(x'6e6f77')",
    "two statements": "SELECT 1; DELETE FROM orders",
    "a comment between two": "SELECT 1 /* ; */ ; -- x\nDROP TABLE orders",
    "a comment that is not closed": "/* SELECT 1",
    "comments only": "-- SELECT 1\n/* SELECT 2 */",
    "nothing": "",
    "a null character": "SELECT 1\0; DELETE FROM orders",
    "half of a pair": "SELECT '\ud800'",
    "another script's letters": "SЕLECT * FROM оrders",
    "a name in another script": 'SELECT "stаtus2" FROM orders, öрders',
    "full-width": "ＳＥＬＥＣＴ 1",
    "long": f"SELECT {'1+' * 4000}1",
    "deep": f"SELECT {'(' * 500}1{')' * 500}",
    "many unions": " UNION ALL ".join(["SELECT 1"] * 40),
    "many columns": f"SELECT {', '.join(['*'] * 1900)} FROM orders",
    "many tables": "SELECT 1 FROM " + ", ".join(f"orders o{n}" for n in range(70)),
    "a doubling text": "WITH RECURSIVE t(x) AS (SELECT 'abcdefgh' UNION ALL SELECT x || x FROM t) "
    "SELECT max(x) FROM t",
    "longer texts in texts": COUNT
    + f"SELECT max(instr(hex({'hex(' * 5}'{'a' * 100}'{')' * 5}), n || 'zz')) FROM t",
    "a longer pattern": COUNT
    + f"SELECT max(hex(hex(hex('{'a' * 1000}'))) || n LIKE '%{'_a' * 45}b') FROM t",
    "hex of hex": "SELECT hex(hex(hex(hex(hex(hex(hex(hex(hex(hex(hex(hex('abcdefgh'))))))))))))",
    "a long pattern": f"SELECT 'x' LIKE '{'%_' * 200}'",
    "tables in WITH that double": f"WITH a0(x) AS (SELECT 1), {CHAIN} SELECT count(*) FROM a24",
    "the same in other letters": f"WITH [A0](x) AS (SELECT 1), {CHAIN.upper()} SELECT count(*) "
    "FROM `a24`",
    "the same, one in the other": "WITH a AS (" * 20
    + "SELECT 1"
    + ") SELECT 1 FROM a, a b, a c" * 20,
    "a parameter too many": "SELECT 1\n[1]",
    "a parameter that is a list": "SELECT ?\n[[1]]",
    "a parameter that is too large": f"SELECT ?\n[{10**30}]",
    "brackets without end": f"SELECT 1\n{'[' * 3000}",
}
"""Ended before they read anything, or by a limit on their size."""
STOPPED = {
    "a text of texts": COUNT + "SELECT group_concat(n) FROM t",
    "endless recursion": COUNT + "SELECT count(*) FROM t",
    "endless recursion without a row": COUNT + "SELECT n FROM t WHERE n < 0",
    "endless, ordered": COUNT + "SELECT n FROM t ORDER BY -n",
    "endless, distinct": COUNT + "SELECT DISTINCT n % 7 FROM t LIMIT 8",
    "endless dates": COUNT + "SELECT max(date(n, 'unixepoch')) FROM t",
    "cross join": "SELECT count(*) FROM orders a, orders b, orders c, orders d",
    "cross join, ordered": "SELECT a.id FROM orders a, orders b, orders c ORDER BY a.id + b.id * "
    "c.id",
    "a subquery per row": (
        "SELECT count(*) FROM orders a WHERE (SELECT count(*) FROM orders b, orders c WHERE b.id + "
        "c.id = a.id) < 0"
    ),
    "windows": COUNT
    + "SELECT sum(n) OVER (ORDER BY n ROWS BETWEEN 1000 PRECEDING AND CURRENT ROW) FROM t",
    "texts in texts": COUNT
    + f"SELECT max(instr(hex({'hex(' * 3}'{'a' * 100}'{')' * 3}), n || 'zz')) FROM t",
    "replaced": COUNT + f"SELECT max(replace('{'a' * 1800}' || n, 'a', 'b')) FROM t",
    "patterns": COUNT + f"SELECT max(hex('{'a' * 900}') || n LIKE '%{'_a' * 20}b') FROM t",
}
"""Ended by the limit on steps."""
SLOW_STEPS = {
    "a long text in another": COUNT
    + f"SELECT max(instr('{'a' * 1800}' || n, '{'a' * 900}b')) AS place FROM t",
    "distinct texts": COUNT + f"SELECT count(DISTINCT '{'a' * 1800}' || n) FROM t",
    "matching patterns": COUNT + f"SELECT max('{'a' * 1800}' || n LIKE '%{'_a' * 20}b') FROM t",
    "matching sets": COUNT + f"SELECT max('{'a' * 1800}' || n GLOB '*{'[a-z]' * 8}B') FROM t",
}
"""Ended by the limit on steps, or by that on CPU time."""
