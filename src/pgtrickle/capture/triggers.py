"""Trigger capture: one function and four triggers a source, writing each statement's changes to its buffer.

`attach` and `detach` are called by the API when a stream table comes or goes, and by the refresh after DDL.

Why an UPDATE is captured exactly though SQL does not say which old row became which new one: the two transition tables
are paired by position, which in practice is the same row, but nothing depends on it. A pair (o, n) is written as
−o +n, and over all pairs that sums to −Σold +Σnew whatever the pairing. A pair is left out only if the used columns
of o and n are the same bytes (`*=`, the record image operator, under which 1.0 and 1.00 differ): −o +n is nothing.
The join is FULL, as a row moved to a partition whose trigger skips it has an old row and no new one.

Why the function asks the catalog each time (about 10 µs a statement): after DDL that it does not know, a column it
names may be gone, which would fail the user's write, or a partition may have taken rows away, which no trigger sees.
It then writes a T row instead, and the consumers compute their tables anew. A row trigger pays this for each row,
one reason more to have statement triggers wherever they see everything.

Why a wide source has another function (`sql/update_wide.sql`): a row of the buffer with both images may not fit a page,
and the user's UPDATE would fail. There an update is a deletion and an insertion, each with one image. Where even that
does not fit (the source's own row just did), a T row is written. That takes a subtransaction, which others do without.

A source captured from the WAL keeps its triggers, disabled (`disarm`), so that going back is quick (`arm`). That of
TRUNCATE stays enabled: it costs writers nothing, and sees what the WAL does not tell, a partition truncated by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from pgtrickle.capture import buffer, copies, eligibility, mode_change, named_locks
from pgtrickle.capture.locks import GIVE_UP_AFTER_S, LockRequest, lock_all
from pgtrickle.capture.modes import CaptureMode
from pgtrickle.capture.source import Source, SourceColumn, read_source
from pgtrickle.model import TABLEOID, Table

_TEMPLATE, _UPDATE, _UPDATE_WIDE, _TOO_LARGE = (
    (Path(__file__).parent / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    for name in ("capture", "update", "update_wide", "too_large")
)
_EVENTS: Final = ("insert", "update", "delete", "truncate")
_TRANSITIONS: Final = {
    "insert": "REFERENCING NEW TABLE AS new_rows",
    "update": "REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows",
    "delete": "REFERENCING OLD TABLE AS old_rows",
    "truncate": "",
}

_FOLLOWED: Final = (
    "SELECT FROM pgtrickle.pgt_followers AS f JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)"
    " WHERE t.pgt_relid = %(oid)s AND f.expired_at IS NULL"
)
"""The source is a stream table that someone outside of the database follows."""


@dataclass(frozen=True, slots=True)
class _Trigger:
    """A trigger of ours, and the table it is on."""

    relation: int
    table: sql.Identifier
    name: sql.Identifier
    truncates: bool


@dataclass(frozen=True, slots=True)
class _Job:
    """What attaching one source comes to: the columns its buffer lacks, whether it exists, the function's text.

    `strays` are triggers on tables that have left the source: a detached partition's rows are no longer its rows.
    `intact` is false if the source is captured from the WAL, and was taken out of the publication, lost its slot, or is
    no longer such that the WAL tells all.
    """

    source: Source
    mode: CaptureMode
    intact: bool
    columns: tuple[SourceColumn, ...]
    buffer_exists: bool
    unfit: tuple[SourceColumn, ...]
    body: str
    triggers_stand: bool
    strays: tuple[_Trigger, ...]

    @property
    def nothing_to_do(self) -> bool:
        return self.buffer_exists and not self.unfit and self.triggers_stand and not self.strays and self.intact


def require_capturable(conn: psycopg.Connection[Any], table: Table, columns: Collection[str] = ()) -> None:
    """Raise Unsupported if the changes of these columns of `table`, and of those that others need, cannot be captured
    exactly, or not by this role."""
    source = read_source(conn, table)
    row = conn.execute(
        "SELECT columns FROM pgtrickle.pgt_change_tracking WHERE source_relid = %s", (table.oid,)
    ).fetchone()
    there = {each.name for each in source.attributes}
    captured = set() if row is None else there & set(row[0])
    buffer.require_room(source.table, source.named(captured | set(columns)))


def attach(
    conn: psycopg.Connection[Any], table: Table, columns: Collection[str], *, trigger_mode: str = "statement"
) -> bool:
    """Capture at least the given columns of one source; returns whether something was changed. See `attach_all`."""
    return bool(attach_all(conn, {table: columns}, trigger_mode=trigger_mode))


def attach_all(
    conn: psycopg.Connection[Any],
    wanted: Mapping[Table, Collection[str]],
    *,
    trigger_mode: str = "statement",
    give_up_after_s: float = GIVE_UP_AFTER_S,
) -> tuple[Table, ...]:
    """Capture at least the given columns of each source; returns those sources that something was changed for.

    Part of the caller's transaction, if there is one. Takes SHARE ROW EXCLUSIVE on the sources that need work, all at
    once and briefly, so that when it commits every earlier writer is done and every later one fires the triggers. A
    source that is already captured as wanted is not locked. One that is captured from the WAL goes back to triggers if
    it needs work, so that no decoded row lacks a column; it may return to the WAL later.
    """
    with conn.transaction():
        serialise(conn, [table.oid for table in wanted])
        jobs = [_plan(conn, table, columns, trigger_mode) for table, columns in wanted.items()]
        todo = [job for job in jobs if not job.nothing_to_do]
        if todo:
            lock_all(conn, [request for job in todo for request in _locks(job)], give_up_after_s=give_up_after_s)
        for job in todo:  # planned again: only now can no DDL come in between
            job = _plan(conn, job.source.table, wanted[job.source.table], trigger_mode)
            if job.buffer_exists and job.mode is not CaptureMode.WAL and not stand(conn, job.source.table.oid):
                buffer.mark(conn, job.source.table.oid)  # once they stand again, other consumers could not tell
            _carry_out(conn, job)
            if not job.buffer_exists and _has_readers(conn, job.source.table.oid):
                buffer.mark(conn, job.source.table.oid)  # someone dropped it, with changes that others had not read
            if job.mode is CaptureMode.WAL:
                mode_change.to_triggers(
                    conn, job.source.table.oid, _why_back(job), failed=not job.intact, lossy=not job.intact
                )
        mode_change.follow(conn, [table.oid for table in wanted])
        return tuple(job.source.table for job in todo)


def arm(conn: psycopg.Connection[Any], source_oid: int, *, give_up_after_s: float = GIVE_UP_AFTER_S) -> None:
    """Lock the source as `attach_all` does and make its triggers fire, whatever became of them. For `handover.py`,
    which records in the same transaction that they count."""
    row = conn.execute(
        "SELECT k.columns, k.trigger_level, n.nspname, c.relname FROM pgtrickle.pgt_change_tracking AS k"
        " LEFT JOIN pg_class AS c ON c.oid = k.source_relid LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE k.source_relid = %s",
        (source_oid,),
    ).fetchone()
    assert row is not None, "the caller has read its mode"
    columns, level, schema, name = row
    table = Table(source_oid, schema or "", name or str(source_oid))
    trigger_mode = level.lower()
    there = {each.name for each in read_source(conn, table, trigger_mode=trigger_mode).attributes}
    wanted = there & set(columns)
    lock_all(conn, _locks(_plan(conn, table, wanted, trigger_mode)), give_up_after_s=give_up_after_s)
    _carry_out(conn, _plan(conn, table, wanted, trigger_mode))


def disarm(conn: psycopg.Connection[Any], source_oid: int) -> None:
    """Disable the triggers that see rows, under the caller's SHARE ROW EXCLUSIVE lock, which is all it takes."""
    for each in _triggers_of(conn, source_oid):
        if not each.truncates:
            conn.execute(sql.SQL("ALTER TABLE ONLY {} DISABLE TRIGGER {}").format(each.table, each.name))


