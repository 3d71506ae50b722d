"""Says how a stream table is maintained: operator tree, delta plan, stages, and each read with the reason for it."""

from __future__ import annotations

from dataclasses import replace

from pgtrickle import db
from pgtrickle.answers import TRUSTING, notes, stored
from pgtrickle.apply import table_options, update_key
from pgtrickle.apply.merge import unique_names
from pgtrickle.capture.buffer import may_read
from pgtrickle.catalog import reader
from pgtrickle.catalog.reader import HistoryRow, StreamTable
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.delta.tree_text import plan as delta_text
from pgtrickle.delta.tree_text import tree as tree_text
from pgtrickle.model import Table
from pgtrickle.physical.flow import Flow, Landing, Physical, Place, needs_stage
from pgtrickle.physical.flow_sql import count_sql, in_order
from pgtrickle.physical.flow_text import Measured, physical_text
from pgtrickle.physical.table_facts import SMALL_CHANGES, TableFactsMap
from pgtrickle.physical.window_parts import Changed
from pgtrickle.query.analyse.analysis import SourceRelation
from pgtrickle.query.clock import values_in
from pgtrickle.refresh import gather_facts as ask
from pgtrickle.refresh.choice import Bounds, choose
from pgtrickle.refresh.clock import settings_at
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.definition.define import rehearse
from pgtrickle.refresh.dry_run import NoRun, dry_run
from pgtrickle.refresh.immediate.indexes import missing
from pgtrickle.refresh.immediate.plan import plan_statement
from pgtrickle.refresh.learned import Learned
from pgtrickle.refresh.plan import plan_delta
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.tick import now
from pgtrickle.refresh.ways import Size
from pgtrickle.refresh.window import Span, Window, at_snapshot

_ANY_WINDOW = "1:1:"
_TYPICAL_CHANGES = 100
_MOST_TOLD = 5
NOTHING_LEARNED = Learned()


def explain_query(connection: Connection, query: str, settings: Settings) -> str:
    """How a stream table of the query would be maintained, or why only FULL refreshes can; refused as `create` is."""
    prepared, mode = rehearse(connection, query, settings)
    if mode.effective == "FULL":
        return f"refresh mode\n  FULL: {mode.reason}\n"
    return _sections(connection, prepared, {}, _any_window(connection, prepared))


def explain_stream_table(connection: Connection, stream: StreamTable, prepared: Prepared) -> str:
    """How the stream table is maintained, with the reads its next refresh would choose for what is captured by now, or
    for a supposed number of changes where this role may not read what is captured."""
    said = _session(stream)
    if stream.effective_mode == "FULL":
        return f"refresh mode\n  FULL: {stream.mode_reason}\n{_text(_of_table(connection, stream, prepared))}{said}"
    if stream.is_immediate:
        kept = "refresh mode\n  IMMEDIATE: kept in the writers' own transactions, by triggers on its sources\n"
        return f"{kept}{_immediate_sections(connection, prepared, stream)}{said}"
    since = {table.oid: stream.since(table.oid in prepared.stacked) for table in prepared.sources}
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        moment = now(connection)
        db.use_settings(connection, settings_at(stream.settings, moment.at, stream.data_timestamp))
        window = at_snapshot(Connections.single(connection), since, moment.snapshot)
        seen = window.pending() if may_read(connection, since) else {}
        changes = {oid: found.changes for oid, found in seen.items()}
        learned = Learned.stored(*reader.refresh_costs(connection, stream.pgt_id))
        sections = _sections(
            connection, prepared, changes, _as_refreshed(window), stream.refresh_mode, learned, stream=stream
        )
        return sections + said + _last_refreshes(connection, stream)


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


def missing_indexes(connection: Connection, prepared: Prepared, *, immediate: bool = False) -> tuple[str, ...]:
    """The statements that make indexes by which a refresh of a few changes, or a writer's statement, would read its
    other sources for less."""
    if prepared.compiled.tree is None:
        return ()
    oids = [table.oid for table in prepared.sources]
    if immediate:
        facts = ask.gather(connection, oids, {})
        return tuple(f"{each};" for each in missing(prepared, facts, _statement_plans(prepared, facts).values()))
    facts = ask.gather(connection, oids, dict.fromkeys(oids, _TYPICAL_CHANGES))
    window, scratch = _any_window(connection, prepared), unique_names()
    found: dict[str, None] = {}
    for oid in oids:
        only = TableFactsMap(facts.tables, {oid: _TYPICAL_CHANGES})
        physical = plan_delta(prepared, only, window, Changed(frozenset({oid})), scratch)
        found |= dict.fromkeys(f"{choice.missing};" for choice in physical.choices if choice.missing)
    return tuple(found)


