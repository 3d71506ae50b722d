"""From a defining query to an operator tree: analyse, build, check. The entry for `create`, `alter` and `explain`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import psycopg

from pgtrickle.db import caller
from pgtrickle.errors import QueryError, Unsupported
from pgtrickle.model import PgType, Table
from pgtrickle.query import compile_limits, gaps, render, representation
from pgtrickle.query.analyse.analysis import Analysis, Body, SourceRelation
from pgtrickle.query.analyse.analyze import NOT_ITS_FAULT, Accept, Check, analyze
from pgtrickle.query.analyse.scratch_view import scratch
from pgtrickle.query.builder.build import build
from pgtrickle.query.clock import values_in
from pgtrickle.query.labels import labelled, labels
from pgtrickle.query.operators import Operator, walk
from pgtrickle.query.syntax import dialect
from pgtrickle.query.syntax.positions import locate_name

MOST_LEVELS: Final = 50
"""Operators above each other: joins, groupings, subqueries."""

# Types whose equal values may look different: numeric, the floats (0 and -0), interval, char, jsonb, record, citext;
# domains, arrays, ranges and rows of these.
_PRONE = """
WITH RECURSIVE parts(root, part) AS (
    SELECT oid, oid FROM unnest(%s::oid[]) AS oid
    UNION SELECT p.root, x.part FROM parts AS p JOIN pg_catalog.pg_type AS t ON t.oid = p.part CROSS JOIN LATERAL (
        SELECT t.typbasetype UNION ALL SELECT t.typelem
        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range AS r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
        UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) AS x(part) WHERE x.part <> 0
)
SELECT DISTINCT p.root FROM parts AS p JOIN pg_catalog.pg_type AS t ON t.oid = p.part
WHERE p.part = ANY (ARRAY[1700, 700, 701, 1186, 1042, 3802, 2249]::oid[]) OR t.typname = 'citext'
"""


@dataclass(frozen=True, slots=True)
class Compiled:
    """An analysed query; `tree` if it can be maintained incrementally, else `refusal` says why not."""

    analysis: Analysis
    tree: Operator | None
    refusal: Unsupported | None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Those of who defined it: the query is evaluated under what is stored of them."""

    @property
    def followed(self) -> dict[Table, SourceRelation]:
        """The tables whose changes count, each with the source of the query that it stands for: of a query without a
        tree, which is read by its text, the sources themselves."""
        sources = self.analysis.sources
        return {source.table if self.tree is None else source.followed: source for source in sources}

    def without_tree(self) -> Compiled:
        """The same for FULL refresh, which needs no tree."""
        return replace(self, tree=None)


def compile_query(
    conn: psycopg.Connection[Any],
    sql: str,
    *,
    search_path: str | None = None,
    settings: Mapping[str, str] | None = None,
    check: Check | None = None,
    accept: Accept | None = None,
    within_s: float = compile_limits.WITHIN_S,
    with_tree: bool = True,
) -> Compiled:
    """Analyses `sql` and builds its tree, unless told that none is needed. Raises QueryError if PostgreSQL refuses it;
    leaves nothing behind. Path and settings are those of whom we act for, unless they are given. What is too deep, or
    is not done in time, is refused for incremental modes."""
    used = caller(conn).settings if settings is None else settings

    def read() -> Analysis:
        return analyze(conn, sql, search_path=search_path, settings=used, check=check, accept=accept)

    return replace(compile_limits.with_deep_stack(lambda: _compile(conn, read, within_s, with_tree)), settings=used)