def stand(conn: psycopg.Connection[Any], source_oid: int) -> bool:
    """Whether all triggers of the source are there, enabled as we enable them, and see all who write to it; and no
    crash has emptied it."""
    row = conn.execute(
        "SELECT (SELECT count(*) FROM pg_trigger WHERE tgfoid = to_regproc(%s) AND tgenabled = 'A') = trigger_count"
        " AND pgtrickle_internal.sees_all_writers(source_relid, trigger_level)"
        " AND pgtrickle_internal.outlived_crashes(source_relid, unlogged)"
        " FROM pgtrickle.pgt_change_tracking WHERE source_relid = %s",
        (f"{buffer.SCHEMA}.{buffer.function_name(source_oid)}", source_oid),
    ).fetchone()
    return row is not None and bool(row[0])


def detach(conn: psycopg.Connection[Any], source_oid: int, *, give_up_after_s: float = GIVE_UP_AFTER_S) -> bool:
    """Stop to capture one source if no stream table needs it any more; returns whether it did. See `detach_all`."""
    return bool(detach_all(conn, [source_oid], give_up_after_s=give_up_after_s))


def detach_all(
    conn: psycopg.Connection[Any], source_oids: Collection[int], *, give_up_after_s: float = GIVE_UP_AFTER_S
) -> tuple[int, ...]:
    """Remove triggers, function, buffer and publication of those sources that no stream table needs any more; returns
    which.

    Dropping a trigger needs ACCESS EXCLUSIVE on the source, taken as briefly: of all sources at once, so that none is
    held while another is waited for. A source may be gone already. The slot cannot go in a transaction that may be
    rolled back: call `slot.drop_if_unused` after it.
    """
    with conn.transaction():
        serialise(conn, list(source_oids))
        unused = [oid for oid in sorted(source_oids) if not _is_used(conn, oid)]
        triggers = {oid: _triggers_of(conn, oid) for oid in unused}
        tables = {each.relation: each.table for found in triggers.values() for each in found}
        locks = [LockRequest(table, "ACCESS EXCLUSIVE") for table in tables.values()]
        locks += [
            LockRequest(buffer.buffer_identifier(oid), "ACCESS EXCLUSIVE", wait=False)
            for oid in unused
            if buffer.exists(conn, oid)
        ]
        lock_all(conn, locks, give_up_after_s=give_up_after_s)
        for oid in unused:
            _remove(conn, oid, triggers[oid])
        return tuple(unused)


