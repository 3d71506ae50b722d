"""Subqueries in expressions (EXISTS, IN, ANY, ALL, scalar) to joins. Pure; a part of `build.py`.

A subquery is built into a right side and a condition that may read the query around it; `attach` joins it to the
rows of that query. A conjunct of WHERE becomes a semi-join or an anti-join; elsewhere (under OR, in the select list)
the answer is a column of a mark join. A scalar subquery is grouped by what it is correlated on and joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from sqlglot import exp

from pgtrickle.model import FIRST_USER_OID, Column, PgType
from pgtrickle.query.builder.column_factory import ColumnFactory
from pgtrickle.query.builder.keyed_subquery import Keyed
from pgtrickle.query.expression import column_node, from_node, tree_columns
from pgtrickle.query.operators import InnerJoin, LeftJoin, Match, MatchKind, Operator
from pgtrickle.query.syntax import dialect
from pgtrickle.query.syntax.sublinks import Test

_BOOLEAN = PgType(16, "boolean")
_RECORD = 2249


class Join(Enum):
    """How a subquery is joined to the rows around it."""

    SEMI = "semi"
    ANTI = "anti"
    MARK = "mark"
    LEFT = "left"
    CROSS = "cross"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A subquery to join; `condition` is over columns of both sides, `mark` the column of a MARK's answer."""

    right: Operator
    condition: exp.Expr | None
    join: Join
    mark: Column | None = None


@dataclass(frozen=True, slots=True)
class Inner:
    """A subquery built: its rows, its output columns, and the conjuncts that read the query around it.

    `keyed`: these ask for keys of the rows.
    """

    operator: Operator
    outputs: tuple[str, ...]
    correlated: tuple[exp.Expr, ...] = ()
    keyed: Keyed | None = None


def filters(test: Test, inner: Inner, operands: Sequence[exp.Expr], *, wanted: bool) -> list[Attachment]:
    """The joins that keep the rows for which the answer is true (or, if not `wanted`, false): NULL keeps nothing."""
    compared = _comparison(test, inner, operands)
    if compared is None:  # EXISTS
        return [_attachment(inner, None, Join.SEMI if wanted else Join.ANTI)]
    if test.all_:  # some row says no or does not know; some row says no
        return (
            [_attachment(inner, _is(compared, "NOT TRUE"), Join.ANTI)]
            if wanted
            else [_attachment(inner, _is(compared, "FALSE"), Join.SEMI)]
        )
    if wanted:
        return [_attachment(inner, compared, Join.SEMI)]
    if len(operands) == 1 and _null_if_either_is(inner):
        # Yes or unknown for some row: equal, or one side is NULL. Apart, the first finds its rows by key.
        return [
            _attachment(inner, compared, Join.ANTI),
            _attachment(inner, _is(operands[0], "NULL"), Join.ANTI),
            _attachment(inner, _is(column_node(inner.outputs[0]), "NULL"), Join.ANTI),
        ]
    return [_attachment(inner, _is(compared, "NOT FALSE"), Join.ANTI)]


def marks(
    test: Test, inner: Inner, operands: Sequence[exp.Expr], factory: ColumnFactory
) -> tuple[list[Attachment], exp.Expr]:
    """The joins that find the answer, and the answer as an expression of three values."""
    compared = _comparison(test, inner, operands)
    decisive = None if compared is None else _is(compared, "FALSE") if test.all_ else compared
    first = _attachment(inner, decisive, Join.MARK, factory.column(_BOOLEAN))
    if compared is None:
        return [first], _mark(first)
    second = _attachment(inner, _is(compared, "NULL"), Join.MARK, factory.column(_BOOLEAN))
    decided, undecided = (exp.false(), exp.true()) if test.all_ else (exp.true(), exp.false())
    cases = [exp.If(this=_mark(first), true=decided), exp.If(this=_mark(second), true=exp.null())]
    return [first, second], exp.Paren(this=exp.Case(ifs=cases, default=undecided))


def _mark(attachment: Attachment) -> exp.Column:
    assert attachment.mark is not None
    return column_node(attachment.mark.name)


def _comparison(test: Test, inner: Inner, operands: Sequence[exp.Expr]) -> exp.Expr | None:
    if not operands:
        return None
    outputs = [column_node(name) for name in inner.outputs]
    if (
        len(operands) > 1 and test.comparison is not exp.EQ
    ):  # rows differ if one of the columns does; < goes by the first
        one, other = (exp.Tuple(expressions=[part.copy() for part in side]) for side in (operands, outputs))
        return test.compares(one, other)
    pairs = zip(operands, outputs, strict=True)
    parts = [test.compares(exp.Paren(this=operand.copy()), output) for operand, output in pairs]
    return parts[0] if len(parts) == 1 else exp.and_(*parts)


def _is(node: exp.Expr, what: str) -> exp.Expr:
    return dialect.parse_expression(f"({dialect.text(node)}) IS {what}")


def _null_if_either_is(inner: Inner) -> bool:
    """Whether the comparison is one of PostgreSQL's own scalars, and so is NULL just if one side is."""
    type_ = next(column.type for column in inner.operator.columns if column.name == inner.outputs[0])
    return type_.oid < FIRST_USER_OID and type_.oid != _RECORD


def _attachment(inner: Inner, condition: exp.Expr | None, join: Join, mark: Column | None = None) -> Attachment:
    parts = [part.copy() for part in inner.correlated] + ([] if condition is None else [condition])
    together = exp.and_(*parts) if len(parts) > 1 else parts[0] if parts else None
    return Attachment(inner.operator, together, join, mark)


def attach(operator: Operator, attachment: Attachment) -> Operator:
    """`operator` joined with the subquery."""
    right = attachment.right
    condition = None if attachment.condition is None else from_node(attachment.condition)
    columns = operator.columns + right.columns
    match attachment.join:
        case Join.CROSS:
            return InnerJoin(columns, operator, right, condition)
        case Join.LEFT:
            return LeftJoin(columns, operator, right, condition)
    mark = () if attachment.mark is None else (attachment.mark,)
    return Match(operator.columns + mark, operator, right, condition, MatchKind[attachment.join.name])


def reads_around(attachment: Attachment, known: set[str]) -> bool:
    """Whether the condition reads columns that are neither its own side's nor among `known`."""
    if attachment.condition is None:
        return False
    read = {column.name for column in tree_columns(attachment.condition)}
    return not read <= known | set(attachment.right.names)
