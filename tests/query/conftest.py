"""A small shop with NULLs and duplicates in it, for the tests of the query package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgtrickle.catalog.install import install

SHOP = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN price AS numeric(8, 2) CHECK (VALUE >= 0);
CREATE TABLE customers (id int PRIMARY KEY, name text, region varchar(10), credit numeric(10, 2), mood mood);
CREATE TABLE orders (id int PRIMARY KEY, customer int, placed timestamptz, note text COLLATE "C", code char(4));
CREATE TABLE items (order_id int, product text, amount int, unit price, weight float8, tags text[]);
CREATE TABLE notes (id bigint, body text COLLATE "POSIX", doc jsonb);
INSERT INTO customers VALUES
  (1, 'ann', 'north', 10.50, 'happy'), (2, 'bob', NULL, NULL, 'sad'), (3, NULL, 'south', 0, NULL),
  (4, 'dee', 'north', 10.50, 'ok'), (5, 'eve', 'south', -3.25, 'ok');
INSERT INTO orders VALUES
  (1, 1, '2024-01-01 10:00+00', 'a', 'x'), (2, 1, '2024-01-02 11:00+00', NULL, 'y '),
  (3, 2, '2024-02-01 00:00+00', 'b', 'x'),
  (4, NULL, NULL, 'B', NULL), (5, 9, '2024-02-03 00:00+00', '', 'zz'), (6, 3, '2024-01-01 12:00+00', 'a', 'x');
INSERT INTO items VALUES
  (1, 'pen', 2, 1.50, 0.1, '{a,b}'), (1, 'pen', 2, 1.50, 0.1, '{a,b}'), (1, 'ink', NULL, 7.00, NULL, NULL),
  (2, 'pen', 5, NULL, 0.5, '{}'), (3, NULL, 1, 2.25, 'NaN', '{b}'), (3, 'cup', 1, 2.25, 2, '{b}'),
  (6, 'cup', -4, 2.25, 2, NULL), (NULL, 'cup', 3, 2.25, 2, NULL), (7, 'mug', 3, 2.20, 1, NULL);
INSERT INTO notes VALUES (1, 'x', '{"a": 1}'), (1, 'X', '{"a": 2.0}'), (2, NULL, NULL), (3, 'y', '{"b": [1]}');
CREATE VIEW north AS SELECT id, name AS who, credit * 2 AS twice FROM customers WHERE region = 'north';
CREATE VIEW totals (customer, total) AS
  SELECT o.customer, sum(i.amount * i.unit) FROM orders o JOIN items i ON i.order_id = o.id GROUP BY o.customer;
CREATE VIEW rich AS SELECT n.who, t.total FROM north n JOIN totals t ON t.customer = n.id;
CREATE VIEW outer_view AS SELECT c.id, o.note FROM customers c LEFT JOIN orders o ON o.customer = c.id;
CREATE VIEW ranked AS SELECT id, rank() OVER (ORDER BY body) AS place FROM notes;
CREATE VIEW placed AS SELECT id, ctid AS place FROM notes;
CREATE MATERIALIZED VIEW frozen AS SELECT id FROM customers;
CREATE FUNCTION plus_one(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + 1';
CREATE FUNCTION any_moment(int) RETURNS int LANGUAGE sql AS 'SELECT $1';
CREATE AGGREGATE product (int) (SFUNC = int4mul, STYPE = int, INITCOND = '1');
"""


@pytest.fixture
def shop(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a fresh shop."""
    with psycopg.connect(database, autocommit=True) as connection:
        install(connection)
        connection.execute(SHOP.encode())
        yield connection