def _has_readers(conn: psycopg.Connection[Any], source_oid: int) -> bool:
    """Whether someone goes on from changes of the source that it counts on to be in the buffer."""
    return bool(
        conn.execute(
            "SELECT FROM pgtrickle.pgt_dependencies JOIN pgtrickle.pgt_stream_tables USING (pgt_id)"
            " WHERE source_relid = %(oid)s AND effective_mode = 'DIFFERENTIAL' AND is_populated AND NOT needs_reinit"
            f" UNION ALL {_FOLLOWED} LIMIT 1",
            {"oid": source_oid},
        ).rowcount
    )


def _is_used(conn: psycopg.Connection[Any], source_oid: int) -> bool:
    return bool(
        conn.execute(
            "SELECT FROM pgtrickle.pgt_dependencies JOIN pgtrickle.pgt_stream_tables USING (pgt_id)"
            f" WHERE source_relid = %(oid)s AND effective_mode = 'DIFFERENTIAL' UNION ALL {_FOLLOWED} LIMIT 1",
            {"oid": source_oid},
        ).rowcount
    )


def _remove(conn: psycopg.Connection[Any], source_oid: int, triggers: Sequence[_Trigger]) -> None:
    """All that capture of the source has made. The caller has locked what is dropped."""
    _drop_triggers(conn, triggers)
    conn.execute(sql.SQL("DROP FUNCTION IF EXISTS {}()").format(_function(source_oid)))
    buffer.drop(conn, source_oid)
    mode_change.unpublish(conn, source_oid)
    mode_change.restore_identity(conn, source_oid)
    conn.execute("DELETE FROM pgtrickle.pgt_handovers WHERE source_relid = %s", (source_oid,))
    conn.execute("DELETE FROM pgtrickle.pgt_change_tracking WHERE source_relid = %s", (source_oid,))
    copies.drop_copy(conn, source_oid)
    conn.execute("DELETE FROM pgtrickle.pgt_unlogged WHERE source_relid = %s", (source_oid,))
    named_locks.remove(conn, f"capture {source_oid}")


def serialise(conn: psycopg.Connection[Any], source_oids: Sequence[int]) -> None:
    """One attach, detach or handover of a source at a time: the last consumer that leaves must see one just coming."""
    for oid in sorted(source_oids):
        named_locks.lock(conn, f"capture {oid}")


