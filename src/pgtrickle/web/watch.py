"""What the dashboard knows of one database, read over one connection of its own. Called by `server.py`.

Nothing here may hold up the service, or wait for ever: a statement has a few seconds, and one that PostgreSQL does not
answer at all loses its connection. Who asks while somebody else reads waits a little, and gets what was last read.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from pgtrickle import db
from pgtrickle.catalog import install, reader, requests
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection
from pgtrickle.errors import Error, ServerError, StateError
from pgtrickle.monitor import overview
from pgtrickle.monitor.overview import Overview
from pgtrickle.refresh.definition.define import load
from pgtrickle.refresh.explain import explain_stream_table
from pgtrickle.refresh.failure import from_server
from pgtrickle.web import graph
from pgtrickle.web.graph import Drawing

Json = dict[str, Any]

FRESH_S: Final = 1.0
"""What was read so long ago is good for another one who asks: many pages cost as much as one."""
STATEMENT_S: Final = 4
ANSWER_S: Final = 6.0
"""A whole reading, after which its connection is cut: the server, or the network, does not answer."""
PATIENCE_S: Final = 5.0
TIMES: Final = 32
HISTORY: Final = 150
MOST_COUNTED: Final = 2_000_000

_TIMES = """
SELECT t.pgt_id, h.ms, h.actions FROM pgtrickle.pgt_stream_tables AS t CROSS JOIN LATERAL (
    SELECT array_agg(l.duration_ms ORDER BY l.refresh_id) AS ms,
           array_agg(CASE l.status WHEN 'COMPLETED' THEN l.action ELSE l.status END ORDER BY l.refresh_id) AS actions
    FROM (SELECT refresh_id, duration_ms, action, status FROM pgtrickle.pgt_refresh_history
          WHERE pgt_id = t.pgt_id AND status IN ('COMPLETED', 'FAILED') AND action IS DISTINCT FROM 'NO_DATA'
          ORDER BY refresh_id DESC LIMIT %s) AS l) AS h
"""
_BUFFERS = """
SELECT d.source_relid::bigint,
       CASE WHEN has_table_privilege(o.buffer_relid, 'SELECT') THEN o.buffer_relid::regclass::text END,
       pgtrickle_internal.is_stream_table(d.source_relid), coalesce(pg_stat_get_live_tuples(o.buffer_relid), 0)
