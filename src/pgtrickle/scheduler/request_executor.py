"""Requests that came by SQL (`pgt_requests`): carried out one by one, in order, each with its result or its error.

Called by the leading service in each round, with what carries them out (an `api.Trickle`, which this level does not
know) and the connection that works on.

Whose rights count: a service takes only requests of roles that it serves (`catalog/serving.py`): of its own login role,
and of roles that have all of its rights anyway. Those of others stay PENDING for a service of theirs. So whatever the
service does for a request, the requester could have done by itself: PostgreSQL's answer to the service is the answer
to it. The requester must own the table that it alters, drops or refreshes, and owns what it creates (or, if the service
may not give it away, the service does, whose rights the requester has). Members of pgtrickle_admin may have tables of
others refreshed, suspended, resumed or scheduled otherwise; that runs nothing but what the owner's service runs anyway.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Protocol

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from pgtrickle.answers import notes
from pgtrickle.capture.advice import advice
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog.names import Name, parse_name, qualify
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.catalog.requests import kind_of
from pgtrickle.config import Settings
from pgtrickle.db import Caller, Connection, acting_for
from pgtrickle.errors import Error, Fault, ServerError, StateError, UsageError
from pgtrickle.fence import Fence, fenced
from pgtrickle.refresh.definition.repair import Repair
from pgtrickle.refresh.failure import as_ours, is_known
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.scheduler import rights
from pgtrickle.scheduler.events import say
from pgtrickle.spark.java_errors import text_of

MOST_ATTEMPTS: Final = 3
_FLAGS: Final = frozenset({"cascade", "full", "initialize", "protect"})
_OF_DIAMONDS: Final = ("diamond_consistency", "diamond_schedule_policy")
_OF_TABLE: Final = ("primary_key", "indexes", "protect")
_BY_FUNCTION: Final = "Make requests by the functions of the schema pgtrickle."


# Those of roles that this login serves, on stream tables whose owner it serves; unless that very owner has a service of
# its own. And those of roles that are gone, which only say so. One that a service of another login is at is left to it.
# An administrator who steers the table of another is served by whoever serves its owner.
_OURS: Final = sql.SQL("""
SELECT r.id FROM pgtrickle.pgt_requests AS r
JOIN pg_catalog.pg_roles AS me ON me.rolname = session_user
LEFT JOIN pg_catalog.pg_roles AS o ON o.rolname = r.requested_by
LEFT JOIN pgtrickle.pgt_present AS p
    ON r.kind <> 'create' AND pg_catalog.format('%%I.%%I', p.pgt_schema, p.pgt_name) = r.args ->> 'name'
LEFT JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)
LEFT JOIN pg_catalog.pg_class AS c ON c.oid = t.pgt_relid
WHERE (o.oid IS NULL OR pgtrickle_internal.serves(me.oid, o.oid)
       OR c.oid IS NOT NULL AND pgtrickle_internal.steers(o.oid, r.kind, r.args))
  AND (c.oid IS NULL OR pgtrickle_internal.serves(me.oid, c.relowner))
  AND (coalesce(c.relowner, o.oid, me.oid) = me.oid
       OR coalesce(c.relowner, o.oid) NOT IN (SELECT s.role_oid FROM pgtrickle_internal.serving_roles() AS s))
  AND (r.state = 'PENDING' OR r.state = 'RUNNING' AND (
       r.taken_by IS NULL OR r.taken_by = session_user
       OR r.taken_by NOT IN (SELECT s.role_name FROM pgtrickle_internal.serving_roles() AS s)))
