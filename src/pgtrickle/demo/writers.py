"""The shop's customers at work: threads that write to the shop until told to stop. `show` starts and stops them.

One does short transactions, now and then rolling one back; another holds each of its transactions open across several
refreshes. Rows are taken with SKIP LOCKED, so neither waits for the other.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import psycopg

from pgtrickle import db
from pgtrickle.db import Connection

PAUSE: Final = 0.05
HELD_OPEN: Final = 6.0
REST: Final = 4.0
_SEED: Final = 20
_ONE_ORDER: Final = "SELECT id FROM orders WHERE id >= %s ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"
_PLACE: Final = (
    "WITH placed AS (INSERT INTO orders (customer) SELECT 1 + %s %% 500 RETURNING id)"
    " INSERT INTO items SELECT id, 'product ' || (%s + n) %% 40, 1 + n %% 3, 0.99 + (%s + n) %% 60"
    " FROM placed, generate_series(1, %s) AS n"
)


@dataclass(slots=True)
class Writers:
    """What was written so far, by kind, and the error that ended a writer, if one did."""

    dsn: str
    stop: threading.Event = field(default_factory=threading.Event)
    written: Counter[str] = field(default_factory=Counter)
    error: psycopg.Error | None = None

    @property
    def transactions(self) -> int:
        return self.written.total()

    def run(self, work: Callable[[Writers, Connection], None]) -> None:
        """One writer's life; its error, if any, is kept for `writing` to raise."""
        try:
            with db.open_session(self.dsn, application_name="shop") as connection:
                work(self, connection)
        except psycopg.Error as error:
            self.error = error
            self.stop.set()


@contextmanager
def writing(dsn: str) -> Iterator[Writers]:
    """Writers at work while the block runs; whatever ended one of them is raised when it is left."""
    writers = Writers(dsn)
    threads = [threading.Thread(target=writers.run, args=(work,)) for work in (_short, _long)]
    for thread in threads:
        thread.start()
    try:
        yield writers
    finally:
        writers.stop.set()
        for thread in threads:
            thread.join()
    if writers.error is not None:
        raise writers.error


def _short(writers: Writers, connection: Connection) -> None:
    chance = random.Random(_SEED)  # noqa: S311  not a secret
    while not writers.stop.wait(PAUSE):
        kind, act = chance.choice(_ACTS)
        if chance.random() < 0.05:
            with connection.transaction(force_rollback=True):
                act(connection, chance)
            writers.written["rolled back"] += 1
        else:
            with connection.transaction():
                act(connection, chance)
            writers.written[kind] += 1


def _long(writers: Writers, connection: Connection) -> None:
    """Transactions that stay open across refreshes: their rows must arrive once, when they commit."""
    chance = random.Random(_SEED + 1)  # noqa: S311
    while not writers.stop.is_set():
        with connection.transaction():
            _place(connection, chance)
            writers.stop.wait(HELD_OPEN / 2)
            _pay(connection, chance)
            writers.stop.wait(HELD_OPEN / 2)
        writers.written["long"] += 1
        writers.stop.wait(REST)  # a handover needs a moment in which no transaction has written to the table


def _place(connection: Connection, chance: random.Random) -> None:
    some = chance.randrange(10_000)
    connection.execute(_PLACE, (some, some, some, chance.randint(1, 5)))


def _pay(connection: Connection, chance: random.Random) -> None:
    connection.execute(f"UPDATE orders SET paid = NOT paid WHERE id = ({_ONE_ORDER})", (chance.randint(1, 5000),))


def _reprice(connection: Connection, chance: random.Random) -> None:
    connection.execute(
        f"UPDATE items SET price = price + 0.5, quantity = 1 + quantity %% 5 WHERE order_id = ({_ONE_ORDER})",
        (chance.randint(1, 5000),),
    )


def _cancel(connection: Connection, chance: random.Random) -> None:
    connection.execute(
        f"WITH gone AS (DELETE FROM orders WHERE id = ({_ONE_ORDER}) RETURNING id)"
        " DELETE FROM items USING gone WHERE order_id = gone.id",
        (chance.randint(1, 5000),),
    )


def _move(connection: Connection, chance: random.Random) -> None:
    region = chance.choice(["north", "south", "east", "west", None])
    connection.execute("UPDATE customers SET region = %s WHERE id = %s", (region, chance.randint(1, 500)))


_ACTS: Final[tuple[tuple[str, Callable[[Connection, random.Random], None]], ...]] = (
    ("placed", _place),
    ("placed", _place),
    ("paid", _pay),
    ("paid", _pay),
    ("repriced", _reprice),
    ("cancelled", _cancel),
    ("moved", _move),
)
