"""A database with a service at work, and stream tables made by requests: nothing here needs a Spark of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from tests.refresh.oracle import differing
from tests.service.running import Running, running, until

from pgtrickle import db
from pgtrickle.db import Connection, statement

PATIENCE_S = 300.0


class Served:
    """What a user does with SQL alone, and what may be asked of the catalog."""

    def __init__(self, dsn: str, service: Running) -> None:
        self.dsn = dsn
        self.service = service
        self.conn = db.open_session(dsn)
        self.until(lambda: self.one("SELECT to_regclass('pgtrickle.pgt_requests')"), "the catalog")
        self.queries: dict[str, str] = {}

    def run(self, *statements: str) -> None:
        for each in statements:
            self.conn.execute(statement(each))

    def one(self, query: str, *values: object) -> object:
        row = self.conn.execute(statement(query), values or None).fetchone()
        assert row is not None
        return row[0]

    def rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
        return self.conn.execute(statement(query), values or None).fetchall()

    def ask(self, call: str, *values: object) -> None:
        """A request, carried out by the service before this returns; its error, if it has one."""
        request = self.one(f"SELECT pgtrickle.{call}", *values)
        self.conn.execute("CALL pgtrickle.wait_for(%s, '5 minutes')", (request,))

    def create(self, name: str, query: str, schedule: str | None = "1s", mode: str = "DIFFERENTIAL") -> None:
        self.ask("create_stream_table(%s, %s, schedule => %s, refresh_mode => %s)", name, query, schedule, mode)
        self.queries[name] = query

    def until(self, holds: object, what: object) -> None:
        assert callable(holds)
        until(holds, lambda: f"{what}\n{self.service.log[-6000:]}", PATIENCE_S)

    def await_equal(self, *names: str) -> None:
        """Wait until each table equals its query over what it reads; all at once, as nothing is written meanwhile."""
        self.until(lambda: all(not differing(self.conn, name, self.queries[name]) for name in names), names)

    def await_tick(self) -> None:
        """Wait until every table was found up to date after this moment."""
        now = self.one("SELECT clock_timestamp()")
        self.until(
            lambda: self.one(
                "SELECT bool_and(data_timestamp > %s) FROM pgtrickle.pgt_stream_tables WHERE status = 'ACTIVE'", now
            ),
            "a tick of all",
        )

    def actions(self, name: str) -> list[object]:
        """What its refreshes did, oldest first, but for those with nothing to do."""
        return [
            action
            for (action,) in self.rows(
                "SELECT h.action FROM pgtrickle.pgt_refresh_history AS h JOIN pgtrickle.pgt_stream_tables AS t"
                " USING (pgt_id) WHERE t.pgt_name = %s AND h.action <> 'NO_DATA' ORDER BY h.refresh_id",
                name,
            )
        ]

    def state(self, name: str) -> tuple[object, ...]:
        (found,) = self.rows(
            "SELECT status, consecutive_errors, last_error FROM pgtrickle.pgt_stream_tables WHERE pgt_name = %s", name
        )
        return found


@contextmanager
def in_schema(serving: Served, schema: str) -> Iterator[Served]:
    """The one service and its database, with a schema for each test that is emptied afterwards."""
    serving.run(f"CREATE SCHEMA {schema}", f"SET search_path = {schema}")
    yield serving
    while found := serving.rows("SELECT pgt_name FROM pgtrickle.pgt_stream_tables ORDER BY pgt_id DESC LIMIT 1"):
        serving.ask("drop_stream_table(%s, cascade => true)", *found[0])
    serving.queries.clear()
    serving.run("RESET search_path", f"DROP SCHEMA {schema} CASCADE")


class Ear:
    """Alerts, from the moment it was made."""

    def __init__(self, dsn: str) -> None:
        self._conn: psycopg.Connection[tuple[object, ...]] = db.open_session(dsn)
        self._conn.execute("LISTEN pg_trickle_alert")
        self._heard: list[dict[str, object]] = []

    def __enter__(self) -> Ear:
        return self

    def __exit__(self, *_: object) -> None:
        self._conn.close()

    def heard(self, event: str) -> list[dict[str, object]]:
        self._heard += [json.loads(each.payload) for each in self._conn.notifies(timeout=0.05)]
        return [alert for alert in self._heard if alert["event"] == event]


@contextmanager
def served(dsn: str, directory: Path, **settings: str) -> Iterator[Served]:
    with running(dsn, directory, **settings) as service:
        found = Served(dsn, service)
        try:
            yield found
        finally:
            found.conn.close()


__all__ = ["Connection", "Ear", "Served", "in_schema", "served"]
