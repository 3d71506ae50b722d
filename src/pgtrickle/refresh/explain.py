"""Says how a stream table is maintained: operator tree, delta plan, stages, and each read with the reason for it."""

from __future__ import annotations

from dataclasses import replace

from pgtrickle import db
from pgtrickle.answers import notes, stored
from pgtrickle.apply.merge import unique_names
from pgtrickle.capture.buffer import may_read
from pgtrickle.catalog import reader
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.delta.tree_text import plan as delta_text
from pgtrickle.delta.tree_text import tree as tree_text
from pgtrickle.physical.flow import Flow, Landing, Physical, Place, needs_stage
from pgtrickle.physical.flow_sql import count_sql, in_order
from pgtrickle.physical.flow_text import Measured, physical_text
from pgtrickle.physical.table_facts import SMALL_CHANGES, TableFactsMap
from pgtrickle.physical.window_parts import Changed
from pgtrickle.query.clock import values_in
from pgtrickle.refresh import gather_facts as ask
from pgtrickle.refresh.clock import settings_at
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.definition.define import rehearse
from pgtrickle.refresh.dry_run import NoRun, dry_run
from pgtrickle.refresh.plan import plan_delta
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.tick import now
from pgtrickle.refresh.window import Span, Window, at_snapshot

_ANY_WINDOW = "1:1:"
_TYPICAL_CHANGES = 100


def explain_query(connection: Connection, query: str) -> str:
    """How a stream table of the query would be maintained, or why only FULL refreshes can; refused as `create` is."""
    prepared, mode = rehearse(connection, query)
    if mode.effective == "FULL":
        return f"refresh mode\n  FULL: {mode.reason}\n"
    spans = {table.oid: Span(_ANY_WINDOW, _ANY_WINDOW) for table in prepared.sources}
    return _sections(connection, prepared, {}, Window(_ANY_WINDOW, Connections.single(connection), spans))


def explain_stream_table(connection: Connection, stream: StreamTable, prepared: Prepared) -> str:
    """How the stream table is maintained, with the reads its next refresh would choose for what is captured by now, or
    for a supposed number of changes where this role may not read what is captured."""
    said = _session(stream)
    if stream.effective_mode == "FULL":
        return f"refresh mode\n  FULL: {stream.mode_reason}\n{said}"
    since = {table.oid: stream.since(table.oid in prepared.upstream) for table in prepared.sources}
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        moment = now(connection)
        db.use_settings(connection, settings_at(stream.settings, moment.at, stream.data_timestamp))
        window = at_snapshot(Connections.single(connection), since, moment.snapshot)
        seen = window.pending() if may_read(connection, since) else {}
        changes = {oid: found.changes for oid, found in seen.items()}
        sections = _sections(connection, prepared, changes, _as_refreshed(window))
        return sections + said + _last_refresh(connection, stream)


def explain_analyzed(refresher: Refresher, stream: StreamTable) -> str:
    """The plan for the changes now waiting, run by plain SQL and undone: the rows of each flow and stage, and the time
    each took."""
    with dry_run(refresher, stream.pgt_id) as found:
        if isinstance(found, NoRun):
            return f"nothing to run\n  {found.reason}\n"
        inserted, deleted = found.changes()
        text = physical_text(found.physical, found.flows, found.stages)
        took = sum(stage.ms or 0.0 for stage in found.stages)
    title = "run by PostgreSQL for the changes now waiting, and undone"
    return f"{title}\n{_indented(text)}\nresult\n  {inserted} rows to insert, {deleted} to delete; {took:.1f} ms\n"


def _session(stream: StreamTable) -> str:
    """The settings that the query is evaluated under, and what is not as it was where the table was defined."""
    values = ", ".join(f"{name} {value}" for name, value in stored(stream.settings).items())
    lines = [values, *notes(stream.settings)]
    return "evaluated under\n" + "".join(f"  {line}\n" for line in lines)


def _last_refresh(connection: Connection, stream: StreamTable) -> str:
    """What the last differential refresh really read and wrote, to hold the estimates against."""
    for past in reader.history(connection, stream.pgt_id):
        if past.action == "DIFFERENTIAL" and past.status == "COMPLETED":
            written = f"{past.rows_inserted} rows inserted, {past.rows_deleted} deleted"
            return f"last differential refresh\n  {past.changes_read} changes read, {written}\n"
    return ""


def _as_refreshed(window: Window) -> Window:
    """Buffers are read at a later snapshot where changes are decoded into them."""
    places = {oid: Place.SNAPSHOT if span.is_complete else Place.LATE for oid, span in window.spans.items()}
    return replace(window, spans={oid: replace(span, place=places[oid]) for oid, span in window.spans.items()})


def _sections(connection: Connection, prepared: Prepared, changes: dict[int, int], window: Window) -> str:
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
    scratch = unique_names()
    note = f"{_TYPICAL_CHANGES} changes supposed" if supposed else "changes now waiting"
    for table in prepared.sources:
        if changes.get(table.oid):
            only = TableFactsMap(facts.tables, {table.oid: facts.changes[table.oid]})
            physical = plan_delta(prepared, only, window, Changed(frozenset({table.oid})), scratch)
            few = not supposed and changes[table.oid] <= SMALL_CHANGES
            text = physical_text(physical, _counted(connection, physical)) if few else physical_text(physical)
            parts.append((f"reads when only {table} changed ({note})", text))
    clock = frozenset(value.number for value in values_in(prepared.tree))
    if clock:
        physical = plan_delta(prepared, TableFactsMap(facts.tables), window, Changed(clock), scratch)
        parts.append(("reads when only the clock moved", physical_text(physical)))
    return "\n".join(f"{title}\n{_indented(text)}" for title, text in parts) + "\n"


def _counted(connection: Connection, physical: Physical) -> dict[Flow, Measured]:
    """The rows of each flow for what waits now, but for those that take what a stage before them computes."""
    landed = (stage.input for stage in physical.stages if isinstance(stage, Landing))
    flows = [flow for flow in in_order(landed, {}) if not needs_stage(flow)]
    row = connection.execute(db.statement(count_sql(flows, {}))).fetchone()
    assert row is not None
    return {flow: Measured(int(str(rows))) for flow, rows in zip(flows, row, strict=True)}


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
