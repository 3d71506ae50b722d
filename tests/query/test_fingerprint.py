"""The fingerprint changes with DDL that matters, and with no other."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from pgtrickle.query.analyze import analyze
from pgtrickle.query.fingerprint import fingerprint

Shop = psycopg.Connection[Any]

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
        "VACUUM FULL items",  # not told apart from a rewrite of the values
        "ALTER TABLE customers DROP COLUMN credit CASCADE",
        "DROP TABLE items CASCADE",
        "CREATE TABLE more () INHERITS (items)",
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
    assert fingerprint(shop, dependencies) != before


def test_who_may_read_what_is_part_of_it(shop: Shop) -> None:
    """By whole tables or by the columns that are used; as the login, and as the owner of a view."""
    role = f"reader_{shop.info.dbname}"
    shop.execute(f"CREATE ROLE {role}; GRANT SELECT (id, name) ON customers TO {role}".encode())
    dependencies = analyze(shop, "SELECT id FROM customers").dependencies
    try:
        shop.execute(f"SET ROLE {role}".encode())
        seen = [fingerprint(shop, dependencies)]
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
            seen.append(fingerprint(shop, dependencies))
        allowed, unused, denied, again, filtered, unfiltered = seen
        assert allowed == unused
        assert len({allowed, denied, again, filtered, unfiltered}) == 5
        shop.execute("RESET ROLE")
        shop.execute(f"CREATE VIEW theirs AS SELECT id FROM orders; ALTER VIEW theirs OWNER TO {role}".encode())
        through = analyze(shop, "SELECT o.id FROM orders o").dependencies
        through = replace(through, views=(shop.execute("SELECT 'theirs'::regclass::oid").fetchone() or (0,))[:1])
        before = fingerprint(shop, through)
        shop.execute(f"GRANT SELECT ON orders TO {role}".encode())
        assert fingerprint(shop, through) != before
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
    assert fingerprint(shop, dependencies) != before


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO items SELECT * FROM items; ANALYZE items",
        "CREATE INDEX ON items (order_id)",
        "ALTER TABLE items ADD COLUMN unused int",
        "ALTER TABLE items DROP COLUMN tags",
        "CREATE TABLE elsewhere (x int)",
    ],
)
def test_other_changes_do_not(shop: Shop, change: str) -> None:
    dependencies = analyze(shop, QUERY).dependencies
    before = fingerprint(shop, dependencies)
    for statement in change.split(";"):
        shop.execute(statement.encode())
    assert fingerprint(shop, dependencies) == before


def test_it_is_cheap(shop: Shop) -> None:
    dependencies = analyze(shop, QUERY).dependencies
    took = []
    for _ in range(20):
        start = time.perf_counter()
        fingerprint(shop, dependencies)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.005
