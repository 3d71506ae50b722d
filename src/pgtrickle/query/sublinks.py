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

from pgtrickle.model import Column, PgType
from pgtrickle.query import dialect
from pgtrickle.query.bench import Bench
from pgtrickle.query.expression import column_node, from_node, tree_columns
from pgtrickle.query.keyed import Keyed
from pgtrickle.query.operators import InnerJoin, LeftJoin, Match, MatchKind, Operator

_BOOLEAN = PgType(16, "boolean")
_RECORD, _FIRST_USER_OID = 2249, 16384
_ASKING = frozenset({"ANY", "ALL", "ARRAY", "EXISTS"})
_ASKED = (exp.Any, exp.All, exp.Exists, exp.From, exp.Join, exp.Lateral, exp.SetOperation, exp.Subquery)


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


@dataclass(frozen=True, slots=True)
class Test:
    """A sublink that asks a yes-or-no question: `operands` compared with the outputs by `comparison`.

    EXISTS has no operands. `all_`: the comparison must hold for every row, not for some. `kind` is what else the
    comparison's node says: NOT LIKE is a LIKE that is negated.
    """

    query: exp.Expr
    operands: tuple[exp.Expr, ...] = ()
    comparison: type[exp.Binary] = exp.EQ
    all_: bool = False
    kind: tuple[tuple[str, object], ...] = ()

    def compares(self, one: exp.Expr, other: exp.Expr) -> exp.Expr:
        """The comparison of two values, or of two rows."""
        return self.comparison(this=one, expression=other, **dict(self.kind))


def recognise(node: exp.Expr) -> Test | None:
    """The question that a syntax node asks of a subquery, if it is such a sublink."""
    if isinstance(node, exp.Exists):
        return Test(node.this)
    if isinstance(node, exp.In) and node.args.get("query") is not None:
        return Test(bare(node.args["query"]), _operands(node.this))
    if isinstance(node, exp.In) and len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Values):
        return Test(node.expressions[0], _operands(node.this))
    if isinstance(node, exp.Binary):
        any_, all_ = (_called(name, node.expression) for name in ("ANY", "ALL"))
        query = any_ or all_
        kind = tuple((name, value) for name, value in node.args.items() if name not in ("this", "expression"))
        return None if query is None else Test(query, _operands(node.this), type(node), all_ is not None, kind)
    query = _called("EXISTS", node)
    return None if query is None else Test(query)


def spelled_out(query: exp.Expr) -> exp.Expr:
    """The query with a !~ ALL (…) as NOT (a ~ ANY (…)), which it means; sqlglot takes it for NOT (a ~ ALL (…)).

    That itself has its parentheses.
    """

    def replace(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Not) or not isinstance(node.this, exp.RegexpLike | exp.RegexpILike):
            return node
        any_, all_ = (_called(name, node.this.expression) for name in ("ANY", "ALL"))
        inner = any_ or all_
        if inner is not None:
            node.this.set("expression", (exp.Any if all_ is not None else exp.All)(this=inner))
        return node

    return query.transform(replace)


def row_query(node: exp.Expr) -> exp.Expr | None:
    """The query of (a, b) = (SELECT x, y …), of which one row is wanted, or none."""
    if not isinstance(node, exp.Binary) or not isinstance(node.this, exp.Tuple):
        return None
    query = bare(node.expression)
    return query if isinstance(query, exp.Query) else None


def compared_rows(node: exp.Expr, operands: Sequence[exp.Expr], values: Sequence[exp.Expr]) -> exp.Expr:
    """The comparison `node` makes, of these; by = it is one of each column, so that rows are found by key."""
    if type(node) is exp.EQ:
        pairs = zip(operands, values, strict=True)
        return exp.Paren(this=exp.and_(*(exp.EQ(this=exp.Paren(this=one), expression=other) for one, other in pairs)))
    one, other = (exp.Tuple(expressions=list(side)) for side in (operands, values))
    return exp.Paren(this=type(node)(this=one, expression=other))


def asked(node: exp.Expr) -> exp.Expr | None:
    """The query that EXISTS, IN, ANY, ALL or ARRAY asks; of ARRAY, if its values are in a definite order."""
    test = recognise(node)
    query = array_query(node)
    return test.query if test is not None else query if query is None or is_in_order(query) else None


