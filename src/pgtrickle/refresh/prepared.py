"""A stream table made ready to refresh: its compiled query, its storage, its state tables. Kept between refreshes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psycopg

from pgtrickle.apply.layout import Kept
from pgtrickle.apply.state import table_name
from pgtrickle.db import Connection, statement
from pgtrickle.model import Column, PgType, Table
from pgtrickle.physical.lower_full import numbered
from pgtrickle.postgres.aggregate import key_columns
from pgtrickle.postgres.statements.first_rows import FirstRows
from pgtrickle.postgres.statements.recursion import RecursiveRows
from pgtrickle.postgres.statements.result import Storage
from pgtrickle.postgres.statements.state import StateTable
from pgtrickle.postgres.statements.window_rows import WindowRows
from pgtrickle.postgres.weighted import chain
from pgtrickle.query.compile import Compiled
from pgtrickle.query.expression import referenced
from pgtrickle.query.operators import (
    Aggregate,
    InnerJoin,
    LeftJoin,
    Match,
    Operator,
    Project,
    Recursive,
    Stateful,
    TopK,
    Window,
    walk,
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """All a refresh needs to know of a stream table that does not change from one to the next."""

    pgt_id: int
    compiled: Compiled
    storage: Storage
    states: dict[int, Kept]
    lockable: tuple[Table, ...]
    upstream: frozenset[int] = frozenset()
    """Those of the sources that are stream tables, by oid; none, if writers keep all of them: then these are as current
    as any table, and are read at the same snapshot."""
    stacked: frozenset[int] = frozenset()
    """The same, whoever keeps them: the last refresh may have read changes of these beyond its snapshot."""
    fits: bool = True
    """Whether its state was kept by this very tree."""

    @property
    def tree(self) -> Operator:
        assert self.compiled.tree is not None, "only incremental tables have a tree"
        return self.compiled.tree

    @property
    def settings(self) -> Mapping[str, str]:
        """Those of who defined it: its query is evaluated under what is stored of them."""
        return self.compiled.settings

    @property
    def reads_clock(self) -> bool:
        """Whether the time of a refresh is part of its answer."""
        return self.compiled.analysis.reads_clock

    @property
    def sources(self) -> tuple[Table, ...]:
        return tuple(self.compiled.followed)

    @property
    def compares(self) -> bool:
        """Whether a source of it is compared with a copy."""
        sources = self.compiled.analysis.sources
        return self.compiled.tree is not None and any(source.is_compared for source in sources)

    def state_below(self, node: Stateful) -> int | None:
        """The number of the state that a node's input is read from: of an aggregate, or, by first rows, of others."""
        core, _ = chain(node.input)
        read = isinstance(core, Aggregate | Window | Recursive) or (isinstance(core, TopK) and isinstance(node, TopK))
        return numbered(self.tree)[core] if read and isinstance(core, Stateful) else None


def prepare(connection: Connection, pgt_id: int, schema: str, name: str, compiled: Compiled) -> Prepared:
    columns = tuple(Column(column.name, column.type, column.name) for column in compiled.analysis.columns)
    storage = Storage(schema, name, columns, _hashable_positions(connection, columns))
    states: dict[int, Kept] = {}
    if compiled.tree is not None:
        for node, number in numbered(compiled.tree).items():
            match node:
                case Aggregate():
                    states[number] = _state_table(connection, pgt_id, number, node)
                case TopK():
                    states[number] = FirstRows(table_name(pgt_id, number), node)
                case Window():
                    keys = tuple(column for column in node.columns if column.name in node.keys)
                    states[number] = WindowRows(table_name(pgt_id, number), node, _hashable(connection, keys))
                case Recursive():
                    states[number] = _recursive_rows(connection, pgt_id, number, compiled.tree, node)
                case _:
                    raise TypeError(f"no state table of {type(node).__name__}")
    upstream, stacked = _stream_tables(connection, compiled)
    return Prepared(pgt_id, compiled, storage, states, _lockable(connection, compiled), upstream, stacked)


def _state_table(connection: Connection, pgt_id: int, number: int, aggregate: Aggregate) -> StateTable:
    keys = key_columns(aggregate)
    return StateTable(table_name(pgt_id, number), aggregate, _hashable(connection, keys))