def _statement_plans(prepared: Prepared, facts: TableFactsMap) -> dict[Table, Physical]:
    """What a writer's statement on each source runs, in IMMEDIATE mode."""
    return {
        table: plan_statement(prepared, facts, [table.oid], unique_names(), lambda scan: scan.table.qualified)
        for table in prepared.sources
    }


def _session(stream: StreamTable) -> str:
    """The settings that the query is evaluated under, and what is not as it was where the table was defined."""
    values = ", ".join(f"{name} {value}" for name, value in stored(stream.settings).items())
    promised = "trust_stable_functions: what bodies of STABLE functions do not prove is taken as promised"
    lines = [values, *notes(stream.settings), *([promised] if TRUSTING in stream.settings else [])]
    return "evaluated under\n" + "".join(f"  {line}\n" for line in lines)


def _last_refreshes(connection: Connection, stream: StreamTable) -> str:
    """What the last differential refresh really read and wrote, to hold the estimates against; and what the last
    refreshes were expected to take, and took."""
    history = reader.history(connection, stream.pgt_id)
    told, parts = list(filter(None, map(_expected_and_taken, history))), list[str]()
    if told:
        parts += ["last refreshes, the newest first", *told[:_MOST_TOLD]]
    for past in history:
        if past.action == "DIFFERENTIAL" and past.status == "COMPLETED":
            written = f"{past.rows_inserted} rows inserted, {past.rows_deleted} deleted"
            parts += ["last differential refresh", f"  {past.changes_read} changes read, {written}"]
            break
    return "".join(f"{line}\n" for line in parts)


def _expected_and_taken(past: HistoryRow) -> str | None:
    expected = (past.expected or {}).get(past.way or "")
    if expected is None or past.took_ms is None:
        return None
    server = "" if past.server_cpu_ms is None else f", {past.server_cpu_ms:.0f} ms of the server's CPU"
    return f"  {past.way}: {expected:.0f} ms expected, took {past.took_ms:.0f} ms{server}"


def _any_window(connection: Connection, prepared: Prepared) -> Window:
    """One of a table of which nothing is captured."""
    spans = {table.oid: Span(_ANY_WINDOW, _ANY_WINDOW) for table in prepared.sources}
    return Window(_ANY_WINDOW, Connections.single(connection), spans)


def _as_refreshed(window: Window) -> Window:
    """Buffers are read at a later snapshot where changes are decoded into them."""
    places = {oid: Place.SNAPSHOT if span.is_complete else Place.LATE for oid, span in window.spans.items()}
    return replace(window, spans={oid: replace(span, place=places[oid]) for oid, span in window.spans.items()})


def _sections(
    connection: Connection,
    prepared: Prepared,
    changes: dict[int, int],
    window: Window,
    refresh_mode: str = "AUTO",
    learned: Learned = NOTHING_LEARNED,
    *,
    stream: StreamTable | None = None,
) -> str:
    """With no changes waiting, each source is taken to have a hundred; else what waits is counted, too."""
    oids = [table.oid for table in prepared.sources]
    supposed = not any(changes.values())
    if supposed:
        changes = dict.fromkeys(oids, _TYPICAL_CHANGES)
    facts = ask.gather(connection, oids, changes)
    parts = _algebra(prepared)
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
    if refresh_mode == "AUTO":
        size = Size(sum(changes.values()), sum(each.rows for each in facts.tables.values()), len(prepared.states) + 1)
        parts.append((f"ways ({note})", _ways(size, learned, Settings.load(connection))))
    if stream is not None:
        parts += _of_table(connection, stream, prepared)
    compared = [source for source in prepared.compiled.analysis.sources if source.is_compared]
    if compared:
        parts.append(("compared sources", "\n".join(map(_comparison, compared))))
    return _text([*parts, *_of_policies(connection, oids)])


