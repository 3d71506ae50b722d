"""The rows that a window's refreshes read, counted by PostgreSQL itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pgtrickle import db
from pgtrickle.api import Trickle
from tests.refresh.oracle import differing

FLUSH = "SELECT pg_stat_force_next_flush()"


def rows_read(
    connection: db.Connection, trickle: Trickle, queries: Mapping[str, str], windows: Iterable[Iterable[str]]
) -> list[int]:
    """Makes the changes and refreshes the stream tables, which are then right, window by window: the rows that each
    read of their sources and of what is kept of them."""
    found = []
    _tell(connection, trickle)
    for window in windows:
        before = _total(connection)  # since the last window this session alone has read
        for change in window:
            connection.execute(db.statement(change))
        for name in queries:
            assert trickle.refresh_stream_table(name).action == "DIFFERENTIAL"
        _tell(connection, trickle)
        found.append(_total(connection) - before)
        assert found[-1] > 0, "nothing was told"
        for name, query in queries.items():
            assert differing(connection, name, query) == []
    return found


def _tell(connection: db.Connection, trickle: Trickle) -> None:
    """Has all sessions tell the server what they have read: ours at once, those of Spark's tasks by ending. (By
    themselves they tell it after ten seconds; a task whose connection has ended opens another.)"""
    ours = [connection, *trickle._refresher.connections()]
    for each in ours:
        each.execute(FLUSH)
    others = (
        "SELECT coalesce(bool_and(pg_terminate_backend(pid, 10000)), true) FROM pg_stat_activity"
        " WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> ALL (%s)"
    )
    row = connection.execute(others, ([each.info.backend_pid for each in ours],)).fetchone()
    assert row == (True,)


def _total(connection: db.Connection) -> int:
    """Rows of the sources, whose names are a letter and at most a digit, and of states, since the server began."""
    connection.execute(FLUSH)
    read = (
        "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables"
        " WHERE relname ~ '^[a-z][0-9]?$' OR schemaname = 'pgtrickle_state'"
    )
    return int(str(db.scalar(connection, read)))
