"""Stream tables in IMMEDIATE mode, told through the real API. No Spark: writers have none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pgtrickle import embedded
from tests.conftest import fresh_database
from tests.immediate.telling import Told, told


@contextmanager
def _story(server: embedded.Server) -> Iterator[Told]:
    with fresh_database(server) as dsn, told(dsn) as story:
        yield story


@pytest.fixture(params=(18, 16), ids=lambda version: f"pg{version}")
def story(request: pytest.FixtureRequest) -> Iterator[Told]:
    """On 18; in a long run on 16 too."""
    with _story(request.getfixturevalue(f"server{request.param}")) as story:
        yield story


@pytest.fixture
def story18(server18: embedded.Server) -> Iterator[Told]:
    with _story(server18) as story:
        yield story


@pytest.fixture
def shop(story: Told) -> Told:
    """Customers, their orders and what is in these, each with a foreign key that cascades; and four stream tables."""
    story.run(
        "CREATE TABLE customers (id int PRIMARY KEY, name text)",
        "CREATE TABLE orders (id int PRIMARY KEY, customer int REFERENCES customers ON DELETE CASCADE, amount numeric)",
        "CREATE TABLE items (id int PRIMARY KEY, parent int REFERENCES orders ON DELETE CASCADE, article text)",
        "INSERT INTO customers VALUES (1, 'ann'), (2, 'bob'), (3, 'eve')",
        "INSERT INTO orders VALUES (1, 1, 10), (2, 1, 20), (3, 2, 5), (4, NULL, 7)",
        "INSERT INTO items VALUES (1, 1, 'pen'), (2, 1, 'ink'), (3, 3, 'pen'), (4, 4, NULL)",
    )
    story.create("joined", "SELECT o.id, c.name, o.amount FROM orders o JOIN customers c ON c.id = o.customer")
    story.create(
        "totals",
        "SELECT c.name, count(o.id) AS n, sum(o.amount) AS total, max(o.amount) AS most"
        " FROM customers c LEFT JOIN orders o ON o.customer = c.id GROUP BY c.name",
    )
    story.create(
        "all_of_it",
        "SELECT DISTINCT c.name, i.article FROM customers c JOIN orders o ON o.customer = c.id"
        " LEFT JOIN items i ON i.parent = o.id",
    )
    story.create("dearest", "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 2")
    return story
