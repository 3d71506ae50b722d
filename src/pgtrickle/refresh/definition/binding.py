"""A query stays bound to the relations and columns that it was defined on: its text is read again only to mean these.

    every name in the text means the relation it meant             ▶ the text as it is
    `*`, NATURAL or a bare name would mean other columns           ▶ PostgreSQL's own text of the query, in which each
                                                                     column is named, as it was when defined
    a relation has another name, or its name another relation      ▶ the same, under the names that the same relations
                                                                     have now
    a relation is gone, and something else has its name            ▶ an error, until the owner alters the query

So a column that a source gains changes nothing, as for a view. Relations are known by oid. Called wherever a registered
query is compiled again. What a view reads is the view's matter: PostgreSQL keeps that by oid itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from sqlglot import exp

from pgtrickle.catalog.names import parse_name
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection
from pgtrickle.errors import QueryError
from pgtrickle.model import Table
from pgtrickle.query.analyse.analyze import Check
from pgtrickle.query.compile import Compiled, compile_query
from pgtrickle.query.syntax import dialect
from pgtrickle.refresh.definition.owners import confirmed
from pgtrickle.refresh.failure import DefinitionProblem

_OWN_NAMES_ONLY = "pg_catalog"
"""The search path for PostgreSQL's own text, in which every name is qualified."""

_KNOWN = """
SELECT u.objid, u.shape ->> 'name', n.nspname, c.relname
FROM pgtrickle.pgt_used_objects AS u
LEFT JOIN pg_catalog.pg_class AS c ON c.oid = u.objid
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE u.pgt_id = %s AND u.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND u.objsubid = 0
"""


COMPILE_AGAIN_WITHIN_S: Final = 600.0
"""A query that was accepted is given more time than a new one: it is no user who waits."""


class Compile(Protocol):
    """`compile_query` on a connection, under the settings of a stream table."""

    def __call__(self, sql: str, *, search_path: str, check: Check) -> Compiled: ...


class _Stranger(Exception):
    """The query would read another relation than those it was defined on."""


@dataclass(frozen=True, slots=True)
class DefinedOn:
    """A relation that the query was defined on: its name then, and the relation as it is now, if it is."""

    oid: int
    schema: str
    name: str
    now: Table | None

    @property
    def keeps_its_name(self) -> bool:
        return self.now == Table(self.oid, self.schema, self.name)


@dataclass(frozen=True, slots=True)
class Bound:
    """A registered query compiled, by the text and search path that mean what it was defined on. `renamed`: the owner's
    own text cannot mean that any more, since relations have other names. `same_columns`: those that it gives are known
    to be those that it gave; else PostgreSQL's own text of then does not hold any more, and only the owner's is left.
    """

    compiled: Compiled
    text: str
    search_path: str
    renamed: bool = False
    same_columns: bool = True


def compile_bound(connection: Connection, stream: StreamTable, *, with_tree: bool = True) -> Bound:
    """The query of a registered stream table, compiled over the relations that it was defined on and no others."""
    known = _known(connection, stream.pgt_id)
    compile = partial(
        compile_query,
        connection,
        settings=stream.settings,
        accept=confirmed(connection, stream),
        within_s=COMPILE_AGAIN_WITHIN_S,
        with_tree=with_tree,
    )
    text, path = stream.defining_query, stream.search_path
    try:
        now = Bound(compile(text, search_path=path, check=partial(_require_known, known)), text, path)
    except QueryError:
        if all(each.now is None or each.keeps_its_name for each in known.values()):
            then = _as_defined(compile, stream, known)
            if then is None:
                raise  # PostgreSQL's word on what is missing is the clearest
            return then
    except _Stranger:
        pass
    else:
        return _with_the_same_columns(now, compile, stream, known)
    return _under_present_names(compile, stream, known)


def _with_the_same_columns(now: Bound, compile: Compile, stream: StreamTable, known: Mapping[int, DefinedOn]) -> Bound:
    """The text as it is, unless it would read other columns than when it was defined, or give its own other names.
    Where only types or functions are others by now, PostgreSQL's reading of the text counts."""
    if now.compiled.analysis.normalised == stream.normalized_query:
        return now
    then = _as_defined(compile, stream, known)
    if then is None:
        return replace(now, same_columns=False)
    return now if _columns(then) == _columns(now) else then


