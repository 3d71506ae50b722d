"""What PostgreSQL says about a query: values only, made by `analyze.py`, read by `builder/build.py` and by callers.
Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pgtrickle.errors import Unsupported
from pgtrickle.model import OID, TABLEOID, PgType, Table
from pgtrickle.query.syntax.resolved_keys import Grouped


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column of a source; `generated` is pg_attribute.attgenerated ('' if it is an ordinary column)."""

    number: int
    name: str
    type: PgType
    generated: str = ""


_TABLEOID = Attribute(-6, TABLEOID, OID)


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of the query's result."""

    name: str
    type: PgType


@dataclass(frozen=True, slots=True)
class SourceRelation:
    """A relation the query reads, directly or through views.

    `kind` is pg_class.relkind (r, p, f, m, S); `attributes` are all its live columns, `used` the numbers of those
    read; `children` are partitions or inheritance children, all levels.
    """

    table: Table
    kind: str
    attributes: tuple[Attribute, ...]
    used: frozenset[int]
    children: tuple[int, ...]
    system: bool
    primary_key: tuple[str, ...]
    only: bool = False
    """Whether the query reads ONLY it somewhere: without tables that inherit from it."""
    copy: Table | None = None
    """What is read in its place where the query is maintained incrementally (`capture/copies.py`), if that is there."""

    @property
    def is_compared(self) -> bool:
        """Whether nothing tells its changes, so that it is compared with a copy."""
        return self.kind in ("m", "f") and not self.system

    @property
    def followed(self) -> Table:
        """The table whose changes a stream table follows."""
        return self.copy or self.table

    @property
    def apart(self) -> bool:
        """Whether changes of its own rows are told from those of tables that inherit from it."""
        return self.only and bool(self.children) and self.kind == "r"

    @property
    def columns(self) -> tuple[Attribute, ...]:
        """The columns used, and what tells which table a row is of where that counts."""
        used = tuple(attribute for attribute in self.attributes if attribute.number in self.used)
        return (*used, _TABLEOID) if self.apart else used


@dataclass(frozen=True, slots=True)
class Body:
    """A query in PostgreSQL's normalised text, every name qualified; `aggregates` counts its aggregate calls, `grouped`
    has the keys of its grouping sets."""

    sql: str
    aggregates: int
    grouped: tuple[Grouped, ...] = ()


@dataclass(frozen=True, slots=True)
class InlinedView:
    """A view among the sources; its body takes its place. `columns` are its own names of them."""

    table: Table
    body: Body
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A function, aggregate or operator's function that the query calls."""

    oid: int
    schema: str
    name: str
    arguments: str
    volatility: str
    kind: str
    returns_set: bool
    builtin: bool


_PG_CLASS, _PG_PROC, _PG_CONSTRAINT = 1259, 1255, 2606
"""The oids of these catalogs, which are fixed."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What a plan depends on, by oid: the argument of `fingerprint()`. Plain values, so that it can be stored.

    `objects` are all others that the query reaches (`dependencies.py`), as pg_depend addresses them; `texts` what
    PostgreSQL makes of the query, which tells a cast or a function that took another's place.
    """

    relations: tuple[tuple[int, tuple[int, ...]], ...]
    views: tuple[int, ...]
    functions: tuple[int, ...]
    constraints: tuple[int, ...]
    objects: tuple[tuple[int, int, int], ...] = ()
    texts: tuple[str, ...] = ()

    @property
    def addresses(self) -> list[tuple[int, int, int]]:
        """All of them as pg_depend would address them: catalog, object, column."""
        return [
            *((_PG_CLASS, oid, 0) for oid, _ in self.relations),
            *((_PG_CLASS, oid, number) for oid, numbers in self.relations for number in numbers),
            *self.addresses_of_code,
            *((_PG_CONSTRAINT, oid, 0) for oid in self.constraints),
        ]

    @property
    def addresses_of_code(self) -> list[tuple[int, int, int]]:
        """Those that are neither tables nor what tables have."""
        return [
            *((_PG_CLASS, oid, 0) for oid in self.views),
            *((_PG_PROC, oid, 0) for oid in self.functions),
            *self.objects,
        ]


NO_DEPENDENCIES = Dependencies((), (), (), ())


@dataclass(frozen=True, slots=True)
class Analysis:
    """The answer of `analyze()`. `reasons` say why it cannot be maintained incrementally; empty if it may be."""

    sql: str
    body: Body
    columns: tuple[OutputColumn, ...]
    sources: tuple[SourceRelation, ...]
    views: tuple[InlinedView, ...]
    functions: tuple[Function, ...]
    constraints: tuple[int, ...]
    reasons: tuple[Unsupported, ...]
    objects: tuple[tuple[int, int, int], ...] = ()
    named_columns: frozenset[tuple[int, int]] = frozenset()
    """The columns that the query itself reads, of tables and of views, by relation and number."""
    reads_clock: bool = False
    """Whether the time is part of the answer: that of the refresh."""
    views_read_clock: bool = False
    """Whether a view among the sources is why."""

    @property
    def normalised(self) -> str:
        """The query as PostgreSQL prints it, every name qualified: means the same under any search_path."""
        return self.body.sql

    @property
    def incremental(self) -> bool:
        return not self.reasons

    @property
    def dependencies(self) -> Dependencies:
        return Dependencies(
            relations=tuple((source.table.oid, tuple(sorted(source.used))) for source in self.sources),
            views=tuple(view.table.oid for view in self.views),
            functions=tuple(sorted(function.oid for function in self.functions if not function.builtin)),
            constraints=self.constraints,
            objects=self.objects,
            texts=(self.body.sql,),
        )
