"""The command line, called in this process on a fresh database with a small shop in it."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from typer.testing import CliRunner, Result

from pgtrickle.cli.main import app

SHOP = """
CREATE TABLE customers (id integer PRIMARY KEY, region text);
CREATE TABLE orders (id integer PRIMARY KEY, customer integer, amount numeric(10,2));
INSERT INTO customers SELECT n, 'r' || n % 3 FROM generate_series(1, 30) AS n;
INSERT INTO orders SELECT n, 1 + n % 30, n * 1.5 FROM generate_series(1, 300) AS n;
ANALYZE;
"""

Call = Callable[..., Result]


@pytest.fixture
def shop(database18: str) -> str:
    with psycopg.connect(database18, autocommit=True) as connection:
        connection.execute(SHOP.encode())
    return database18


@pytest.fixture
def call(shop: str) -> Call:
    """`pgtrickle` with the shop's DSN from the environment."""

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin, env={"PGTRICKLE_DSN": shop})

    return run
