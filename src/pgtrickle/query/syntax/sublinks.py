"""Subqueries in expressions, as they are written: EXISTS, IN, ANY, ALL, ARRAY, scalar. Pure; `builder/` makes joins of
them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

_ASKING = frozenset({"ANY", "ALL", "ARRAY", "EXISTS"})
_ASKED = (exp.Any, exp.All, exp.Exists, exp.From, exp.Join, exp.Lateral, exp.SetOperation, exp.Subquery)


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
    return query if isinstance(query, exp.Query | exp.Values) else None


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
    if name in ("ANY", "ALL"):
        query = _of_values(query) or query
    return query if isinstance(query, exp.Query) else None


def _of_values(node: exp.Expr) -> exp.Expr | None:
    """The query of ARRAY(SELECT …) in ANY (…) or ALL (…), which asks for the values in any order; that of a cast array
    has its value cast."""
    if isinstance(node, exp.Cast) and node.to.this == exp.DType.ARRAY and len(node.to.expressions) == 1:
        query = _of_values(bare(node.this))
        if not isinstance(query, exp.Select) or query.args.get("distinct"):
            return None
        made = query.copy()
        value = made.expressions[0]
        value.replace(exp.Cast(this=exp.Paren(this=value.unalias().copy()), to=node.to.expressions[0].copy()))
        return made
    query = array_query(node)
    return query if query is not None and query.args.get("order") is None else None


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
