"""A stream table made ready to refresh: its compiled query, its storage, its state tables. Kept between refreshes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psycopg

from pgtrickle.apply.state import table_name
from pgtrickle.db import Connection, statement
from pgtrickle.model import Column, PgType, Table
from pgtrickle.physical.lower_full import numbered
from pgtrickle.postgres.aggregate import key_columns
from pgtrickle.postgres.statements.first_rows import FirstRows
from pgtrickle.postgres.statements.result import Storage
from pgtrickle.postgres.statements.state import StateTable
from pgtrickle.postgres.weighted import chain
from pgtrickle.query.compile import Compiled
from pgtrickle.query.operators import Aggregate, InnerJoin, LeftJoin, Match, Operator, Stateful, TopK, walk


@dataclass(frozen=True, slots=True)
class Prepared:
    """All a refresh needs to know of a stream table that does not change from one to the next."""

    pgt_id: int
    compiled: Compiled
    storage: Storage
    states: dict[int, StateTable | FirstRows]
    lockable: tuple[Table, ...]
    upstream: frozenset[int] = frozenset()
    """Those of the sources that are stream tables, by oid."""
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
    def sources(self) -> tuple[Table, ...]:
        return tuple(source.table for source in self.compiled.analysis.sources)

    def state_below(self, node: Stateful) -> int | None:
        """The number of the state that a node's input is read from: of an aggregate, or, by first rows, of others."""
        core, _ = chain(node.input)
        read = isinstance(core, Aggregate) or (isinstance(core, TopK) and isinstance(node, TopK))
        return numbered(self.tree)[core] if read and isinstance(core, Aggregate | TopK) else None


def prepare(connection: Connection, pgt_id: int, schema: str, name: str, compiled: Compiled) -> Prepared:
    columns = tuple(Column(column.name, column.type, column.name) for column in compiled.analysis.columns)
    storage = Storage(schema, name, columns, _hashable_positions(connection, columns))
    states: dict[int, StateTable | FirstRows] = {}
    if compiled.tree is not None:
        for node, number in numbered(compiled.tree).items():
            match node:
                case Aggregate():
                    states[number] = _state_table(connection, pgt_id, number, node)
                case TopK():
                    states[number] = FirstRows(table_name(pgt_id, number), node)
                case _:
                    raise TypeError(f"no state table of {type(node).__name__}")
    return Prepared(pgt_id, compiled, storage, states, _lockable(connection, compiled), _upstream(connection, compiled))


def _state_table(connection: Connection, pgt_id: int, number: int, aggregate: Aggregate) -> StateTable:
    keys = key_columns(aggregate)
    positions = _hashable_positions(connection, keys)
    hashable = frozenset(key.name for position, key in enumerate(keys) if position in positions)
    return StateTable(table_name(pgt_id, number), aggregate, hashable)


def _lockable(connection: Connection, compiled: Compiled) -> tuple[Table, ...]:
    """What can be locked against DDL: tables, and views that are read by name, to more than some columns of which the
    role has rights."""
    tables = {source.table.oid: source.table for source in compiled.analysis.sources if source.kind in {"r", "p"}}
    if compiled.tree is None:  # PostgreSQL reads its views by their names
        tables |= {view.table.oid: view.table for view in compiled.analysis.views}
    allowed = connection.execute(
        "SELECT oid FROM unnest(%s::oid[]) AS oid WHERE has_table_privilege(oid, 'SELECT')", (list(tables),)
    ).fetchall()
    return tuple(tables[int(str(oid))] for (oid,) in allowed)


def _upstream(connection: Connection, compiled: Compiled) -> frozenset[int]:
    sources = [source.table.oid for source in compiled.analysis.sources]
    found = connection.execute(
        "SELECT pgt_relid FROM pgtrickle.pgt_stream_tables WHERE pgt_relid = ANY(%s::oid[])", (sources,)
    )
    return frozenset(int(str(oid)) for (oid,) in found)


def joined_aggregates(tree: Operator) -> frozenset[Aggregate]:
    """Aggregates below a join, whose groups are looked up by key."""
    joins = [node for node in walk(tree) if isinstance(node, InnerJoin | LeftJoin | Match)]
    return frozenset(node for join in joins for node in walk(join) if isinstance(node, Aggregate))


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