def _plan(conn: psycopg.Connection[Any], table: Table, wanted: Collection[str], trigger_mode: str) -> _Job:
    source = read_source(conn, table, trigger_mode=trigger_mode)
    row = conn.execute(
        "SELECT columns, cdc_mode, source_relid IN (SELECT p.source_relid FROM pgtrickle_internal.pgt_published AS p)"
        " AND EXISTS (SELECT FROM pgtrickle_internal.pgt_slot AS s WHERE s.alive)"
        " FROM pgtrickle.pgt_change_tracking WHERE source_relid = %s",
        (table.oid,),
    ).fetchone()
    mode = CaptureMode.TRIGGER if row is None else CaptureMode(row[1])
    there = {each.name for each in source.attributes}
    captured = there & set(row[0]) if row is not None else set()
    if not source.has_heirs:
        captured.discard(TABLEOID)
    columns = source.named(captured | set(wanted))
    if source.has_heirs and any(column.name == TABLEOID for column in columns):
        source = source.apart()
    buffer.require_room(source.table, columns)
    exists = buffer.exists(conn, table.oid)
    body = _body(conn, source, columns)
    return _Job(
        source,
        mode,
        mode is not CaptureMode.WAL or (row is not None and bool(row[2]) and eligibility.still_holds(conn, table.oid)),
        columns,
        exists,
        buffer.unfit(conn, table.oid, columns) if exists else columns,
        body,
        _triggers_stand(conn, source, body, truncate_only=mode is CaptureMode.WAL)
        and (mode is CaptureMode.WAL or row is None or _outlived_crashes(conn, table.oid)),
        tuple(
            each
            for each in _triggers_of(conn, table.oid)
            if each.relation not in {table.oid, *(descendant.oid for descendant in source.descendants)}
        ),
    )


def _locks(job: _Job) -> list[LockRequest]:
    """The source, then its buffer: with the source locked no writer holds the buffer, only a refresh reading it may."""
    table = job.source.table
    locks = [LockRequest(sql.Identifier(table.schema, table.name), "SHARE ROW EXCLUSIVE")]
    if job.buffer_exists and job.unfit:
        locks.append(LockRequest(buffer.buffer_identifier(table.oid), "ACCESS EXCLUSIVE", wait=False))
    return locks + [LockRequest(each.table, "ACCESS EXCLUSIVE") for each in job.strays]


def _carry_out(conn: psycopg.Connection[Any], job: _Job) -> None:
    oid = job.source.table.oid
    if not job.buffer_exists:
        buffer.create(conn, oid, job.columns)
    elif job.unfit and buffer.widen(conn, oid, job.unfit):
        buffer.mark(conn, oid)  # values of the old type are lost to consumers that had not read them
    function = _function(oid)
    conn.execute(
        sql.SQL(
            "CREATE OR REPLACE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
            " SET search_path = pg_catalog, pg_temp AS {}"
        ).format(function, sql.Literal(job.body))
    )
    buffer.share(conn, "TABLE", buffer.buffer_identifier(oid))
    buffer.share(conn, "FUNCTION", function)
    # Or anyone could attach the function to a table of their own and write into the buffer.
    conn.execute(sql.SQL("REVOKE ALL ON FUNCTION {}() FROM PUBLIC").format(function))
    _drop_triggers(conn, job.strays)
    for relation in (job.source.table, *job.source.descendants):
        _create_triggers(conn, relation, job.source)
    conn.execute(
        "INSERT INTO pgtrickle.pgt_change_tracking"
        " (source_relid, buffer_name, columns, trigger_names, trigger_count, trigger_level, unlogged)"
        " VALUES (%s, %s, %s::text[], %s::text[], %s, %s, %s) ON CONFLICT (source_relid) DO UPDATE"
        " SET columns = excluded.columns, trigger_names = excluded.trigger_names,"
        " trigger_count = excluded.trigger_count, trigger_level = excluded.trigger_level, unlogged = excluded.unlogged",
        (
            oid,
            f"{buffer.SCHEMA}.{buffer.buffer_name(oid)}",
            [column.name for column in job.columns],
            [_trigger_name(oid, event) for event in _EVENTS],
            job.source.trigger_count,
            "ROW" if job.source.row_level else "STATEMENT",
            job.source.unlogged,
        ),
    )
    if job.source.unlogged:
        conn.execute("INSERT INTO pgtrickle.pgt_unlogged (source_relid) VALUES (%s) ON CONFLICT DO NOTHING", (oid,))


def _triggers_of(conn: psycopg.Connection[Any], source_oid: int) -> list[_Trigger]:
    """All triggers that call the source's function, wherever they are."""
    return [
        _Trigger(oid, sql.Identifier(schema, table), sql.Identifier(name), truncates)
        for oid, schema, table, name, truncates in conn.execute(
            "SELECT c.oid, n.nspname, c.relname, t.tgname, t.tgtype & 32 <> 0"
            " FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid"
            " JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE t.tgfoid = to_regproc(%s) AND t.tgparentid = 0"
            " ORDER BY c.oid, t.tgname",
            (f"{buffer.SCHEMA}.{buffer.function_name(source_oid)}",),
        )
    ]


