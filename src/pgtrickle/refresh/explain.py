"""Says how a stream table is maintained: operator tree, delta plan, stages, and each read with the reason for it."""

from __future__ import annotations

from pgtrickle.capture import window
from pgtrickle.catalog import reader
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection, scalar
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.delta.explain import plan as delta_text
from pgtrickle.query.compile import compile_query
from pgtrickle.query.explain import tree as tree_text
from pgtrickle.refresh import facts as ask
from pgtrickle.refresh.actual import Actual
from pgtrickle.refresh.plan import SMALL_CHANGES, Window, plan_delta
from pgtrickle.refresh.prepared import Prepared, prepare
from pgtrickle.spark.explain import physical_text
from pgtrickle.spark.facts import Facts

_ANY_WINDOW = "1:1:"
_TYPICAL_CHANGES = 100


def explain_query(connection: Connection, query: str) -> str:
    """How the query would be maintained, or why only FULL refreshes can."""
    with connection.transaction():
        compiled = compile_query(connection, query)
        prepared = prepare(connection, 0, "", "query", compiled)
    if compiled.tree is None:
        return f"refresh mode\n  FULL: {compiled.refusal}\n"
    return _sections(connection, prepared, {}, _ANY_WINDOW)


def explain_stream_table(connection: Connection, stream: StreamTable, prepared: Prepared) -> str:
    """How the stream table is maintained, with the reads its next refresh would choose."""
    if stream.effective_mode == "FULL":
        return f"refresh mode\n  FULL: {stream.mode_reason}\n"
    pending = window.pending(connection, [table.oid for table in prepared.sources], stream.frontier)
    changes = {oid: found.changes for oid, found in pending.items()}
    return _sections(connection, prepared, changes, stream.frontier) + _last_refresh(connection, stream)


def _last_refresh(connection: Connection, stream: StreamTable) -> str:
    """What the last differential refresh really read and wrote, to hold the estimates against."""
    for past in reader.history(connection, stream.pgt_id):
        if past.action == "DIFFERENTIAL" and past.status == "COMPLETED":
            written = f"{past.rows_inserted} rows inserted, {past.rows_deleted} deleted"
            return f"last differential refresh\n  {past.changes_read} changes read, {written}\n"
    return ""


def _sections(connection: Connection, prepared: Prepared, changes: dict[int, int], frontier: str) -> str:
    """With no changes waiting, each source is taken to have a hundred; else what waits is counted, too."""
    oids = [table.oid for table in prepared.sources]
    supposed = not any(changes.values())
    if supposed:
        changes = dict.fromkeys(oids, _TYPICAL_CHANGES)
    facts = ask.gather(connection, oids, changes)
    parts = [
        ("operators", tree_text(prepared.tree)),
        ("delta plan, every source changed", delta_text(differentiate(prepared.tree, frozenset(oids)))),
    ]
    note = f"{_TYPICAL_CHANGES} changes supposed" if supposed else "changes now waiting"
    for table in prepared.sources:
        if changes.get(table.oid):
            only = Facts(facts.tables, {table.oid: facts.changes[table.oid]})
            physical = (
                _supposed(prepared, only, frontier) if supposed else _waiting(connection, prepared, only, frontier)
            )
            parts.append((f"reads when only {table} changed ({note})", physical))
    return "\n".join(f"{title}\n{_indented(text)}" for title, text in parts) + "\n"


def _supposed(prepared: Prepared, facts: Facts, frontier: str) -> str:
    return physical_text(plan_delta(prepared, facts, Window(frontier, frontier, frozenset(facts.changes))))


def _waiting(connection: Connection, prepared: Prepared, facts: Facts, frontier: str) -> str:
    """The plan with the rows that it would really read, if they are few enough to look."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        until = str(scalar(connection, "SELECT pg_current_snapshot()::text"))
        physical = plan_delta(prepared, facts, Window(frontier, until, frozenset(facts.changes)))
        if sum(facts.changes.values()) > SMALL_CHANGES:
            return physical_text(physical)
        return physical_text(physical, Actual(connection).count)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
