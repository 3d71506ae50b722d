"""The rows that a window's refreshes read, counted by PostgreSQL itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import sleep

from pgtrickle import db
from pgtrickle.api import Trickle
from tests.refresh.oracle import differing

IDLE_SECONDS = 11  # after ten, a session that has gone idle tells what it has read


def rows_read(
    connection: db.Connection, trickle: Trickle, queries: Mapping[str, str], windows: Iterable[Iterable[str]]
) -> list[int]:
    """Makes the changes and refreshes the stream tables, which are then right, window by window: the rows that each
    read of their sources and of what is kept of them."""
    found = []
    sleep(IDLE_SECONDS)
    for window in windows:
        before = _total(connection)  # since the last window this session alone has read
        for change in window:
            connection.execute(db.statement(change))
        for name in queries:
            assert trickle.refresh_stream_table(name).action == "DIFFERENTIAL"
        sleep(IDLE_SECONDS)
        found.append(_total(connection) - before)
        for name, query in queries.items():
            assert differing(connection, name, query) == []
    return found


def _total(connection: db.Connection) -> int:
    """Rows of the sources, whose names are a letter and at most a digit, and of states, since the server began."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    read = (
        "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables"
        " WHERE relname ~ '^[a-z][0-9]?$' OR schemaname = 'pgtrickle_state'"
    )
    return int(str(db.scalar(connection, read)))