def _compile(conn: psycopg.Connection[Any], read: Callable[[], Analysis], within_s: float, with_tree: bool) -> Compiled:
    try:
        analysis = read()
    except RecursionError as error:
        raise QueryError("the query is nested too deeply", code="PT111", hint="write it with fewer levels") from error
    if analysis.reasons:
        return Compiled(analysis, None, analysis.reasons[0])
    if not with_tree:
        return Compiled(analysis, None, None)
    try:
        with compile_limits.within(within_s):
            tree = build(analysis, lambda query: _describe(conn, query))
            _require_faithful(conn, analysis)
            _require_same_types(conn, analysis, tree)
            _require_few_levels(tree)
            _require_definite(conn, tree)
            _require_readable(tree)
            _require_values(conn, tree)
    except Unsupported as refusal:
        return Compiled(analysis, None, refusal)
    except dialect.UnknownSyntaxError as problem:
        return Compiled(analysis, None, gaps.UNFAITHFUL.refuse(str(problem)))
    except RecursionError:
        return Compiled(analysis, None, gaps.TOO_DEEP.refuse())
    return Compiled(analysis, tree, None)


def _require_few_levels(tree: Operator) -> None:
    """Each refresh walks the tree, with the stack that a thread has, and in a time that grows with the levels."""
    levels: dict[int, int] = {}

    def depth(node: Operator) -> int:
        if id(node) not in levels:
            levels[id(node)] = 1 + max(map(depth, node.inputs), default=0)
        return levels[id(node)]

    if depth(tree) > MOST_LEVELS:
        raise gaps.TOO_DEEP.refuse()


def _require_readable(tree: Operator) -> None:
    """All values travel as text, and must be the same when they are read again."""
    for node in walk(tree):
        for column in node.columns:
            if column.type.intervals == "some":
                raise gaps.ROW_OF_INTERVAL.refuse(column.type.name)


def _require_values(conn: psycopg.Connection[Any], tree: Operator) -> None:
    """What is made of the clock alone is looked at by itself: a refresh asks whether it moved."""
    values = values_in(tree)
    if values:
        _describe(conn, f"SELECT {', '.join(f'{value.now.sql} AS v{place}' for place, value in enumerate(values))}")


def _describe(conn: psycopg.Connection[Any], query: str) -> list[PgType]:
    """The types of a query's columns."""
    compile_limits.check_time()
    try:
        with scratch(conn) as place:
            return [column.type for column in place.attributes(place.define(query))]
    except NOT_ITS_FAULT:
        raise
    except psycopg.Error as error:
        raise gaps.UNFAITHFUL.refuse(error.diag.message_primary or str(error)) from error


def _require_faithful(conn: psycopg.Connection[Any], analysis: Analysis) -> None:
    """sqlglot's reading of each text, written out again, must mean the same to PostgreSQL."""
    _require_round_trip(conn, analysis.body, None, None)
    for view in analysis.views:
        _require_round_trip(conn, view.body, locate_name(analysis.sql, view.table.name), str(view.table))


def _require_round_trip(conn: psycopg.Connection[Any], body: Body, at: str | None, view: str | None) -> None:
    with scratch(conn) as place:
        given = place.definition(place.define(body.sql))
    written = dialect.text(dialect.parse(body.sql))
    try:
        with scratch(conn) as place:
            ours = place.definition(place.define(written))
    except NOT_ITS_FAULT:
        raise
    except psycopg.Error as error:
        message = error.diag.message_primary or str(error)
        raise gaps.UNFAITHFUL.refuse(message, at=at, view=view) from error
    if ours != given:
        raise gaps.UNFAITHFUL.refuse("an expression in it would change", at=at, view=view)


def _require_definite(conn: psycopg.Connection[Any], tree: Operator) -> None:
    """No condition may depend on which of several equal values a group shows."""
    types = representation.key_types(tree)
    if not types:
        return
    with scratch(conn, "pg_catalog") as place:
        prone = {int(row[0]) for row in place.rows(_PRONE, (sorted(types),))}
    found = representation.first_condition(tree, prone)
    if found is not None:
        raise gaps.LOOK.refuse(labelled(found.sql, labels(tree)))


def _require_same_types(conn: psycopg.Connection[Any], analysis: Analysis, tree: Operator) -> None:
    """The tree's SQL must give columns of exactly the query's types."""
    found = _describe(conn, render.select(tree))
    for column, type in zip(analysis.columns, found, strict=True):
        if column.type != type:
            raise gaps.UNFAITHFUL.refuse(f"column {column.name} would be {type.name} instead of {column.type.name}")