""")


class Executor(Protocol):
    """What carries requests out: the methods of `api.Trickle` that have a request."""

    def create_stream_table(
        self,
        name: str,
        query: str,
        schedule: str | None = ...,
        refresh_mode: str = ...,
        cdc_mode: str | None = ...,
        initialize: bool = ...,
        diamond_consistency: str | None = ...,
        diamond_schedule_policy: str | None = ...,
        *,
        primary_key: str | None = ...,
        protect: bool | None = ...,
        indexes: Sequence[str] | None = ...,
    ) -> RefreshResult | None: ...

    def alter_stream_table(
        self,
        name: str,
        *,
        query: str | None = ...,
        schedule: object = ...,
        refresh_mode: str | None = ...,
        status: str | None = ...,
        cdc_mode: str | None = ...,
        diamond_consistency: str | None = ...,
        diamond_schedule_policy: str | None = ...,
        primary_key: str | None = ...,
        protect: bool | None = ...,
        indexes: Sequence[str] | None = ...,
    ) -> None: ...

    def drop_stream_table(self, name: str, cascade: bool = ...) -> list[str]: ...

    def refresh_stream_table(self, name: str, *, full: bool = ...) -> RefreshResult: ...

    def repair(self, *names: str) -> list[Repair]: ...


@dataclass(frozen=True, slots=True)
class Request:
    """A row of pgt_requests that is to be carried out. Anyone may have written its arguments, so they are checked."""

    id: int
    kind: str
    args: Mapping[str, object]
    requested_by: str
    search_path: str
    settings: Mapping[str, str]
    attempts: int
    created_at: datetime

    def given(self, *names: str) -> dict[str, Any]:
        """Those of the arguments that are there."""
        found = {name: self.args[name] for name in names if name in self.args}
        for name, value in found.items():
            if not (_is_list(value) if name == "indexes" else isinstance(value, bool if name in _FLAGS else str)):
                raise UsageError(
                    f"request {self.id}: {name} cannot be {json.dumps(value)}", code="PT015", hint=_BY_FUNCTION
                )
        return found

    @property
    def caller(self) -> Caller:
        """The session that asked: names and queries mean what they meant there."""
        return Caller(self.search_path, self.settings)

    def required(self, name: str) -> str:
        if name not in self.args:
            raise UsageError(f"request {self.id} has no {name}", code="PT015", hint=_BY_FUNCTION)
        return str(self.given(name)[name])


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def waiting(conn: Connection) -> bool:
    """Whether there is anything to carry out, or to take up again."""
    row = conn.execute(sql.SQL("SELECT EXISTS ({})").format(_OURS), ()).fetchone()
    return row is not None and bool(row[0])


def carry_out(
    conn: Connection, executor: Executor, fence: Fence | None = None, began: Callable[[Request], None] | None = None
) -> int:
    """Carries out what is pending, oldest first; answers how many. `conn` is the one `executor` works on; `began` is
    told of each one as it begins.

    One service at a time, which its lease sees to: whoever leads knows that what is RUNNING belongs to one that died.
    """
    with fenced(conn, fence):
        _take_up(conn)
    done = 0
    while (request := _next(conn, fence)) is not None:
        if began is not None:
            began(request)
        _finish(conn, request, executor, fence)
        done += 1
    return done


def _take_up(conn: Connection) -> None:
    """Puts back what a service that died was at; one at which it died again and again has failed."""
    failed = sql.SQL(
        "UPDATE pgtrickle.pgt_requests SET state = 'FAILED', finished_at = clock_timestamp(), error_code = 'PT383',"
        " error = format('the service stopped %%s times while it carried this out', attempts),"
        " hint = 'See the log of the service, then ask again.'"
        " WHERE state = 'RUNNING' AND attempts >= %s AND id IN ({})"
    )
    conn.execute(failed.format(_OURS), (MOST_ATTEMPTS,))
    again = sql.SQL("UPDATE pgtrickle.pgt_requests SET state = 'PENDING' WHERE state = 'RUNNING' AND id IN ({})")
    conn.execute(again.format(_OURS), ())


def _next(conn: Connection, fence: Fence | None) -> Request | None:
    columns = sql.SQL(", ").join(sql.Identifier(field.name) for field in fields(Request))
    claim = sql.SQL(
        "UPDATE pgtrickle.pgt_requests SET state = 'RUNNING', attempts = attempts + 1, started_at = clock_timestamp(),"
        " taken_by = session_user WHERE state = 'PENDING' AND id = (SELECT min(id) FROM pgtrickle.pgt_requests"
        " WHERE state = 'PENDING' AND id IN ({ours})) RETURNING {columns}"
    )
    with fenced(conn, fence), conn.cursor(row_factory=class_row(Request)) as cursor:
        return cursor.execute(claim.format(ours=_OURS, columns=columns), ()).fetchone()


def _finish(conn: Connection, request: Request, executor: Executor, fence: Fence | None) -> None:
    """Carries one out and records what became of it; a failure that no one foresaw is recorded and raised."""
    try:
        result = {**_perform(conn, request, executor), **notes_of(conn, request)}
    except Exception as error:
        if conn.closed or conn.broken:
            raise  # it stays RUNNING, and is taken up again
        foreseen = is_known(error) and not isinstance(error, Fault)
        failure = _as_told(error) if foreseen else _unforeseen(error)
        with fenced(conn, fence):
            conn.execute(
                "UPDATE pgtrickle.pgt_requests SET state = 'FAILED', finished_at = clock_timestamp(),"
                " error_kind = %s, error_code = %s, error = %s, error_at = %s, hint = %s WHERE id = %s",
                (kind_of(failure), failure.code, _said(failure), failure.at, failure.hint, request.id),
            )
        _tell("request_failed", request, failure)
        if not foreseen:
            raise
        return
    with fenced(conn, fence):
        conn.execute(
            "UPDATE pgtrickle.pgt_requests SET state = 'DONE', finished_at = clock_timestamp(), result = %s"
            " WHERE id = %s",
            (json.dumps(result), request.id),
        )
    _tell("request_done", request)


def _tell(event: str, request: Request, failure: Error | None = None) -> None:
    """What became of it, for the log."""
    level = logging.INFO if failure is None else logging.WARNING
    table, by = request.args.get("name"), request.requested_by
    say(event, level, error=failure, request=request.id, kind=request.kind, table=table, by=by)


def notes_of(conn: Connection, request: Request) -> dict[str, object]:
    """What who asked should know of a table defined in a session with other settings than ours, and of its capture."""
    if "query" not in request.args:
        return {}
    stream = catalog.by_recorded_name(conn, str(request.args.get("name")))
    sources = {each.source_relid for each in catalog.dependencies(conn, stream.pgt_id)} if stream else set()
    found = (*notes(request.settings), *advice(conn, Settings.load(conn), sources))
    return {"notes": list(found)} if found else {}


def _as_told(error: Exception) -> Error:
    """The failure as one of our errors. What the role may not do has its own code, as on the command line."""
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        hint = error.diag.message_hint or "Ask as the owner of the tables, or have the privilege granted."
        return ServerError(error.diag.message_primary or str(error), code="PT402", hint=hint)
    return as_ours(error)


def _unforeseen(error: Exception) -> StateError:
    return StateError(
        f"{type(error).__name__}: {text_of(error)}",
        code="PT385",
        hint="This is a fault of pgtrickle: see the service's log.",
    )


def _said(failure: Error) -> str:
    return failure.message + (f" ({failure.at})" if failure.at else "")


def _perform(conn: Connection, request: Request, executor: Executor) -> dict[str, object]:
    name = request.required("name")
    rights.require_existing(conn, request.requested_by)
    with acting_for(conn, request.caller):
        if request.kind == "create":
            return _create(conn, request, executor, request.requested_by)
        if request.kind == "drop" and request.attempts > 1 and not _is_there(conn, name):
            return {"dropped": []}  # by the service that died before it could say so
        stream = catalog.resolve(conn, name)
        owner = rights.require_allowed(conn, stream, request.requested_by, request.kind, request.args)
        if request.kind == "drop":
            return {"dropped": executor.drop_stream_table(_full_name(stream), **request.given("cascade"))}
        if request.kind == "refresh":
            return _outcome(executor.refresh_stream_table(_full_name(stream), **request.given("full")))
        if request.kind == "repair":
            return _repaired(executor.repair(_full_name(stream)))
        _alter(conn, request, executor, stream, owner)
        return {}


def _create(conn: Connection, request: Request, executor: Executor, role: str) -> dict[str, object]:
    schema, bare = qualify(conn, parse_name(request.required("name")))
    name = str(Name(schema, bare))
    left = catalog.get(conn, schema, bare)
    if left is not None and _was_made_for(conn, request, left, role):
        executor.drop_stream_table(name)  # it may not be complete
    options = request.given("schedule", "refresh_mode", "cdc_mode", "initialize", *_OF_DIAMONDS, *_OF_TABLE)
    result = executor.create_stream_table(name, request.required("query"), **options)
    try:
        stream = catalog.resolve(conn, name)
        rights.hand_over(conn, stream, role)
    except psycopg.Error:
        executor.drop_stream_table(name)
        raise
    return {} if result is None else _outcome(result)


def _was_made_for(conn: Connection, request: Request, stream: StreamTable, role: str) -> bool:
    """Whether a service that died while it carried out this request has left this stream table."""
    return (
        request.attempts > 1
        and stream.created_at >= request.created_at
        and stream.defining_query == request.required("query")
        and rights.is_ours_or_of(conn, stream, role)
    )


def _alter(conn: Connection, request: Request, executor: Executor, stream: StreamTable, owner: str) -> None:
    given = request.given("query", "schedule", "refresh_mode", "status", "cdc_mode", *_OF_DIAMONDS, *_OF_TABLE)
    executor.alter_stream_table(_full_name(stream), **given)
    altered = catalog.by_id(conn, stream.pgt_id)  # other columns are another table
    if altered is not None:
        rights.hand_over(conn, altered, owner)


def _is_there(conn: Connection, name: str) -> bool:
    try:
        catalog.resolve(conn, name)
    except StateError:
        return False
    return True


def _full_name(stream: StreamTable) -> str:
    return str(Name(stream.pgt_schema, stream.pgt_name))


def _repaired(found: list[Repair]) -> dict[str, object]:
    for each in found:
        if each.error is not None:
            raise each.error
    return {"outcome": found[-1].outcome, "done": [what for each in found for what in each.done]}


def _outcome(result: RefreshResult) -> dict[str, object]:
    return {
        "action": str(result.action),
        "reason": result.reason,
        "rows_inserted": result.rows_inserted,
        "rows_deleted": result.rows_deleted,
        "changes_read": result.changes_read,
        "duration_ms": round(result.duration_ms, 3),
        "phases": {phase: round(ms, 3) for phase, ms in result.phases.items()},
    }
