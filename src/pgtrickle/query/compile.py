"""From a defining query to an operator tree: analyse, build, check. The entry for `create`, `alter` and `explain`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg

from pgtrickle.errors import QueryError, Unsupported
from pgtrickle.model import PgType
from pgtrickle.query import dialect, limits, render, support
from pgtrickle.query.analysis import Analysis, Body
from pgtrickle.query.analyze import NOT_ITS_FAULT, analyze
from pgtrickle.query.build import build
from pgtrickle.query.locate import locate_name
from pgtrickle.query.operators import Operator, walk
from pgtrickle.query.scratch import scratch

MOST_LEVELS: Final = 50
"""Operators above each other: joins, groupings, subqueries."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """An analysed query; `tree` if it can be maintained incrementally, else `refusal` says why not."""

    analysis: Analysis
    tree: Operator | None
    refusal: Unsupported | None

    def without_tree(self) -> Compiled:
        """The same for FULL refresh, which needs no tree."""
        return replace(self, tree=None)


def compile_query(
    conn: psycopg.Connection[Any],
    sql: str,
    *,
    search_path: str | None = None,
    within_s: float = limits.WITHIN_S,
    with_tree: bool = True,
) -> Compiled:
    """Analyses `sql` and builds its tree, unless told that none is needed. Raises QueryError if PostgreSQL refuses it;
    leaves nothing behind. What is too deep, or is not done in time, is refused for incremental modes."""
    return limits.with_deep_stack(lambda: _compile(conn, sql, search_path, within_s, with_tree))


def _compile(
    conn: psycopg.Connection[Any], sql: str, search_path: str | None, within_s: float, with_tree: bool
) -> Compiled:
    try:
        analysis = analyze(conn, sql, search_path=search_path)
    except RecursionError as error:
        raise QueryError("the query is nested too deeply", code="PT111", hint="write it with fewer levels") from error
    if analysis.reasons:
        return Compiled(analysis, None, analysis.reasons[0])
    if not with_tree:
        return Compiled(analysis, None, None)
    try:
        with limits.within(within_s):
            tree = build(analysis, lambda query: _describe(conn, query))
            _require_faithful(conn, analysis)
            _require_same_types(conn, analysis, tree)
            _require_few_levels(tree)
            _require_readable(tree)
    except Unsupported as refusal:
        return Compiled(analysis, None, refusal)
    except dialect.UnknownSyntaxError as problem:
        return Compiled(analysis, None, support.UNFAITHFUL.refuse(str(problem)))
    except RecursionError:
        return Compiled(analysis, None, support.TOO_DEEP.refuse())
    return Compiled(analysis, tree, None)


def _require_few_levels(tree: Operator) -> None:
    """Each refresh walks the tree, with the stack that a thread has, and in a time that grows with the levels."""
    levels: dict[int, int] = {}

    def depth(node: Operator) -> int:
        if id(node) not in levels:
            levels[id(node)] = 1 + max(map(depth, node.inputs), default=0)
        return levels[id(node)]

    if depth(tree) > MOST_LEVELS:
        raise support.TOO_DEEP.refuse()


def _require_readable(tree: Operator) -> None:
    """All values travel as text, and must be the same when they are read again."""
    for node in walk(tree):
        for column in node.columns:
            if column.type.intervals == "some":
                raise support.ROW_OF_INTERVAL.refuse(column.type.name)


def _describe(conn: psycopg.Connection[Any], query: str) -> list[PgType]:
    """The types of a query's columns."""
    limits.check_time()
    try:
        with scratch(conn, "pg_catalog") as place:
            return [column.type for column in place.attributes(place.define(query))]
    except NOT_ITS_FAULT:
        raise
    except psycopg.Error as error:
        raise support.UNFAITHFUL.refuse(error.diag.message_primary or str(error)) from error


def _require_faithful(conn: psycopg.Connection[Any], analysis: Analysis) -> None:
    """sqlglot's reading of each text, written out again, must mean the same to PostgreSQL."""
    _require_round_trip(conn, analysis.body, None, None)
    for view in analysis.views:
        _require_round_trip(conn, view.body, locate_name(analysis.sql, view.table.name), str(view.table))


def _require_round_trip(conn: psycopg.Connection[Any], body: Body, at: str | None, view: str | None) -> None:
    with scratch(conn, "pg_catalog") as place:
        given = place.definition(place.define(body.sql))
    written = dialect.text(dialect.parse(body.sql))
    try:
        with scratch(conn, "pg_catalog") as place:
            ours = place.definition(place.define(written))
    except NOT_ITS_FAULT:
        raise
    except psycopg.Error as error:
        message = error.diag.message_primary or str(error)
        raise support.UNFAITHFUL.refuse(message, at=at, view=view) from error
    if _comparable(ours) != _comparable(given):
        raise support.UNFAITHFUL.refuse("an expression in it would change", at=at, view=view)


def _comparable(normalised: str) -> str:
    """On a boolean, UNKNOWN and NULL are the same; sqlglot keeps only the second."""
    return normalised.replace("IS UNKNOWN", "IS NULL").replace("IS NOT UNKNOWN", "IS NOT NULL")


def _require_same_types(conn: psycopg.Connection[Any], analysis: Analysis, tree: Operator) -> None:
    """The tree's SQL must give columns of exactly the query's types."""
    found = _describe(conn, render.select(tree))
    for column, type in zip(analysis.columns, found, strict=True):
        if column.type != type:
            raise support.UNFAITHFUL.refuse(f"column {column.name} would be {type.name} instead of {column.type.name}")
