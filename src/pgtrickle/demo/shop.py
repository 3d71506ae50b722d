"""The demo's shop: three tables with some data, and the stream tables over them. Pure values and one set-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pgtrickle.db import Connection, execute

SCHEMA: Final = """
CREATE TABLE customers (
    id     integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name   text NOT NULL,
    region text
);
CREATE TABLE orders (
    id       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer integer NOT NULL,
    placed   timestamptz NOT NULL DEFAULT now(),
    paid     boolean NOT NULL DEFAULT false
);
CREATE TABLE items (
    order_id integer NOT NULL,
    product  text NOT NULL,
    quantity integer NOT NULL,
    price    numeric(10,2) NOT NULL
);
INSERT INTO customers (name, region)
SELECT 'customer ' || n, (ARRAY['north', 'south', 'east', 'west', NULL])[1 + n % 5] FROM generate_series(1, 500) AS n;
INSERT INTO orders (customer, paid) SELECT 1 + n % 500, n % 3 > 0 FROM generate_series(1, 5000) AS n;
INSERT INTO items
SELECT 1 + n % 5000, 'product ' || n % 40, 1 + n % 4, 0.99 + n % 50 FROM generate_series(1, 12000) AS n;
ALTER TABLE customers REPLICA IDENTITY FULL;  -- old values in the WAL: without it, triggers stay
ALTER TABLE orders REPLICA IDENTITY FULL;
ALTER TABLE items REPLICA IDENTITY FULL;
CREATE INDEX ON orders (customer);
CREATE INDEX ON items (order_id);
ANALYZE customers, orders, items;
"""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream table of the demo; `every` is its schedule in seconds."""

    name: str
    shows: str
    mode: str
    every: int
    query: str


STREAMS: Final = (
    Stream(
        "order_lines",
        "join of three tables",
        "DIFFERENTIAL",
        2,
        "SELECT o.id, c.name, i.product, i.quantity * i.price AS amount"
        " FROM orders o JOIN customers c ON c.id = o.customer JOIN items i ON i.order_id = o.id WHERE o.paid",
    ),
    Stream(
        "sales_by_region",
        "aggregates over a join",
        "DIFFERENTIAL",
        3,
        "SELECT c.region, count(*) AS lines, sum(i.quantity * i.price) AS revenue, avg(i.price) AS average_price,"
        " max(i.price) AS dearest"
        " FROM customers c JOIN orders o ON o.customer = c.id JOIN items i ON i.order_id = o.id GROUP BY c.region",
    ),
    Stream(
        "basket_sizes",
        "aggregate of an aggregate",
        "AUTO",
        4,
        "SELECT b.lines, count(*) AS orders, sum(b.amount) AS amount"
        " FROM (SELECT o.id, count(*) AS lines, sum(i.quantity * i.price) AS amount"
        "       FROM orders o JOIN items i ON i.order_id = o.id GROUP BY o.id) AS b GROUP BY b.lines",
    ),
    Stream(
        "to_do",
        "filters, UNION ALL",
        "AUTO",
        2,
        "SELECT 'await payment' AS task, id AS subject FROM orders WHERE NOT paid"
        " UNION ALL SELECT 'ask for region', id FROM customers WHERE region IS NULL",
    ),
    Stream(
        "top_products",
        "window function over groups, in full",
        "FULL",
        10,
        "SELECT product, sum(quantity) AS sold, rank() OVER (ORDER BY sum(quantity) DESC) AS place"
        " FROM items GROUP BY product",
    ),
)


def build(connection: Connection) -> None:
    """Create the shop's tables and fill them."""
    execute(connection, SCHEMA)