FROM pgtrickle.pgt_dependencies AS d JOIN pgtrickle.pgt_capture_objects AS o USING (source_relid)
WHERE d.pgt_id = %s AND d.cdc_mode IS NOT NULL
"""
ACTIONS: Final = {
    "refresh": "SELECT pgtrickle.refresh_stream_table(%s)",
    "full": 'SELECT pgtrickle.refresh_stream_table(%s, "full" => true)',
    "suspend": "SELECT pgtrickle.pause_stream_table(%s)",
    "resume": "SELECT pgtrickle.resume_stream_table(%s)",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """The last reading, and when it was, by the monotonic clock."""

    at: float
    data: Json


class Watch:
    """For all threads of the server."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.Lock()
        self._explaining = threading.Lock()
        self._connection: Connection | None = None
        self._seen: Seen | None = None
        self._drawn: tuple[object, Drawing] | None = None

    @property
    def title(self) -> str:
        """Which database, and whose eyes: nothing secret."""
        given = conninfo_to_dict(self._dsn)
        return " as ".join(str(each) for each in (given.get("dbname"), given.get("user")) if each) or "the database"

    def overview(self) -> Json:
        """All that the front page shows. Where it cannot be read now: why, and what was there when it last could."""
        known = self._seen
        if known is not None and time.monotonic() - known.at < FRESH_S:
            return known.data
        try:
            return self._read(self._overview)
        except Error as error:
            last = self._seen
            old = {"data": last.data, "age_s": time.monotonic() - last.at} if last else {"data": None, "age_s": None}
            return {"problem": told(error), **old}

    def table(self, pgt_id: int) -> Json:
        """All that is known of one stream table; StateError if there is none."""
        return self._read(lambda conn: _table(conn, pgt_id))

    def explain(self, pgt_id: int) -> Json:
        """How it is maintained, with the reads that its next refresh would choose. Compiles its query, so one at a
        time, over a connection for this alone: that one must make a view for it, which is rolled back."""
        if not self._explaining.acquire(timeout=PATIENCE_S):
            raise _busy()
        try:
            with _connected(self._dsn) as conn:
                stream = _stream(conn, pgt_id)
                return {"text": explain_stream_table(conn, stream, load(conn, stream))}
        except psycopg.Error as error:
            raise from_server(error) from error
        finally:
            self._explaining.release()

    def act(self, what: str, pgt_id: int) -> Json:
        """Asks the service for something, as the login of this service: its rights, and its turn, are those of any
        other request. Returns the request's id."""
        try:
            with _connected(self._dsn) as conn:
                name = requests.full_name(conn, _stream(conn, pgt_id))
                row = conn.execute(db.statement(ACTIONS[what]), (name,)).fetchone()
        except psycopg.Error as error:
            raise _refused(error) from error
        assert row is not None
        return {"request": row[0], "table": name}

    def request(self, request_id: int) -> Json:
        """How far something that was asked for is."""
        return self._read(lambda conn: _request(conn, request_id))

    def close(self) -> None:
        """Ends its session. One who still asks opens another."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def _read(self, what: Callable[[Connection], Json]) -> Json:
        """Reads something over the one connection; errors of the driver are ours."""
        if not self._lock.acquire(timeout=PATIENCE_S):
            raise _busy()
        try:
            with self._opened() as conn:
                return what(conn)
        except psycopg.Error as error:
            raise from_server(error) from error
        finally:
            self._lock.release()

    @contextmanager
    def _opened(self) -> Iterator[Connection]:
        """The one connection, which is another where it cannot be used any more."""
        if self._connection is not None and not db.is_usable(self._connection):
            self._connection.close()
            self._connection = None
        conn = self._connection or _log_in(self._dsn)
        with _cut_off(conn):
            if self._connection is None:
                try:
                    _prepare(conn)
                    conn.execute("SET default_transaction_read_only = on")
                    install.require(conn)
                except BaseException:
                    conn.close()
                    raise
                self._connection = conn
            yield conn

    def _overview(self, conn: Connection) -> Json:
        known = self._seen
        if known is not None and time.monotonic() - known.at < FRESH_S:  # somebody else has read it meanwhile
            return known.data
        found = overview.read(conn)
        times = {
            row[0]: {"ms": row[1], "actions": row[2]} for row in conn.execute(db.statement(_TIMES), (TIMES,)).fetchall()
        }
        tables = [each.to_dict() | {"state": each.state, "times": times.get(each.pgt_id)} for each in found.tables]
        data = found.to_dict() | {"tables": tables, "graph": self._graph(found)}
        self._seen = Seen(time.monotonic(), data)
        return data

    def _graph(self, found: Overview) -> Json:
        """Drawn again only where something else reads something else."""
        stored = {table.pgt_id: table.pgt_relid for table in found.tables}
        names = {edge.source_relid: (edge.source, edge.source_type) for edge in found.edges}
        edges = [(edge.source_relid, stored[edge.pgt_id]) for edge in found.edges if edge.pgt_id in stored]
        relations = {*stored.values(), *(source for source, _ in edges)}
        key = (frozenset(relations), frozenset(edges))
        if self._drawn is None or self._drawn[0] != key:
            self._drawn = (key, graph.draw(relations, edges))
        drawing = self._drawn[1]
        by_relid = {relid: pgt_id for pgt_id, relid in stored.items()}
        nodes = [
            {
                "relid": oid,
                "pgt_id": by_relid.get(oid),
                "name": names[oid][0] if oid in names else None,
                "type": names[oid][1] if oid in names else None,
                "x": place.x,
                "y": place.y,
            }
            for oid, place in sorted(drawing.places.items(), key=lambda each: (each[1].layer, each[1].y))
        ]
        lines = [
            {"from": line.source, "to": line.reader, "points": line.points, "back": line.back} for line in drawing.lines
        ]
        size = {
            "width": drawing.width,
            "height": drawing.height,
            "node_width": graph.WIDTH,
            "node_height": graph.HEIGHT,
        }
        return {**size, "nodes": nodes, "lines": lines}


@contextmanager
def _connected(dsn: str) -> Iterator[Connection]:
    """A connection for one question."""
    with closing(_log_in(dsn)) as conn, _cut_off(conn):
        _prepare(conn)
        yield conn


def _log_in(dsn: str) -> Connection:
    """A bare connection: the login has a timeout of its own, all that comes after it is to be within `_cut_off`."""
    return db.log_in(dsn, "pgtrickle web", 3)


def _prepare(conn: Connection) -> None:
    """Its statements end soon, and are not compiled to machine code."""
    db.prepare_session(conn)
    conn.execute(db.statement(f"SET statement_timeout = '{STATEMENT_S}s'; SET lock_timeout = '2s'; SET jit = off"))


@contextmanager
def _cut_off(conn: Connection) -> Iterator[None]:
    """Cuts the connection if what is done inside takes too long: whoever waits for an answer finds it closed."""
    with socket.socket(fileno=os.dup(conn.fileno())) as line:  # its own: the number may come to be another's

        def cut() -> None:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(ANSWER_S, cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # one that is cutting needs the line a moment longer


def _stream(conn: Connection, pgt_id: int) -> StreamTable:
    found = reader.by_id(conn, pgt_id)
    if found is None:
        raise StateError("there is no such stream table any more", code="PT301", hint="Go back to the list of all.")
    return found


def _table(conn: Connection, pgt_id: int) -> Json:
    stream = _stream(conn, pgt_id)
    now = next(each for each in overview.tables(conn) if each.pgt_id == pgt_id)
    facts = conn.execute(
        "SELECT property, value FROM pgtrickle_internal.explain_full_name(%s)", (now.quoted,)
    ).fetchall()
    row = conn.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    return {
        "at": row[0],
        "table": now.to_dict() | {"state": now.state},
        "query": stream.defining_query,
        "facts": {str(name): value for name, value in facts},
        "sources": [each for each in overview.edges(conn) if each.pgt_id == pgt_id],
        "waiting": _waiting(conn, stream),
        "history": reader.history(conn, pgt_id, HISTORY),
    }


def _waiting(conn: Connection, stream: StreamTable) -> dict[int, int | None]:
    """The changes of each captured source that the table does not have yet, by oid; None where that cannot be told, or
    not soon. About: what is captured twice in a change of mode is counted twice."""
    found: dict[int, int | None] = {}
    for oid, buffer, is_stream_table, rows in conn.execute(db.statement(_BUFFERS), (stream.pgt_id,)).fetchall():
        if buffer is None or int(str(rows)) > MOST_COUNTED:
            found[int(str(oid))] = None
            continue
        count = sql.SQL("SELECT count(*) FROM {} WHERE NOT pg_visible_in_snapshot(xid, {}::pg_snapshot)").format(
            sql.SQL(str(buffer)), sql.Literal(stream.since(bool(is_stream_table)))
        )
        row = conn.execute(count).fetchone()
        assert row is not None
        found[int(str(oid))] = int(str(row[0]))
    return found


def _request(conn: Connection, request_id: int) -> Json:
    row = conn.execute(
        "SELECT r.state, r.error, r.hint, p.waits, r.result FROM pgtrickle.pgt_requests AS r"
        " CROSS JOIN LATERAL pgtrickle_internal.request_progress(r.id) AS p WHERE r.id = %s",
        (request_id,),
    ).fetchone()
    if row is None:
        raise StateError("there is no such request any more", code="PT301", hint="Ask again.")
    return dict(zip(("state", "error", "hint", "waits", "result"), row, strict=True))


def _refused(error: psycopg.Error) -> Error:
    """What a function of the catalog refuses has our code as its SQLSTATE."""
    state = error.sqlstate or ""
    if not state.startswith("PT"):
        return from_server(error)
    said = (error.diag.message_primary or str(error)).removeprefix(f"{state}: ")
    return StateError(said, code=state, hint=error.diag.message_hint)


def told(error: Error) -> Json:
    """An error as the page shows it."""
    return {"code": error.code, "message": error.message, "hint": error.hint}


def _busy() -> ServerError:
    return ServerError(
        "PostgreSQL has not answered the dashboard for some seconds",
        code="PT470",
        hint="Look at the server: whether it runs, what holds locks, how busy it is.",
    )