def array_query(node: exp.Expr) -> exp.Expr | None:
    """The query of ARRAY(SELECT …)."""
    return _called("ARRAY", node)


def is_in_order(query: exp.Expr) -> bool:
    """Whether its rows come in a definite order: that of ORDER BY, or of the one function or VALUES it reads."""
    query = bare(query)
    if query.args.get("order") is not None:
        return True
    if not isinstance(query, exp.Select):
        return isinstance(query, exp.Values)
    sorts = ("joins", "group", "having", "distinct", "with_")
    first = query.args.get("from_")
    return not any(query.args.get(part) for part in sorts) and not (first and isinstance(first.this, exp.Subquery))


def _called(name: str, node: exp.Expr) -> exp.Expr | None:
    """The query in NAME (…); sqlglot takes it for a function's argument if that begins with a parenthesis."""
    if isinstance(node, exp.Any | exp.All) and type(node).__name__.upper() == name:
        query = bare(node.this)
    elif isinstance(node, exp.Anonymous) and node.name.upper() == name and len(node.expressions) == 1:
        query = bare(node.expressions[0])
    else:
        return None
    return query if isinstance(query, exp.Query) else None


def asks(node: exp.Expr) -> bool:
    """Whether there is a subquery in an expression."""
    return node.find(exp.Query, exp.Values) is not None


def is_value(node: exp.Expr) -> bool:
    """Whether a node is an expression, not a query that one asks, nor one in FROM, nor what ORDER BY says of one."""
    if not isinstance(node, exp.Subquery):
        return not isinstance(node, exp.Query | exp.Ordered)
    inner: exp.Expr = node
    while isinstance(inner.parent, exp.Paren):
        inner = inner.parent
    above = inner.parent
    if isinstance(above, exp.In):
        return inner.arg_key == "this"
    named = isinstance(above, exp.Anonymous) and above.name.upper() in _ASKING
    return not named and not isinstance(above, _ASKED)


def as_value(node: exp.Expr) -> exp.Expr:
    """An expression, or a query as one."""
    return exp.Subquery(this=node.copy()) if isinstance(node, exp.Query) and not is_value(node) else node


def bare(node: exp.Expr) -> exp.Expr:
    """The query in any number of parentheses that add nothing."""
    while isinstance(node, exp.Subquery | exp.Paren) and not node.args.get("joins") and not node.args.get("with_"):
        node = node.this
    return node


def _operands(node: exp.Expr) -> tuple[exp.Expr, ...]:
    return tuple(node.expressions) if isinstance(node, exp.Tuple) else (node,)


def conjuncts(node: exp.Expr) -> list[exp.Expr]:
    """The parts of a conjunction, NOT (a OR b) being NOT a AND NOT b, and NOT NOT a being a."""
    node = _plain(node)
    if isinstance(node, exp.And):
        return conjuncts(node.left) + conjuncts(node.right)
    if isinstance(node, exp.Not):
        inner = _plain(node.this)
        if isinstance(inner, exp.Or):
            return conjuncts(exp.Not(this=exp.Paren(this=inner.left))) + conjuncts(
                exp.Not(this=exp.Paren(this=inner.right))
            )
        if isinstance(inner, exp.Not):
            return conjuncts(inner.this)
    return [node]


def negated(node: exp.Expr) -> tuple[exp.Expr, bool]:
    """What stands under a NOT, and whether there is one."""
    node = _plain(node)
    return (_plain(node.this), True) if isinstance(node, exp.Not) else (node, False)


def _plain(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


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


def marks(test: Test, inner: Inner, operands: Sequence[exp.Expr], bench: Bench) -> tuple[list[Attachment], exp.Expr]:
    """The joins that find the answer, and the answer as an expression of three values."""
    compared = _comparison(test, inner, operands)
    decisive = None if compared is None else _is(compared, "FALSE") if test.all_ else compared
    first = _attachment(inner, decisive, Join.MARK, bench.column(_BOOLEAN))
    if compared is None:
        return [first], _mark(first)
    second = _attachment(inner, _is(compared, "NULL"), Join.MARK, bench.column(_BOOLEAN))
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
    return type_.oid < _FIRST_USER_OID and type_.oid != _RECORD


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
