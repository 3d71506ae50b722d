"""SEARCH and CYCLE clauses of a recursive WITH query, spelled out as columns. Pure; called by `builder/recursion.py`.

    base UNION ALL step  CYCLE id SET m TO v DEFAULT d USING p

    SELECT …, d AS m, ARRAY[ROW(id)] AS p          UNION ALL
    SELECT …, CASE WHEN ROW(id) = ANY (r.p) THEN v ELSE d END, r.p || ROW(id) … WHERE r.m <> v

So PostgreSQL does itself. Rows as a path has them cannot be stored: here they are texts, equal if the rows are,
where equal values have one text. A path is known by no name outside. SEARCH only adds such a column: where duplicates
stay, it says nothing of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from pgtrickle.query.syntax import dialect


@dataclass(frozen=True, slots=True)
class Spelled:
    """Both terms of a recursion with more columns; those `hidden` only the terms may read. `keys` are the places of
    the columns that make up the rows of a path."""

    base: exp.Expr
    step: exp.Expr
    hidden: frozenset[str] = frozenset()
    keys: tuple[int, ...] = ()


class UnknownFormError(ValueError):
    """The terms are not as the clauses need them."""


_SEARCH, _PATH = "pgt search", "pgt path"
"""Columns of the working table that only what is spelled out here reads."""


def spelled_out(part: exp.CTE, union: exp.Union, renamed: Sequence[str]) -> Spelled:
    """The terms of a recursion; `renamed` are the names that its first columns are given."""
    search, cycle = part.args.get("search"), part.args.get("cycle")
    distinct = bool(union.args.get("distinct"))
    if cycle is None and (search is None or not distinct):
        return Spelled(union.this, union.expression)
    base, step = union.this.copy(), union.expression.copy()
    if not all(isinstance(term, exp.Select) and not term.args.get("group") for term in (base, step)):
        raise UnknownFormError
    columns = [*renamed, *(each.alias_or_name for each in base.expressions[len(renamed) :])]
    writer = _Writer(base, step, _alias(step, part.alias), columns)
    if search is not None and distinct:
        writer.search(search)
    if cycle is not None:
        writer.cycle(cycle)
    return Spelled(base, step, frozenset({_SEARCH, _PATH}), tuple(writer.keys))


def _alias(step: exp.Expr, name: str) -> str:
    """What the recursion is called in its own term."""
    joins = [join.this for join in step.args.get("joins") or []]
    for item in (step.args["from_"].this, *joins):
        for table in item.find_all(exp.Table):
            if not table.db and table.name == name:
                return str(table.alias_or_name)
    raise UnknownFormError


class _Writer:
    """Adds columns to both terms."""

    def __init__(self, base: exp.Expr, step: exp.Expr, alias: str, columns: list[str]) -> None:
        self._base, self._step, self._alias, self._columns = base, step, alias, columns
        self.keys: list[int] = []

    def search(self, clause: dialect.Search) -> None:
        if clause.args.get("breadth"):  # the columns of the row besides say nothing more
            one = exp.Literal.number(1)
            self._add(_SEARCH, exp.Literal.number(0), exp.Add(this=self._read(_SEARCH), expression=one))
        else:
            self._path(_SEARCH, clause.expressions)

    def cycle(self, clause: dialect.Cycle) -> None:
        mark, value, default = clause.args["mark"].name, clause.args["value"], clause.args["default"]
        there = exp.EQ(
            this=self._row(self._step, clause.expressions), expression=exp.Any(this=exp.Paren(this=self._read(_PATH)))
        )
        case = exp.Case(ifs=[exp.If(this=there, true=value.copy())], default=default.copy())
        self._add(mark, default.copy(), case)
        self._path(_PATH, clause.expressions)
        goes_on = exp.NEQ(this=self._read(mark), expression=value.copy())
        where = self._step.args.get("where")
        all_of = goes_on if where is None else exp.And(this=exp.Paren(this=where.this), expression=goes_on)
        self._step.set("where", exp.Where(this=all_of))

    def _path(self, name: str, columns: list[exp.Expr]) -> None:
        first = exp.Array(expressions=[self._row(self._base, columns)])
        longer = exp.DPipe(this=self._read(name), expression=self._row(self._step, columns))
        self._add(name, first, longer)

    def _row(self, term: exp.Expr, columns: list[exp.Expr]) -> exp.Expr:
        """The text of the row of some of a term's own columns."""
        places = [self._columns.index(column.name) for column in columns]
        self.keys += [place for place in places if place not in self.keys]
        parts = [term.expressions[place].unalias().copy() for place in places]
        return exp.Cast(this=exp.Anonymous(this="ROW", expressions=parts), to=exp.DataType(this=exp.DType.TEXT))

    def _read(self, name: str) -> exp.Expr:
        alias = exp.to_identifier(self._alias, quoted=True)
        return exp.Column(this=exp.to_identifier(name, quoted=True), table=alias)

    def _add(self, name: str, first: exp.Expr, then: exp.Expr) -> None:
        for term, made in ((self._base, first), (self._step, then)):
            term.append("expressions", exp.Alias(this=made, alias=exp.to_identifier(name, quoted=True)))
