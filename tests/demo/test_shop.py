"""The parts of the demo: its shop and modes, its writers, its database, its view."""

from __future__ import annotations

import io
import time

import psycopg
import pytest
from rich.console import Console

from pgtrickle import db
from pgtrickle.demo import shop, writers
from pgtrickle.demo.place import database_of
from pgtrickle.demo.view import View
from pgtrickle.demo.writers import Writers, writing
from pgtrickle.query.compile import compile_query
from pgtrickle.refresh.decide import Action
from pgtrickle.refresh.result import RefreshResult


def one(dsn: str, query: str) -> object:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def test_the_demo_shows_every_mode_and_means_it(database18: str) -> None:
    assert {stream.mode for stream in shop.STREAMS} == {"AUTO", "DIFFERENTIAL", "FULL"}
    with db.open_session(database18) as connection:
        shop.build(connection)
        for stream in shop.STREAMS:
            with connection.transaction():
                compiled = compile_query(connection, stream.query)
            assert stream.mode == "FULL" or compiled.tree is not None, stream.name


def test_writers_commit_roll_back_and_hold_transactions_open(database18: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "PAUSE", 0.001)
    monkeypatch.setattr(writers, "HELD_OPEN", 1.0)
    with db.open_session(database18) as connection:
        shop.build(connection)
    with writing(database18) as at_work:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not {"long", "rolled back", "moved", "cancelled"} <= set(at_work.written):
            time.sleep(0.1)
    assert {"placed", "paid", "repriced", "cancelled", "moved", "rolled back", "long"} == set(at_work.written)
    orders = one(database18, "SELECT count(*) FROM orders")
    placed = at_work.written["placed"] + at_work.written["long"]
    assert isinstance(orders, int)
    assert 5000 + placed - at_work.written["cancelled"] <= orders <= 5000 + placed, "what was rolled back is not there"
    assert one(database18, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'shop'") == 0


def test_what_ends_a_writer_is_raised(database18: str) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable), writing(database18) as at_work:
        assert at_work.stop.wait(30), "the other writers are told to stop"


def test_a_database_on_the_users_server_is_dropped_afterwards(database18: str) -> None:
    def there() -> object:
        return one(database18, "SELECT count(*) FROM pg_database WHERE datname LIKE 'pgtrickle\\_demo\\_%'")

    def interrupted() -> None:
        with database_of(database18) as dsn:
            assert there() == 1
            assert str(one(dsn, "SELECT current_database()")).startswith("pgtrickle_demo_")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert there() == 0


def test_the_live_table_fits_eighty_columns() -> None:
    console = Console(width=80, force_terminal=True, color_system=None, file=io.StringIO())
    view = View(console, 60.0)
    for stream in shop.STREAMS:
        result = RefreshResult(Action.DIFFERENTIAL, "7 changes", 1234, 567, 7, 4321.0)
        view.seen[stream.name].take(result, time.monotonic() - 12)
    console.print(view._drawn(Writers("")))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    for stream in shop.STREAMS:
        (line,) = [line for line in lines if stream.name in line]
        assert line.split()[-6:] == ["667", "+1234", "-567", "12.0", "s", "4321"]
