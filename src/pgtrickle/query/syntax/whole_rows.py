"""Rows as a whole (`to_jsonb(t)`, `count(t)`), written as what they are made of. Pure; a part of `builder/build.py`.

    t.*    of a table or view          →    ROW(t.a, t.b)::s.t
    s.*    of a subquery or WITH       →    (SELECT "its row".*::record FROM (SELECT s.a AS a, s.b AS b) "its row")
    count(t.*)                         →    count(1)

An outer join may have padded the item: then there is no row, which is not a row of NULLs. So the item gets a column
that says that it is there:

    t LEFT JOIN u    →    t LEFT JOIN (SELECT u.a, u.b, true AS "is there" FROM u) u,  CASE WHEN u."is there" THEN … END

The type of a table's row is looked up by what the table is now: a column that it gains is one of the row's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from sqlglot import exp

from pgtrickle.model import quote
from pgtrickle.query.syntax import dialect, query_levels, sublinks
from pgtrickle.query.syntax.inline_ctes import definition

_ROW, _THERE = "its row", "is there"

#: The columns of a table or view, by schema and name; None if it is not known.
Columns: TypeAlias = Callable[[str, str], Sequence[str] | None]


def spelled_out(query: exp.Expr, columns: Columns) -> exp.Expr:
    """The query with its whole rows written out, in place; those that are not understood are left."""
    found = [column for column in query.find_all(exp.Column) if is_whole_row(column)]
    rows = [(column, _Row.read(column, columns)) for column in found]
    flagged: dict[int, tuple[exp.Expr, _Row]] = {}
    for column, row in rows:
        if row is not None and row.may_be_missing:
            flagged[id(row.item)] = row.item, row
        if row is not None:
            column.replace(row.value(column))
    for item, row in flagged.values():
        _say_that_it_is_there(item, row.fields)
    return query


def is_whole_row(node: exp.Expr) -> bool:
    """Whether it is t.* in an expression, which is not a list of columns there."""
    return isinstance(node, exp.Column) and isinstance(node.this, exp.Star)


class _Row:
    """A whole row of an item of FROM: its fields, as (name, column), and its type if that has a name."""

    def __init__(
        self, item: exp.Expr, alias: str, fields: Sequence[tuple[str, str]], type_: str | None, missing: bool
    ) -> None:
        self.item = item
        self.fields = fields
        self.may_be_missing = missing
        self._alias = alias
        self._type = type_

    @classmethod
    def read(cls, column: exp.Column, columns: Columns) -> _Row | None:
        select = query_levels.reader(column)
        item = None if select is None else query_levels.item(select, column.table)
        if select is None or item is None:
            return None
        missing = any(join.args.get("side") for join in select.find_all(exp.Join))
        named = _of_relation(item, columns) if isinstance(item, exp.Table) else None
        if named is not None:
            type_, fields = named
            return cls(item, column.table, fields, type_, missing) if fields else None
        labels = _labels(item)
        if not labels or len(set(labels)) < len(labels):
            return None
        return cls(item, column.table, [(label, label) for label in labels], None, missing)

    def value(self, column: exp.Column) -> exp.Expr:
        """What stands in place of a reference to the row."""
        there = self._column(_THERE)
        above = column.parent
        if isinstance(above, exp.Anonymous) and above.name == "count" and not isinstance(above.parent, exp.Dot):
            one = exp.Literal.number(1)
            return exp.Case(ifs=[exp.If(this=there, true=one)]) if self.may_be_missing else one
        row = self._record() if self._type is None else self._of_type(self._type)
        return exp.Paren(this=exp.Case(ifs=[exp.If(this=there, true=row)])) if self.may_be_missing else row

    def _of_type(self, type_: str) -> exp.Expr:
        listed = ", ".join(dialect.text(self._column(column)) for _, column in self.fields)
        return exp.Paren(this=dialect.parse_expression(f"ROW({listed})::{type_}"))

    def _record(self) -> exp.Expr:
        listed = ", ".join(f"{dialect.text(self._column(column))} AS {quote(name)}" for name, column in self.fields)
        return dialect.parse_expression(f'(SELECT "{_ROW}".*::record FROM (SELECT {listed}) AS "{_ROW}")')

    def _column(self, name: str) -> exp.Column:
        return exp.column(exp.to_identifier(name, quoted=True), exp.to_identifier(self._alias, quoted=True))


def _of_relation(item: exp.Table, columns: Columns) -> tuple[str, list[tuple[str, str]]] | None:
    """The row type of a table or view, and its fields under the names that the alias gives the columns."""
    names = columns(item.db, item.name) if item.db and isinstance(item.this, exp.Identifier) else None
    if names is None:
        return None
    renamed = _renamed(item)
    fields = zip(names, [*renamed, *names[len(renamed) :]], strict=True)
    return f"{quote(item.db)}.{quote(item.name)}", list(fields)


def _labels(item: exp.Expr) -> list[str]:
    """The names of the columns of a subquery or WITH query."""
    if isinstance(item, exp.Table):
        named = None if item.db or not isinstance(item.this, exp.Identifier) else definition(item.name, item)
        below = None if named is None else _query_labels(named.this, _renamed(named))
    else:
        inner = item.this if isinstance(item, exp.Lateral) else item
        is_query = isinstance(inner, exp.Subquery) and isinstance(sublinks.bare(inner.this), exp.Query)
        below = _query_labels(inner.this, []) if is_query else None
    if below is None:
        return []
    renamed = _renamed(item)
    return [*renamed, *below[len(renamed) :]]


def _query_labels(query: exp.Expr, renamed: list[str]) -> list[str] | None:
    core = sublinks.bare(query)
    while isinstance(core, exp.SetOperation):
        core = sublinks.bare(core.this)
    if not isinstance(core, exp.Select):
        return None
    names = [part.output_name for part in core.expressions]
    return [*renamed, *names[len(renamed) :]] if all(names) else None


def _renamed(item: exp.Expr) -> list[str]:
    alias = item.args.get("alias")
    return [] if alias is None else [column.name for column in alias.columns]


def _say_that_it_is_there(item: exp.Expr, fields: Sequence[tuple[str, str]]) -> None:
    """Puts an item into a subquery that has one column more."""
    alias = exp.to_identifier(item.alias_or_name, quoted=True)
    inner = item.copy()
    inner.set("joins", None)
    is_lateral = isinstance(item, exp.Lateral)
    if is_lateral:
        inner = exp.Subquery(this=inner.this.this, alias=inner.args.get("alias"))
    listed = [exp.column(exp.to_identifier(column, quoted=True), alias.copy()) for _, column in fields]
    there = exp.Alias(this=exp.true(), alias=exp.to_identifier(_THERE, quoted=True))
    query = exp.Select(
        expressions=[*(exp.Alias(this=column, alias=column.this.copy()) for column in listed), there],
        from_=exp.From(this=inner),
    )
    called = exp.TableAlias(this=alias)
    if is_lateral:
        item.replace(exp.Lateral(this=exp.Subquery(this=query), alias=called))
    else:
        item.replace(exp.Subquery(this=query, alias=called, joins=item.args.get("joins")))
