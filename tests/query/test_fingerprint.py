"""The fingerprint changes with DDL that matters, and with no other."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest

from pgtrickle.query.analyse.analysis import Dependencies
from pgtrickle.query.analyse.analyze import analyze
from pgtrickle.query.analyse.fingerprint import fingerprint, same_names, still_holds

Shop = psycopg.Connection[Any]

KINDS = """
CREATE DOMAIN deeper AS price;
CREATE TYPE pair AS (a int, b mood);
CREATE TYPE span AS RANGE (SUBTYPE = int);
CREATE COLLATION loose (LC_COLLATE = 'C', LC_CTYPE = 'C');
CREATE FUNCTION inner_one(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + 1';
CREATE FUNCTION outer_one(int) RETURNS int LANGUAGE sql IMMUTABLE RETURN inner_one($1);
CREATE FUNCTION near(int, int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT abs($1 - $2) < 2';
CREATE OPERATOR ~= (FUNCTION = near, LEFTARG = int, RIGHTARG = int);
CREATE FUNCTION add_up(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT coalesce($1, 0) + $2';
CREATE AGGREGATE total (int) (SFUNC = add_up, STYPE = int);
CREATE TEXT SEARCH DICTIONARY words (TEMPLATE = simple);
CREATE TEXT SEARCH CONFIGURATION searching (PARSER = default);
ALTER TEXT SEARCH CONFIGURATION searching ADD MAPPING FOR asciiword WITH words;
CREATE FUNCTION as_int(pair) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT ($1).a';
CREATE CAST (pair AS int) WITH FUNCTION as_int(pair);
CREATE TABLE kinds (id int, m mood[], d deeper, p pair, s span, t text COLLATE loose, made int, doc text);
CREATE VIEW seen WITH (security_barrier) AS SELECT id FROM kinds;
"""
OF_KINDS = """
SELECT k.m, k.d, k.p::int AS p, k.s, k.t, outer_one(k.id) AS o, to_tsvector('searching', k.doc) AS v, v.id ~= 1 AS near,
       (SELECT total(x.id) FROM kinds x) AS total FROM kinds k JOIN seen v ON v.id = k.id
"""


CHANGES_OF_KINDS = (
    "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
    "ALTER TYPE mood ADD VALUE 'angry' BEFORE 'sad'",
    "ALTER DOMAIN price ADD CHECK (VALUE < 1000)",
    "ALTER DOMAIN deeper SET NOT NULL",
    "ALTER TYPE pair ADD ATTRIBUTE c int",
    "UPDATE pg_collation SET collversion = '1' WHERE collname = 'loose'",
    "CREATE OR REPLACE FUNCTION inner_one(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + 2'",
    "CREATE FUNCTION outer_one(bigint) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'",
    "CREATE OR REPLACE FUNCTION near(int, int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT $1 = $2'",
    "CREATE OR REPLACE FUNCTION add_up(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $2'",
    "ALTER TEXT SEARCH CONFIGURATION searching ALTER MAPPING FOR asciiword WITH simple",
    "ALTER TEXT SEARCH DICTIONARY words (STOPWORDS = english)",
    "CREATE OR REPLACE FUNCTION as_int(pair) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT -($1).a'",
    "CREATE CAST (pair AS text) WITH INOUT AS ASSIGNMENT",
    "CREATE OR REPLACE VIEW seen WITH (security_barrier) AS SELECT id FROM kinds WHERE id > 1",
    "ALTER VIEW seen RESET (security_barrier)",
)


# A name in the query may mean something else now: PostgreSQL is asked again.
OTHER_NAMES = [change for change in CHANGES_OF_KINDS if change.startswith(("CREATE FUNCTION", "CREATE CAST"))]


def test_every_kind_of_object_counts(shop: Shop) -> None:
    shop.execute(KINDS.encode())
    dependencies = analyze(shop, OF_KINDS).dependencies
    before = fingerprint(shop, dependencies)
    assert fingerprint(shop, analyze(shop, OF_KINDS).dependencies) == before, "analysed twice, the same"
    for change in CHANGES_OF_KINDS:
        with shop.transaction(force_rollback=True):
            shop.execute(change.encode())
            now = fingerprint(shop, dependencies)
            assert still_holds(before, now) == (change in OTHER_NAMES), change
            assert same_names(before, now) == (change not in OTHER_NAMES), change
    assert fingerprint(shop, dependencies) == before


QUERY = """
SELECT n.who, plus_one(o.id) AS next, product(i.amount) AS p, c.credit
FROM north n JOIN orders o ON o.customer = n.id JOIN items i ON i.order_id = o.id JOIN customers c ON c.id = n.id
GROUP BY n.who, o.id, c.id
"""


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE items RENAME COLUMN amount TO quantity",
        "ALTER TABLE items RENAME TO lines",
        "ALTER TABLE customers ALTER COLUMN name TYPE varchar(20)",
        "ALTER TABLE customers ALTER COLUMN credit TYPE numeric(12, 3)",
        "ALTER TABLE customers ALTER COLUMN id TYPE int USING id * 10",
        "ALTER TABLE items ALTER COLUMN amount TYPE int USING amount + 1",
        "ALTER TABLE customers DROP COLUMN credit CASCADE",
        "DROP TABLE items CASCADE",
        "CREATE TABLE more () INHERITS (items)",
        "CREATE TABLE above (amount int); ALTER TABLE items INHERIT above",
        "CREATE OR REPLACE VIEW north AS SELECT id, name AS who, credit * 3 AS twice FROM customers",
        "CREATE OR REPLACE FUNCTION plus_one(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + 2'",
        "ALTER FUNCTION plus_one(int) VOLATILE",
        "ALTER TABLE customers DROP CONSTRAINT customers_pkey",
        "ALTER SCHEMA public RENAME TO shop",
    ],
)
def test_ddl_that_matters_changes_it(shop: Shop, change: str) -> None:
    shop.execute("DROP VIEW outer_view, ranked, rich, totals CASCADE; DROP MATERIALIZED VIEW frozen; DROP VIEW north")
    shop.execute("CREATE VIEW north AS SELECT id, 'x'::text AS who, 1.0 AS twice FROM orders")
    shop.execute("CREATE OR REPLACE VIEW north AS SELECT id, 'y'::text AS who, 1.0 AS twice FROM orders")
    dependencies = analyze(shop, QUERY).dependencies
    before = fingerprint(shop, dependencies)
    if "VIEW north" in change:
        change = "CREATE OR REPLACE VIEW north AS SELECT id, 'z'::text AS who, 1.0 AS twice FROM orders"
    if "COLUMN name" in change:
        change = "ALTER TABLE orders ALTER COLUMN customer TYPE bigint"
    shop.execute(change.encode())
    assert not still_holds(before, fingerprint(shop, dependencies))


def core(shop: Shop, dependencies: Dependencies) -> str:
    """The part of the fingerprint that decides; the others only say that it is worth a look."""
    return fingerprint(shop, dependencies).split(".")[0]


def test_who_may_read_what_is_part_of_it(shop: Shop) -> None:
    """By whole tables or by the columns that are used; as the login, and as the owner of a view."""
    role = f"reader_{shop.info.dbname}"
    shop.execute(
        f"CREATE ROLE {role}; GRANT SELECT (id, name) ON customers TO {role}; GRANT pgtrickle_user TO {role}".encode()
    )
    dependencies = analyze(shop, "SELECT id FROM customers").dependencies
    try:
        shop.execute(f"SET ROLE {role}".encode())
        seen = [core(shop, dependencies)]
        for change in (
            f"REVOKE SELECT (name) ON customers FROM {role}",  # not used
            f"REVOKE SELECT (id) ON customers FROM {role}",
            f"GRANT SELECT ON customers TO {role}",
            "ALTER TABLE customers ENABLE ROW LEVEL SECURITY",
            f"ALTER ROLE {role} BYPASSRLS",
        ):
            shop.execute("RESET ROLE")
            shop.execute(change.encode())
            shop.execute(f"SET ROLE {role}".encode())
            seen.append(core(shop, dependencies))
        allowed, unused, denied, again, filtered, unfiltered = seen
        assert allowed == unused == again
        assert len({allowed, denied, filtered, unfiltered}) == 4
        shop.execute("RESET ROLE")
        shop.execute(f"CREATE VIEW theirs AS SELECT id FROM orders; ALTER VIEW theirs OWNER TO {role}".encode())
        shop.execute(f"GRANT SELECT ON orders TO {role}".encode())
        through = analyze(shop, "SELECT id FROM theirs").dependencies
        before = core(shop, through)
        shop.execute(f"REVOKE SELECT ON orders FROM {role}".encode())
        assert core(shop, through) != before
    finally:
        shop.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}".encode())


@pytest.mark.parametrize(
    ("there", "back"),
    [
        (
            ["ALTER TABLE parted DETACH PARTITION part", "INSERT INTO part VALUES (1, 1)"],
            ["ALTER TABLE parted ATTACH PARTITION part FOR VALUES IN (1)"],
        ),
        (
            [
                "ALTER TABLE parted RENAME b TO c",
                "ALTER TABLE parted RENAME a TO b",
                "ALTER TABLE parted RENAME c TO a",
            ],
            [
                "ALTER TABLE parted RENAME b TO c",
                "ALTER TABLE parted RENAME a TO b",
                "ALTER TABLE parted RENAME c TO a",
            ],
        ),
    ],
)
def test_ddl_undone_still_shows(shop: Shop, there: list[str], back: list[str]) -> None:
    shop.execute("CREATE TABLE parted (a int, b int) PARTITION BY LIST (a)")
    shop.execute("CREATE TABLE part PARTITION OF parted FOR VALUES IN (1)")
    dependencies = analyze(shop, "SELECT a, b FROM parted").dependencies
    before = fingerprint(shop, dependencies)
    assert fingerprint(shop, dependencies) == before
    for statement in (*there, *back):
        shop.execute(statement.encode())
    assert not still_holds(before, fingerprint(shop, dependencies))


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO items SELECT * FROM items; ANALYZE items",
        "CREATE INDEX ON items (order_id)",
        "ALTER TABLE items ADD COLUMN unused int",
        "ALTER TABLE items DROP COLUMN tags",
        "CREATE TABLE elsewhere (x int)",
        "VACUUM FULL items",
        "CLUSTER customers USING customers_pkey",
        "ALTER TABLE items ALTER amount SET NOT NULL",
        "ALTER TABLE items ALTER amount SET STATISTICS 100",
        "ALTER TABLE items ALTER amount SET DEFAULT 1; ALTER TABLE items ALTER amount SET DEFAULT 2",
        "ALTER TABLE items ADD CHECK (amount < 1000)",
        "ALTER TABLE items ADD FOREIGN KEY (order_id) REFERENCES orders",
        "GRANT SELECT (amount) ON items TO PUBLIC",
        "COMMENT ON COLUMN items.amount IS 'how many'",
        "CREATE TABLE moods (m mood); CREATE OPERATOR ~~~ (FUNCTION = int4pl, LEFTARG = int4, RIGHTARG = int4)",
    ],
)
def test_other_changes_do_not(shop: Shop, change: str) -> None:
    shop.execute(
        "UPDATE items SET amount = 1 WHERE amount IS NULL; DELETE FROM items WHERE order_id IS NULL OR order_id = 7"
    )
    dependencies = analyze(shop, QUERY).dependencies
    before = fingerprint(shop, dependencies)
    for statement in change.split(";"):
        shop.execute(statement.encode())
    assert still_holds(before, fingerprint(shop, dependencies))


def test_it_is_cheap(shop: Shop) -> None:
    shop.execute(KINDS.encode())
    dependencies = analyze(shop, OF_KINDS).dependencies
    took = []
    for _ in range(20):
        start = time.perf_counter()
        fingerprint(shop, dependencies)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.02  # 2 ms on a machine with nothing else to do
