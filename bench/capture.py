"""A bulk INSERT of 200 thousand rows into a captured table, against the same table without capture."""

from __future__ import annotations

from collections.abc import Iterator

import pgtrickle
from bench.harness import Connection, Figure, db, median, seconds

ROWS = 200_000
ROUNDS = 5


def run(dsn: str) -> Iterator[Figure]:
    with db.open_session(dsn) as connection, pgtrickle.connect(dsn) as trickle:
        for table in ("plain_events", "captured_events"):
            connection.execute(f"DROP TABLE IF EXISTS {table} CASCADE")
            connection.execute(
                f"CREATE TABLE {table} (id int PRIMARY KEY, account int, kind text,"
                " amount numeric(10,2), at timestamptz)"
            )
        query = (
            "SELECT account, count(*) AS n, sum(amount) AS sum, max(at) AS latest FROM captured_events GROUP BY account"
        )
        trickle.create_stream_table("by_account", query, refresh_mode="DIFFERENTIAL", initialize=False)
        plain, captured = [], []
        for round_ in range(ROUNDS):
            plain.append(seconds(lambda round_=round_: _insert(connection, "plain_events", round_)))  # type: ignore[misc]
            captured.append(seconds(lambda round_=round_: _insert(connection, "captured_events", round_)))  # type: ignore[misc]
        trickle.drop_stream_table("by_account")
    yield Figure("bulk INSERT of 200,000 rows, no capture", median(plain), "s")
    yield Figure("bulk INSERT of 200,000 rows, captured", median(captured), "s")
    yield Figure("bulk INSERT, captured / not", median(captured) / median(plain), "×", "at most 2.2")


def _insert(connection: Connection, table: str, round_: int) -> None:
    connection.execute(
        f"INSERT INTO {table} SELECT %s * {ROWS} + g, g %% 1000, 'kind ' || g %% 7, g / 100.0, now()"
        f" FROM generate_series(1, {ROWS}) AS g",
        (round_,),
    )