def _why_back(job: _Job) -> str:
    if not job.intact:
        return "it was taken out of the publication, lost the slot, or the WAL no longer tells all of its changes"
    return "a stream table uses other columns of it" if job.unfit else "its triggers or its definition changed"


def _drop_triggers(conn: psycopg.Connection[Any], triggers: Sequence[_Trigger]) -> None:
    for each in triggers:
        conn.execute(sql.SQL("DROP TRIGGER {} ON {}").format(each.name, each.table))


def _create_triggers(conn: psycopg.Connection[Any], relation: Table, source: Source) -> None:
    """ENABLE ALWAYS: a session that applies replicated changes (session_replication_role) is a writer too.

    Where there are row triggers, a partitioned table's own never fire, and are there to be counted: the rows are its
    partitions', and so are the triggers that see them."""
    table = sql.Identifier(relation.schema, relation.name)
    for event in _EVENTS:
        by_row = source.row_level and event != "truncate"
        never = by_row and not source.has_rows(relation.oid)
        name = sql.Identifier(_trigger_name(source.table.oid, event))
        conn.execute(
            sql.SQL("CREATE OR REPLACE TRIGGER {} AFTER {} ON {} {} FOR EACH {} {} EXECUTE FUNCTION {}()").format(
                name,
                sql.SQL(event.upper()),
                table,
                sql.SQL("" if by_row else _TRANSITIONS[event]),
                sql.SQL("ROW" if by_row and not never else "STATEMENT"),
                sql.SQL("WHEN (false)" if never else ""),
                _function(source.table.oid),
            )
        )
        conn.execute(sql.SQL("ALTER TABLE ONLY {} ENABLE ALWAYS TRIGGER {}").format(table, name))


def _triggers_stand(conn: psycopg.Connection[Any], source: Source, body: str, *, truncate_only: bool) -> bool:
    """Whether the function is this one and every table of the source has its four triggers, enabled ALWAYS (or only
    that of TRUNCATE)."""
    row = conn.execute(
        "SELECT f.prosrc, (SELECT count(*) FROM pg_trigger AS t WHERE t.tgfoid = f.oid"
        "   AND (t.tgenabled = 'A' OR %s AND t.tgtype & 32 = 0)"
        "   AND t.tgrelid = ANY(%s::oid[]) AND (t.tgqual IS NOT NULL, t.tgtype & 1 = 1) = ("
        "     SELECT r.by_row AND c.relkind = 'p', r.by_row AND c.relkind <> 'p' FROM pg_class AS c,"
        "     (SELECT %s AND t.tgname NOT LIKE '%%\\_truncate') AS r(by_row) WHERE c.oid = t.tgrelid))"
        " FROM pg_proc AS f WHERE f.oid = to_regproc(%s)",
        (
            truncate_only,
            [source.table.oid, *(each.oid for each in source.descendants)],
            source.row_level,
            f"{buffer.SCHEMA}.{buffer.function_name(source.table.oid)}",
        ),
    ).fetchone()
    return row is not None and row[0] == body and row[1] == source.trigger_count


def _outlived_crashes(conn: psycopg.Connection[Any], source_oid: int) -> bool:
    row = conn.execute(
        "SELECT pgtrickle_internal.outlived_crashes(source_relid, unlogged) FROM pgtrickle.pgt_change_tracking"
        " WHERE source_relid = %s",
        (source_oid,),
    ).fetchone()
    return row is not None and bool(row[0])