def _immediate_sections(connection: Connection, prepared: Prepared, stream: StreamTable) -> str:
    """What a statement on each source reads, and the indexes that are missing for that."""
    oids = [table.oid for table in prepared.sources]
    facts, parts = ask.gather(connection, oids, {}), _algebra(prepared)
    plans = _statement_plans(prepared, facts)
    for table, plan in plans.items():
        parts.append((f"what a row of {table} costs its writer", physical_text(plan, estimated=False)))
    parts.append(("missing indexes", "\n".join(missing(prepared, facts, plans.values())) or "none"))
    return _text([*parts, *_of_table(connection, stream, prepared), *_of_policies(connection, oids)])


def _algebra(prepared: Prepared) -> list[tuple[str, str]]:
    every = frozenset(table.oid for table in prepared.sources)
    return [
        ("operators", tree_text(prepared.tree)),
        ("delta plan, every source changed", delta_text(differentiate(prepared.tree, every))),
    ]


def _of_table(connection: Connection, stream: StreamTable, prepared: Prepared) -> list[tuple[str, str]]:
    told = _table_options(connection, stream, prepared)
    return [("table", told)] if told else []


def _of_policies(connection: Connection, oids: list[int]) -> list[tuple[str, str]]:
    unfiltered = _unfiltered(connection, oids)
    return [("row-level security", unfiltered)] if unfiltered else []


def _text(parts: list[tuple[str, str]]) -> str:
    return "".join(f"{title}\n{_indented(text)}\n" for title, text in parts)


def _ways(size: Size, learned: Learned, settings: Settings) -> str:
    """Those that AUTO may take, what is expected of each and by what, and which it would take."""
    bounds = Bounds(settings.learn_costs, settings.postgres_rows, settings.spare_source)
    choice = choose("AUTO", size, learned, bounds, whole=False)
    lines = [f"{way}: about {ms:.0f} ms, by {_told(learned.known(way, size))}" for way, ms in choice.expected.items()]
    return "\n".join([*lines, f"{choice.way} would be taken" + (", to try it" if choice.tried else "")])


def _told(refreshes: int) -> str:
    return f"{refreshes} refreshes like this" if refreshes else "statistics and what other refreshes took"


def _table_options(connection: Connection, stream: StreamTable, prepared: Prepared) -> str:
    """Its primary key, with whether the query alone sees to it, its indexes, and whether it is protected."""
    lines = []
    if key := table_options.primary_key(connection, stream.pgt_relid):
        names = [column.name for column in prepared.storage.columns]
        tree = prepared.compiled.tree
        certain = None if tree is None else update_key.of_query(connection, tree)
        sure = certain is not None and {names[place] for place in certain} <= set(key)
        lines.append(
            f"primary key {', '.join(key)}: "
            + ("the query gives no two rows with the same" if sure else "a refresh that gives two rows the same fails")
        )
    lines += [f"index {index}" for index in stream.indexes]
    if table_options.is_protected(connection, stream.pgt_relid):
        lines.append("protected: writes by others than refreshes are refused")
    return "\n".join(lines)


def _comparison(source: SourceRelation) -> str:
    when = (
        "at each refresh, or when pg_trickle.compare_interval has passed" if source.kind == "f" else "after a REFRESH"
    )
    copy = "a copy of it" if source.copy is None else f"its copy {source.copy}"
    return f"{source.table}, of which no trigger tells changes, is read whole and compared with {copy} {when}"


def _unfiltered(connection: Connection, oids: list[int]) -> str:
    """That policies of these sources do not count, as it is not those who read the stream table that read them."""
    found = connection.execute(
        "SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname), current_user::text FROM pg_catalog.pg_class AS c"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE c.oid = ANY(%s::oid[]) AND c.relrowsecurity ORDER BY 1",
        (oids,),
    ).fetchall()
    return "\n".join(
        f"{table} is read as {role}, to whom its policies do not apply: whoever reads the stream table sees all rows"
        for table, role in found
    )


def _counted(connection: Connection, physical: Physical) -> dict[Flow, Measured]:
    """The rows of each flow for what waits now, but for those that take what a stage before them computes."""
    landed = (stage.input for stage in physical.stages if isinstance(stage, Landing))
    flows = [flow for flow in in_order(landed, {}) if not needs_stage(flow)]
    row = connection.execute(db.statement(count_sql(flows, {}))).fetchone()
    assert row is not None
    return {flow: Measured(int(str(rows))) for flow, rows in zip(flows, row, strict=True)}


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
