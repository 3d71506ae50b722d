"""Creates and removes what keeps a stream table in IMMEDIATE mode: functions, triggers, and their own tables.

All in the caller's transaction, which has locked the sources against writers. Called by `switch.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256

from psycopg import sql

from pgtrickle import db
from pgtrickle.answers import stored
from pgtrickle.apply import update_key
from pgtrickle.capture.locks import LockRequest, lock_all
from pgtrickle.capture.source import read_source
from pgtrickle.capture.triggers import intact, same_columns
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.config import Settings
from pgtrickle.db import Connection, execute, statement
from pgtrickle.model import Column, Table, quote
from pgtrickle.physical.flow import Physical
from pgtrickle.physical.flow_text import physical_text
from pgtrickle.physical.table_facts import TableFactsMap
from pgtrickle.postgres.row_image import by_image
from pgtrickle.postgres.statements.at_once import NotAtOnce, PartNames
from pgtrickle.postgres.statements.script import Scratch
from pgtrickle.postgres.weighted import chain
from pgtrickle.postgres.wire import WEIGHT, definition
from pgtrickle.query.operators import Scan, walk
from pgtrickle.refresh import gather_facts as ask
from pgtrickle.refresh.immediate import conditions, functions, one_group, turns
from pgtrickle.refresh.immediate.one_statement import Composer
from pgtrickle.refresh.immediate.plan import plan_all, plan_statement
from pgtrickle.refresh.immediate.scripts import Keys, Scripts
from pgtrickle.refresh.immediate.subject import (
    EVENTS,
    Captured,
    FewChanges,
    Function,
    Names,
    Subject,
    changes_of_scan,
)
from pgtrickle.refresh.immediate.turns import JoinTurns
from pgtrickle.refresh.prepared import Prepared, has_hash

_TRANSITIONS = {
    "insert": "REFERENCING NEW TABLE AS new_rows",
    "update": "REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows",
    "delete": "REFERENCING OLD TABLE AS old_rows",
    "truncate": "",
}


def create(connection: Connection, stream: StreamTable, prepared: Prepared, settings: Settings) -> None:
    """Makes all of it; what was there under the same names is replaced."""
    remove(connection, stream.pgt_id)
    names, sources = Names(stream.pgt_id, str(stream)), _sources(connection, prepared)
    subject, made = _functions(connection, stream, prepared, settings, sources)
    _create_tables(connection, names, sources, subject.slots)
    for function in made:
        _create_function(connection, function)
    for each in sources:
        for relation in (each.source.table, *each.source.descendants):
            _create_triggers(connection, names, each.number, relation)


def renew(connection: Connection, stream: StreamTable, prepared: Prepared, settings: Settings) -> bool:
    """Makes those functions again that would be others by now: the table was renamed, or a source got an index. False
    if that does not do: writers that take finer turns than before would not meet those that are at work."""
    names = Names(stream.pgt_id, str(stream))
    rows = connection.execute(
        "SELECT f.proname::text, f.prosrc FROM pg_proc AS f JOIN pg_namespace AS n ON n.oid = f.pronamespace"
        " WHERE n.nspname = 'pgtrickle_state' AND f.proname LIKE %s",
        (f"i\\_{stream.pgt_id}\\_%",),
    ).fetchall()
    texts = {str(name): str(body) for name, body in rows}
    subject, found = _functions(connection, stream, prepared, settings, _sources(connection, prepared))
    if int(str(db.scalar(connection, f"SELECT count(*) FROM {names.turn}"))) < subject.slots:
        return False
    others = [function for function in found if texts.get(names.bare_function(function.what)) != function.body]
    for function in others:
        _rename(connection, names, function, texts)
        _create_function(connection, function)
    return True


def _rename(connection: Connection, names: Names, function: Function, there: Collection[str]) -> None:
    """Gives a function the name of its stream table that was renamed: triggers call it by its oid."""
    for name in there:
        if name.startswith(names.prefix(function.what)) and name != names.bare_function(function.what):
            new = quote(names.bare_function(function.what))
            execute(connection, f"ALTER FUNCTION pgtrickle_state.{quote(name)}() RENAME TO {new}")


def defect(connection: Connection, stream: StreamTable, prepared: Prepared) -> str | None:
    """Why changes may have been missed, if they may: a trigger of ours is missing or was disabled, a source has other
    partitions, or is written to by what fires no triggers of statements."""
    names = Names(stream.pgt_id, str(stream))
    for each in _sources(connection, prepared):
        if each.source.row_level or each.source.unlogged:
            return f"{each.source.table} has come to be what IMMEDIATE mode cannot follow"
        relations = [each.source.table.oid, *(table.oid for table in each.source.descendants)]
        row = connection.execute(
            "SELECT count(*) FILTER (WHERE t.tgrelid = ANY(%(relations)s::oid[]) AND t.tgenabled = 'A'), count(*)"
            " FROM pg_trigger AS t JOIN pg_proc AS f ON f.oid = t.tgfoid JOIN pg_namespace AS n"
            " ON n.oid = f.pronamespace WHERE n.nspname = 'pgtrickle_state' AND f.proname LIKE %(function)s"
            " AND t.tgparentid = 0",
            {"relations": relations, "function": _like(names, f"on_{each.number}")},
        ).fetchone()
        wanted = len(EVENTS) * len(relations)
        if row != (wanted, wanted):
            return f"triggers of {each.source.table} were missing or disabled, or its partitions are others"
    row = connection.execute(
        "SELECT count(*) FROM pg_trigger AS t JOIN pg_proc AS f ON f.oid = t.tgfoid JOIN pg_namespace AS n"
        " ON n.oid = f.pronamespace WHERE n.nspname = 'pgtrickle_state' AND f.proname LIKE %s AND t.tgenabled = 'A'",
        (_like(names, "before"),),
    ).fetchone()
    wanted = sum(len(EVENTS) * (1 + len(each.source.descendants)) for each in _sources(connection, prepared))
    return None if row == (wanted,) else "triggers of its sources were missing or disabled"


def _like(names: Names, what: str) -> str:
    return names.prefix(what).replace("_", "\\_") + "%"


def _create_function(connection: Connection, function: Function) -> None:
    execute(connection, function.create)
    execute(connection, f"REVOKE ALL ON FUNCTION {function.name}() FROM PUBLIC")


def remove(connection: Connection, pgt_id: int) -> None:
    """Removes all of it that is there."""
    like = f"i\\_{pgt_id}\\_%"
    _lock(connection, like)
    for table, trigger in connection.execute(
        "SELECT t.tgrelid::regclass::text, t.tgname::text FROM pg_trigger AS t JOIN pg_proc AS f ON f.oid = t.tgfoid"
        " JOIN pg_namespace AS n ON n.oid = f.pronamespace"
        " WHERE n.nspname = 'pgtrickle_state' AND f.proname LIKE %s AND t.tgparentid = 0 ORDER BY t.tgrelid, t.tgname",
        (like,),
    ).fetchall():
        execute(connection, f"DROP TRIGGER {quote(str(trigger))} ON {table}")
    for (function,) in connection.execute(
        "SELECT f.oid::regprocedure::text FROM pg_proc AS f JOIN pg_namespace AS n ON n.oid = f.pronamespace"
        " WHERE n.nspname = 'pgtrickle_state' AND f.proname LIKE %s",
        (like,),
    ).fetchall():
        execute(connection, f"DROP FUNCTION {function}")
    for (relation,) in connection.execute(
        "SELECT c.oid::regclass::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = 'pgtrickle_state' AND c.relkind = 'r' AND c.relname LIKE %s",
        (like,),
    ).fetchall():
        execute(connection, f"DROP TABLE {relation}")


def _lock(connection: Connection, functions_like: str) -> None:
    """Dropping a trigger takes ACCESS EXCLUSIVE on its table."""
    tables = connection.execute(
        "SELECT DISTINCT s.nspname::text, c.relname::text FROM pg_trigger AS t JOIN pg_proc AS f ON f.oid = t.tgfoid"
        " JOIN pg_namespace AS n ON n.oid = f.pronamespace JOIN pg_class AS c ON c.oid = t.tgrelid"
        " JOIN pg_namespace AS s ON s.oid = c.relnamespace WHERE n.nspname = 'pgtrickle_state' AND f.proname LIKE %s"
        " ORDER BY 1, 2",
        (functions_like,),
    ).fetchall()
    if tables:
        lock_all(connection, [LockRequest(sql.Identifier(*map(str, table)), "ACCESS EXCLUSIVE") for table in tables])


def _sources(connection: Connection, prepared: Prepared) -> list[Captured]:
    tables = sorted(prepared.sources, key=lambda table: table.oid)
    return [_captured(connection, prepared, table, number) for number, table in enumerate(tables, start=1)]


def _captured(connection: Connection, prepared: Prepared, table: Table, number: int) -> Captured:
    source = read_source(connection, table)
    types = {
        attribute: Column(f"c_{attribute}"[:63], column.type)
        for scan in _scans(prepared)
        if scan.table.oid == table.oid
        for attribute, column in zip(scan.attributes, scan.columns, strict=True)
    }
    columns = source.named(set(types))
    numbered = tuple(Column(f"c{column.number}", types[column.name].type) for column in columns)
    conditions = (part.as_string(connection) for part in (intact(source, columns), same_columns(source, columns)))
    return Captured(number, source, columns, numbered, *conditions)


def _scans(prepared: Prepared) -> Iterable[Scan]:
    return (node for node in walk(prepared.tree) if isinstance(node, Scan))


def _create_tables(connection: Connection, names: Names, sources: Sequence[Captured], slots: int) -> None:
    """The locks, the statements that are open, and the changes: these are there only between a statement's parts, so
    they need no log."""
    execute(
        connection,
        f"CREATE TABLE {names.turn} (slot integer PRIMARY KEY, turn bigint NOT NULL) WITH (fillfactor = 20)",
    )
    execute(connection, f"INSERT INTO {names.turn} SELECT slot, 0 FROM generate_series(0, {slots - 1}) AS slot")
    execute(
        connection,
        f"CREATE UNLOGGED TABLE {names.open} (xid xid8 PRIMARY KEY, waiting integer NOT NULL,"
        " whole boolean NOT NULL DEFAULT false, busy boolean NOT NULL DEFAULT false,"
        " kept boolean NOT NULL DEFAULT false)",
    )
    for each in sources:
        definitions = ", ".join([*map(definition, each.types), f"{WEIGHT} bigint NOT NULL"])
        execute(connection, f"CREATE UNLOGGED TABLE {names.changes(each.number)} ({definitions})")


def _functions(
    connection: Connection,
    stream: StreamTable,
    prepared: Prepared,
    settings: Settings,
    sources: Sequence[Captured],
) -> tuple[Subject, list[Function]]:
    names, by_oid = Names(stream.pgt_id, str(stream)), {each.source.table.oid: each for each in sources}

    def kept(scan: Scan) -> str:
        captured = by_oid[scan.table.oid]
        slots = {column.name: quote(slot.name) for column, slot in zip(captured.columns, captured.types, strict=True)}
        values = [
            f"{slots[attribute]} AS {quote(name)}" for attribute, name in zip(scan.attributes, scan.names, strict=True)
        ]
        return f"SELECT {', '.join([*values, WEIGHT])} FROM {names.changes(captured.number)}"

    facts = ask.gather(connection, list(by_oid), {})
    most = settings.ivm_recursive_max_depth
    keys = _keys(connection, stream, prepared, settings)
    scratch = Scratch(f"i{stream.pgt_id}")
    physical = plan_statement(prepared, facts, list(by_oid), scratch, kept)
    apply = Scripts(prepared, scratch, lambda scan: by_image(kept(scan), scan.columns), most).of(physical, keys)
    fill = Scripts(prepared, Scratch(f"f{stream.pgt_id}"), kept, most, whole=True).of(plan_all(prepared, facts), keys)
    by_key = turns.by_join_key(prepared.tree, lambda columns: has_hash(connection, columns))
    at_once = {each.number: _at_once(prepared, facts, each, sources, keys, by_key) for each in sources}
    slots = _slots(at_once)
    subject = Subject(
        names,
        stream.pgt_relid,
        str(stream),
        prepared.storage.qualified,
        _owner(connection, stream),
        stored(prepared.settings),
        sources,
        f"NOT {update_key.has_triggers(stream.pgt_relid)}",
        physical_text(physical),
        slots,
    )
    return subject, [
        functions.before(subject),
        functions.apply(subject, apply, _slots_of_many(prepared, physical, kept, by_key) if slots > 1 else None),
        functions.fill(subject, fill),
        *(functions.on(subject, each, at_once[each.number]) for each in sources),
    ]


def _at_once(
    prepared: Prepared,
    facts: TableFactsMap,
    captured: Captured,
    sources: Sequence[Captured],
    keys: Keys,
    by_key: JoinTurns | None,
) -> dict[str, FewChanges] | None:
    """How few changes of a source are applied, by event; None where it takes several statements, as where rows of the
    stream table are always to be updated."""
    if keys.key is not None and keys.when is None:
        return None
    mark = _mark(prepared)

    def of(event: str) -> FewChanges:
        def rows(scan: Scan) -> str:
            return changes_of_scan(captured, scan, event)

        names, oid = PartNames(f"{event}_{mark}"), captured.source.table.oid
        net = event == "update" and not turns.is_grouping_of_table(chain(prepared.tree)[0])
        physical = plan_statement(prepared, facts, [oid], names, rows, net=net)
        slots = turns.by_row_or_group(prepared, physical)
        if by_key is not None:
            slots = _slots_by_key(captured, by_key, event)
        found = Composer(prepared, names).compose(physical)
        by_itself = one_group.of_plan(prepared, physical, names) if slots is not None and by_key is None else None
        return FewChanges(conditions.of_known_sources(sources, found), slots, by_itself)

    try:
        return {event: of(event) for event in ("insert", "update", "delete")}
    except NotAtOnce:
        return None


def _mark(prepared: Prepared) -> str:
    """What the names of parts end with. They are put in place of others in the whole text of a statement: so no text of
    the query may hold one, not even a literal."""
    return sha256(repr(prepared.tree).encode()).hexdigest()[:8]


def _slots(at_once: Mapping[int, dict[str, FewChanges] | None]) -> int:
    """How many turns there are: one, if none of the sources tells more apart."""
    few = [each for found in at_once.values() if found is not None for each in found.values()]
    return turns.SLOTS if any(each.slots is not None for each in few) else 1


def _slots_of_many(
    prepared: Prepared, physical: Physical, kept: Callable[[Scan], str], by_key: JoinTurns | None
) -> str | None:
    """The query of the slots of all changes that are kept."""
    if by_key is None:
        return turns.by_row_or_group(prepared, physical)
    found = []
    for scan, attributes in by_key.attributes.items():
        names = dict(zip(scan.attributes, scan.names, strict=True))
        found.append(turns.slots_of(kept(scan), tuple(names[attribute] for attribute in attributes)))
    return f"({') UNION ('.join(found)}) ORDER BY 1"


def _slots_by_key(captured: Captured, by_key: JoinTurns, event: str) -> str:
    """Of a source that is on both sides of a join, those of both keys."""
    found = []
    for scan, attributes in by_key.attributes.items():
        if scan.table.oid == captured.source.table.oid:
            names = dict(zip(scan.attributes, scan.names, strict=True))
            rows = changes_of_scan(captured, scan, event)
            found.append(turns.slots_of(rows, tuple(names[attribute] for attribute in attributes)))
    return found[0] if len(found) == 1 else f"({') UNION ('.join(found)}) ORDER BY 1"


def _keys(connection: Connection, stream: StreamTable, prepared: Prepared, settings: Settings) -> Keys:
    """By what rows stay themselves: as everywhere, if the table has triggers, or is told to; asked each time."""
    tree, columns = prepared.tree, prepared.storage.columns
    asked = settings.user_triggers
    key = update_key.key_of(connection, stream.pgt_relid, columns, tree, "off" if asked == "off" else "on")
    return Keys(key, update_key.has_triggers(stream.pgt_relid) if asked == "auto" else None)


def _owner(connection: Connection, stream: StreamTable) -> int:
    row = connection.execute("SELECT relowner::bigint FROM pg_class WHERE oid = %s", (stream.pgt_relid,)).fetchone()
    assert row is not None
    return int(str(row[0]))


def _create_triggers(connection: Connection, names: Names, number: int, relation: Table) -> None:
    """ENABLE ALWAYS: a session that applies replicated changes is a writer too. They fire in the order of their names:
    everywhere the stream table that was made first is the first to be maintained."""
    table = sql.Identifier(relation.schema, relation.name)
    for event in EVENTS:
        for moment, function, transitions in (
            ("before", names.function("before"), ""),
            ("after", names.on(number), _TRANSITIONS[event]),
        ):
            trigger = sql.Identifier(f"pgtrickle_i{names.pgt_id:010}_{event}_{moment}")
            connection.execute(
                sql.SQL("CREATE TRIGGER {} {} {} ON {} {} FOR EACH STATEMENT EXECUTE FUNCTION {}()").format(
                    trigger,
                    sql.SQL(moment.upper()),
                    sql.SQL(event.upper()),
                    table,
                    sql.SQL(transitions),
                    statement(function),
                )
            )
            connection.execute(sql.SQL("ALTER TABLE ONLY {} ENABLE ALWAYS TRIGGER {}").format(table, trigger))