def _as_defined(compile: Compile, stream: StreamTable, known: Mapping[int, DefinedOn]) -> Bound | None:
    """By PostgreSQL's own text of when it was defined; None if that does not hold any more."""
    text = stream.normalized_query
    try:
        compiled = compile(text, search_path=_OWN_NAMES_ONLY, check=partial(_require_known, known))
    except (QueryError, _Stranger):
        return None
    return Bound(compiled, text, _OWN_NAMES_ONLY)


def _columns(bound: Bound) -> tuple[Collection[tuple[int, int]], list[str]]:
    """What the query itself reads, and the names of what it gives."""
    analysis = bound.compiled.analysis
    return analysis.named_columns, [column.name for column in analysis.columns]


def _known(connection: Connection, pgt_id: int) -> dict[int, DefinedOn]:
    found: dict[int, DefinedOn] = {}
    for row in connection.execute(_KNOWN, (pgt_id,)).fetchall():
        oid, was = int(str(row[0])), parse_name(str(row[1]))
        now = None if row[3] is None else Table(oid, str(row[2]), str(row[3]))
        found[oid] = DefinedOn(oid, was.schema or "", was.name, now)
    return found


def _require_known(known: Mapping[int, DefinedOn], named: tuple[Table, ...]) -> None:
    """What the query names must be what it was defined on, under the names that had then."""
    for table in named:
        if table.oid not in known or (known[table.oid].schema, known[table.oid].name) != (table.schema, table.name):
            raise _Stranger


def _require_exactly(meant: Collection[DefinedOn], named: tuple[Table, ...]) -> None:
    if set(named) != {each.now for each in meant}:
        raise _Stranger


def _under_present_names(compile: Compile, stream: StreamTable, known: Mapping[int, DefinedOn]) -> Bound:
    if stream.effective_mode == "FULL":  # no one has checked that its text survives being read and written by us
        return _as_it_was(compile, stream, known)
    tree = dialect.parse(stream.normalized_query)
    by_name = {(each.schema, each.name): each for each in known.values()}
    meant = {each.oid: each for table in _tables(tree) if (each := by_name.get((table.db, table.name))) is not None}
    gone = [each for each in meant.values() if each.now is None]
    if "::regclass" in stream.normalized_query:  # a name within a literal, which we would not find
        raise _other_relations(stream, [each for each in meant.values() if not each.keeps_its_name])
    if gone or len(meant) != len({(table.db, table.name) for table in _tables(tree)}):
        raise _other_relations(stream, gone)
    for table in _tables(tree):
        _rename(table, by_name[(table.db, table.name)])
    check = partial(_require_exactly, meant.values())
    try:
        compiled = compile(dialect.text(tree), search_path=_OWN_NAMES_ONLY, check=check)
    except _Stranger:
        raise _other_relations(stream, list(meant.values())) from None
    return Bound(compiled, compiled.analysis.normalised, _OWN_NAMES_ONLY, renamed=True)


def _as_it_was(compile: Compile, stream: StreamTable, known: Mapping[int, DefinedOn]) -> Bound:
    """By PostgreSQL's own text: for names that only the search path gave to other relations."""
    moved = [each for each in known.values() if not each.keeps_its_name]
    bound = _as_defined(compile, stream, known)
    if bound is None:
        raise _other_relations(stream, moved)
    return replace(bound, renamed=True)


def _tables(tree: exp.Expr) -> list[exp.Table]:
    """The relations that are named in it; WITH queries have no schema, and functions are no names."""
    return [table for table in tree.find_all(exp.Table) if table.db and isinstance(table.this, exp.Identifier)]


def _rename(table: exp.Table, known: DefinedOn) -> None:
    """The present name, under the old one as its alias, by which the columns around are addressed."""
    assert known.now is not None, "what is gone was refused"
    if known.keeps_its_name:
        return
    if not table.alias:
        table.set("alias", exp.TableAlias(this=exp.to_identifier(known.name, quoted=True)))
    table.set("this", exp.to_identifier(known.now.name, quoted=True))
    table.set("db", exp.to_identifier(known.now.schema, quoted=True))


def _other_relations(stream: StreamTable, known: list[DefinedOn]) -> DefinitionProblem:
    names = ", ".join(sorted(f"{each.schema}.{each.name}" for each in known)) or "a relation it reads"
    return DefinitionProblem(
        f"{stream} was defined on another relation than the one that is now named {names}",
        code="PT313",
        hint="alter the stream table with its query, of which the same text will do, to read what has that name now",
    )