def _recursive_rows(connection: Connection, pgt_id: int, number: int, tree: Operator, node: Recursive) -> RecursiveRows:
    exact = tuple(column for column in node.columns if column.type.deterministic)
    positions = _hashable_positions(connection, exact)
    hashable = frozenset(column.name for position, column in enumerate(exact) if position in positions)
    return RecursiveRows(table_name(pgt_id, number), node, hashable, sought_columns(tree, node) & hashable)


def sought_columns(tree: Operator, node: Recursive) -> frozenset[str]:
    """The columns of a recursion by which joins look for its rows: above it, and in its own recursive term."""
    sought = {
        name
        for join in walk(tree)
        if isinstance(join, InnerJoin | LeftJoin | Match)
        for equality in join.equalities
        for side in (equality.left, equality.right)
        if (name := referenced(side)) is not None
    }
    for project in walk(tree):  # top first: what is sought under a name above is sought under that below
        if isinstance(project, Project):
            pairs = zip(project.names, project.expressions, strict=True)
            sought |= {below for name, made in pairs if name in sought and (below := referenced(made)) is not None}
    own = zip(node.names, node.working.names, strict=True)
    return frozenset(name for name, working in own if name in sought or working in sought)


def _lockable(connection: Connection, compiled: Compiled) -> tuple[Table, ...]:
    """What can be locked against DDL: tables, and views that are read by name, to more than some columns of which the
    role has rights."""
    tables = {
        table.oid: table
        for table, source in compiled.followed.items()
        if source.kind in {"r", "p"} or table == source.copy
    }
    if compiled.tree is None:  # PostgreSQL reads its views by their names
        tables |= {view.table.oid: view.table for view in compiled.analysis.views}
    allowed = connection.execute(
        "SELECT oid FROM unnest(%s::oid[]) AS oid WHERE has_table_privilege(oid, 'SELECT')", (list(tables),)
    ).fetchall()
    return tuple(tables[int(str(oid))] for (oid,) in allowed)


def _stream_tables(connection: Connection, compiled: Compiled) -> tuple[frozenset[int], frozenset[int]]:
    """`upstream` and `stacked`. If one is read beyond the snapshot all are: a single frontier is on record for them."""
    found = connection.execute(
        "SELECT pgt_relid::bigint, effective_mode <> 'IMMEDIATE' FROM pgtrickle.pgt_stream_tables"
        " WHERE pgt_relid = ANY(%s::oid[])",
        ([table.oid for table in compiled.followed],),
    ).fetchall()
    stacked = frozenset(int(str(oid)) for oid, _ in found)
    return stacked if any(by_refresh for _, by_refresh in found) else frozenset(), stacked


def joined_aggregates(tree: Operator) -> frozenset[Aggregate]:
    """Aggregates below a join, whose groups are looked up by key."""
    joins = [node for node in walk(tree) if isinstance(node, InnerJoin | LeftJoin | Match)]
    return frozenset(node for join in joins for node in walk(join) if isinstance(node, Aggregate))


def has_hash(connection: Connection, columns: Iterable[Column]) -> bool:
    """Whether PostgreSQL can hash all of these."""
    return all(_has_hash(connection, column.type) for column in columns)


def _hashable(connection: Connection, columns: tuple[Column, ...]) -> frozenset[str]:
    positions = _hashable_positions(connection, columns)
    return frozenset(column.name for position, column in enumerate(columns) if position in positions)


def _hashable_positions(connection: Connection, columns: Iterable[Column]) -> frozenset[int]:
    given = tuple(columns)
    answers = {type_: _has_hash(connection, type_) for type_ in {column.type for column in given}}
    return frozenset(position for position, column in enumerate(given) if answers[column.type])


def _has_hash(connection: Connection, type_: PgType) -> bool:
    """Whether PostgreSQL can hash the type; asked of it, since arrays, rows and domains depend on what they hold.

    The NULL to hash is that of an outer join, since a domain may forbid the cast of one.
    """
    null = f"(SELECT 1) AS one LEFT JOIN (SELECT NULL::{type_.name} AS v WHERE false) AS none ON true"
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(statement(f"SELECT hash_record_extended(ROW(v), 0) FROM {null}"))
    except psycopg.errors.UndefinedFunction:
        return False
    return True