def _body(conn: psycopg.Connection[Any], source: Source, columns: Sequence[SourceColumn]) -> str:
    """The function's text for these columns. A row trigger sees its one row as a transition table of one row."""
    values = [_value(source.table.oid, column) for column in columns]
    slots = [sql.Identifier(f"c{column.number}") for column in columns]
    images = [sql.SQL("{} AS {}").format(value, slot) for value, slot in zip(values, slots, strict=True)]
    old_images = [sql.SQL("o.{}").format(slot) for slot in slots]
    new_images = [sql.SQL("n.{}").format(slot) for slot in slots]
    of_columns = {
        "buffer": buffer.buffer_identifier(source.table.oid),
        "old_rows": sql.SQL("(SELECT OLD.*)" if source.row_level else "old_rows"),
        "new_rows": sql.SQL("(SELECT NEW.*)" if source.row_level else "new_rows"),
        "new_columns": _tail([sql.Identifier(buffer.buffer_column("new", column.name)) for column in columns]),
        "old_columns": _tail([sql.Identifier(buffer.buffer_column("old", column.name)) for column in columns]),
        "images": _tail(images),
        "old_images": _tail(old_images),
        "new_images": _tail(new_images),
        "old_record": sql.SQL(", ").join(old_images),
        "new_record": sql.SQL(", ").join(new_images),
    }
    pairs = buffer.holds_pairs(columns)
    text = sql.SQL(_TEMPLATE).format(
        **of_columns,
        intact=intact(source, columns),
        values=_tail(values),
        update=sql.SQL(_UPDATE if pairs else _UPDATE_WIDE).format(**of_columns),
        if_too_large=sql.SQL("" if pairs else _TOO_LARGE).format(**of_columns),
    )
    return text.as_string(conn)


def _value(source_oid: int, column: SourceColumn) -> sql.Composable:
    """The column of a transition row `r`; a virtual generated column is NULL there, so it is computed, and so is
    the table whose row it is, which a row trigger is on."""
    if column.name == TABLEOID:
        return sql.Identifier(buffer.function_name(source_oid), "tg_relid")
    if column.expression is not None:
        return sql.SQL("({})").format(sql.SQL(column.expression))
    return sql.SQL("r.{}").format(sql.Identifier(column.name))


def _tail(items: Sequence[sql.Composable]) -> sql.Composed:
    """The items, each after a comma, to follow others in a list."""
    return sql.Composed([part for item in items for part in (sql.SQL(", "), item)])


def intact(source: Source, columns: Sequence[SourceColumn]) -> sql.Composed:
    """A condition true as long as the columns and partitions are those the function was written for."""
    checks: list[sql.Composable] = [same_columns(source, columns)]
    if source.parents:
        checks.append(_same_descendants(source))
    return sql.SQL(" AND ").join(checks)


def _same_descendants(source: Source) -> sql.Composed:
    parents = sql.Literal(list(source.parents))
    if not source.descendants:
        return sql.SQL("NOT EXISTS (SELECT FROM pg_inherits WHERE inhparent = ANY({}::oid[]))").format(parents)
    return sql.SQL(
        "ARRAY(SELECT inhrelid FROM pg_inherits WHERE inhparent = ANY({}::oid[]) ORDER BY inhrelid) = {}::oid[]"
    ).format(parents, sql.Literal(sorted(each.oid for each in source.descendants)))


def same_columns(source: Source, columns: Sequence[SourceColumn]) -> sql.Composed:
    """The same, of the columns alone."""
    # A virtual column's expression may read any column, so then all are watched.
    watched = source.attributes if any(column.expression is not None for column in columns) else columns
    checks: list[sql.Composable] = []
    if watched:
        checks.append(
            sql.SQL(
                "(SELECT count(*) FROM pg_attribute WHERE attrelid = {oid}"
                " AND attnum BETWEEN {first} AND {last}"
                " AND (attnum, attname, atttypid, atttypmod) IN ({shapes})) = {count}"
            ).format(
                oid=sql.Literal(source.table.oid),
                first=sql.Literal(min(each.number for each in watched)),
                last=sql.Literal(max(each.number for each in watched)),
                shapes=sql.SQL(", ").join(
                    sql.SQL("({}, {}, {}, {})").format(
                        sql.Literal(each.number),
                        sql.Literal(each.name),
                        sql.Literal(each.type_oid),
                        sql.Literal(each.type_modifier),
                    )
                    for each in watched
                ),
                count=sql.Literal(len(watched)),
            )
        )
    checks += [
        sql.SQL("(SELECT md5(adbin::text) FROM pg_attrdef WHERE adrelid = {} AND adnum = {}) = {}").format(
            sql.Literal(source.table.oid), sql.Literal(column.number), sql.Literal(column.expression_checksum)
        )
        for column in columns
        if column.expression is not None
    ]
    return sql.SQL(" AND ").join(checks) if checks else sql.Composed([sql.SQL("true")])


def _function(source_oid: int) -> sql.Identifier:
    return sql.Identifier(buffer.SCHEMA, buffer.function_name(source_oid))


def _trigger_name(source_oid: int, event: str) -> str:
    return f"pgtrickle_{source_oid}_{event}"
