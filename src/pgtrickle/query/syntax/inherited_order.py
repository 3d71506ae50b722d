"""The ORDER BY of a subquery, put where its rows are taken: into aggregate calls, or beside a LIMIT. Pure; a part of
`builder/build.py`.

    SELECT json_agg(q.a) FROM (SELECT t.a FROM t ORDER BY t.b DESC) q
    SELECT json_agg(q.a ORDER BY q.pgt_order_1 DESC) FROM (SELECT t.a, t.b AS pgt_order_1 FROM t ORDER BY t.b DESC) q

    SELECT q.a FROM (SELECT t.a FROM t ORDER BY t.a) q LIMIT 3
    SELECT q.a FROM (SELECT t.a FROM t ORDER BY t.a) q ORDER BY q.a LIMIT 3

PostgreSQL hands the rows of a subquery that is all of a FROM to the aggregates in the subquery's order, unless it has
a reason to sort them itself: GROUP BY, or a call beside them with ORDER BY or DISTINCT. What depends on the order then,
or in another way, is refused (PT238). It takes the first rows in that order too, if nothing else sorts or repeats them.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from pgtrickle.query.syntax import query_levels, sublinks
from pgtrickle.query.syntax.calls import Calls
from pgtrickle.query.syntax.inline_ctes import definition
from pgtrickle.query.syntax.special_calls import SpecialCall

_PREFIX = "pgt_order_"


def spelled_out(query: exp.Expr, calls: Calls) -> exp.Expr:
    """The query with such calls ordered, in place."""
    for select in list(query.find_all(exp.Select)):
        found = _ordered(select)
        taking = [] if found is None else list(_taking(select, calls))
        limited = _is_limited(select, calls)
        if found is not None and (taking or limited):
            alias, labels, inner = found
            order = [_outside(part, alias, labels, inner) for part in inner.args["order"].expressions]
            for call in taking:
                _order(call, order)
            if limited:
                select.set("order", exp.Order(expressions=order))
    return query


def _is_limited(select: exp.Select, calls: Calls) -> bool:
    """Whether the first rows are taken as they come."""
    args = select.args
    if (args.get("limit") or args.get("offset")) is None or select.find(exp.Window) is not None:
        return False
    sorts = any(args.get(clause) for clause in ("order", "distinct", "group", "having"))
    return not sorts and not calls.groups(select) and not calls.any_set(select.expressions)


def _ordered(select: exp.Select) -> tuple[str, list[str], exp.Select] | None:
    """The subquery that is all of a FROM, if it is in an order: its alias, the names that this gives, and itself.
    PostgreSQL may join it with a query in WHERE, and then its rows come in another order."""
    from_, where = select.args.get("from_"), select.args.get("where")
    asks = where is not None and where.find(exp.Query) is not None
    item = None if from_ is None or select.args.get("joins") or asks else from_.this
    if not isinstance(item, exp.Subquery | exp.Table) or item.args.get("joins") or not item.alias_or_name:
        return None
    holder: exp.Expr | None = item
    if isinstance(item, exp.Table):
        holder = None if item.db or not isinstance(item.this, exp.Identifier) else definition(item.name, item)
    inner = None if holder is None else sublinks.bare(holder.this)
    if holder is None or not isinstance(inner, exp.Select) or not _may_show_order(inner):
        return None
    renamed = _renamed(item)
    return item.alias_or_name, [*renamed, *_renamed(holder)[len(renamed) :]], inner


def _may_show_order(inner: exp.Select) -> bool:
    """Whether a query is in an order, and can have what it is ordered by as outputs: DISTINCT has that anyway. A number
    is that of an output, in VALUES that were written as a query."""
    order, distinct = inner.args.get("order"), inner.args.get("distinct")
    if order is None or any(isinstance(part.this, exp.Literal) for part in order.expressions):
        return False
    if distinct is None or distinct.args.get("on") is not None:
        return True
    outputs = [output.unalias() for output in inner.expressions]
    return all(part.this in outputs for part in order.expressions)


def _renamed(item: exp.Expr) -> list[str]:
    alias = item.args.get("alias")
    return [] if alias is None else [column.name for column in alias.columns]


def _taking(select: exp.Select, calls: Calls) -> Iterator[exp.Expr]:
    """The aggregate calls over the rows of a SELECT that show in which order they take these; none if there is a call
    that PostgreSQL sorts them for."""
    own = [call for call in calls.whole_aggregates(select) if query_levels.owner(call) is select]
    if select.args.get("group") is not None or any(call.find(exp.Order, exp.Distinct) for call in own):
        return
    for call in own:
        core = call.this if isinstance(call, exp.Filter) else call
        core = core.expression if isinstance(core, exp.Dot) else core
        if calls.takes_in_order(call) and _may_be_ordered(core):
            yield core


def _may_be_ordered(core: exp.Expr) -> bool:
    if isinstance(core, SpecialCall):  # its value, and what follows that
        texts = core.args["texts"]
        return core.name == "JSON_ARRAYAGG" and len(texts) == 2 and not texts[1].startswith(" FORMAT")
    last = core.expressions[-1] if isinstance(core, exp.Anonymous) and core.expressions else None
    return last is not None and not isinstance(last, exp.Star | exp.Variadic)


def _outside(part: exp.Ordered, alias: str, labels: list[str], inner: exp.Select) -> exp.Ordered:
    """A part of the subquery's order, as the query around it calls what is ordered by."""
    for place, output in enumerate(inner.expressions):
        if output.unalias().unnest() == part.this.unnest():
            name = labels[place] if place < len(labels) else output.output_name
            break
    else:
        name = f"{_PREFIX}{len(inner.expressions)}"
        inner.append("expressions", exp.alias_(part.this.copy(), name))
    ordered = part.copy()
    ordered.set("this", exp.column(exp.to_identifier(name, quoted=True), exp.to_identifier(alias, quoted=True)))
    return ordered


def _order(core: exp.Expr, order: list[exp.Ordered]) -> None:
    copies = [part.copy() for part in order]
    if isinstance(core, SpecialCall):
        value, after = core.args["texts"]
        core.set("texts", (value, " ORDER BY ", *(", " for _ in copies[1:]), after))
        core.set("expressions", [*core.expressions, *copies])
        core.set("ordered", True)
        return
    *others, last = core.expressions
    core.set("expressions", [*others, exp.Order(this=last, expressions=copies)])
