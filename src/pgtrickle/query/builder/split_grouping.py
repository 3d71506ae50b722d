"""A SELECT over its groups, apart from the one that makes them; and GROUP BY of what a subquery answers. Pure; a part
of `build.py`.

    SELECT f(k, max(v)) FROM t GROUP BY k HAVING h(k)    =    SELECT f(g.k, g.m) FROM g WHERE h(g.k)
                                                              g = SELECT k, max(v) AS m FROM t GROUP BY k

So a subquery in f or h may read all of a group: an aggregate of the query around it, a key that a grouping set leaves
out and that is NULL there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

from sqlglot import exp

from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.syntax import dialect, grouping_sets, query_levels, sublinks
from pgtrickle.query.syntax.calls import Calls

#: What columns of groups, and of the rows they are made of, are called by; no name in PostgreSQL has such a character.
ALIAS = "groups\0"

_ABOVE = ("expressions", "having", "order", "distinct")


def text(node: exp.Expr) -> str:
    """What a key looks like wherever it stands, in parentheses or not."""
    return dialect.text(sublinks.bare(node))


def called(select: exp.Select, names: Mapping[str, str], calls: Calls) -> exp.Select:
    """A SELECT in which some keys, given by their text, are columns already; aggregates read their rows as before."""
    select = select.copy()

    def replace(part: exp.Expr) -> exp.Expr:
        if calls.aggregate(part) is not None:
            return part.copy()  # a copy is not looked into
        is_key = _is_in(part, select) and text(part) in names
        return _with_mark(_column(names[text(part)]), part) if is_key else part

    _rewrite(select, (*_ABOVE, "group"), replace)
    return select


def apart(
    select: exp.Select, calls: Calls, name: Callable[[], str], scope: Scope, own: Set[str]
) -> tuple[exp.Select, exp.Select]:
    """What is above the groups of a SELECT, and the SELECT that makes them; `own` are keys that `called` has named."""
    above = select.copy()
    keys = grouping_sets.keys(select.args.get("group"))
    computed = {text(key) for key in keys if not isinstance(key, exp.Column) and grouping_sets.key_of(key) is None}
    shown: dict[str, exp.Alias] = {}
    numbers = {
        scope.find(key.table or None, key.name): grouping_sets.key_of(key)
        for key in keys
        if isinstance(key, exp.Column)
    }

    def show(part: exp.Expr, known_as: str | None) -> exp.Column:
        what = known_as or text(part)
        if what not in shown:
            shown[what] = _alias(part.copy(), name())
        return _column(shown[what].alias)

    def show_key(part: exp.Expr, number: int) -> exp.Column:
        return show(grouping_sets.marked(part.copy(), number), f"key {number}")

    def show_grouping(call: exp.Expr) -> exp.Column:
        """GROUPING(…), which a query within may say too: of columns, which are found by name."""
        for argument in call.expressions if any(number is not None for number in numbers.values()) else []:
            if grouping_sets.key_of(argument) is None:
                named = isinstance(argument, exp.Column)
                number = numbers.get(scope.find(argument.table or None, argument.name)) if named else None
                if number is None:
                    raise grouping_sets.UnknownKeyError("GROUPING in a subquery")
                grouping_sets.marked(argument, number)
        return show(call, f"GROUPING {[grouping_sets.key_of(part) for part in call.expressions]}")

    def replace(part: exp.Expr) -> exp.Expr:
        number = grouping_sets.key_of(part) if query_levels.enclosing(part) is above else None
        if number is not None:
            return show_key(part, number)
        if isinstance(part, exp.Column):
            is_own = part.name in own if part.table == ALIAS else query_levels.reader(part) is above
            found = scope.find(part.table or None, part.name) if is_own else None
            number = numbers.get(found)
            return part if not is_own else show(part, found) if number is None else show_key(part, number)
        is_call = calls.aggregate(part) is not None and query_levels.owner(part) is above
        is_key = bool(computed) and _is_in(part, above) and text(part) in computed
        if _is_grouping_of(part, above):
            return show_grouping(part.copy())
        return show(part, None) if is_call or is_key else part

    _rewrite(above, _ABOVE, replace)
    having = above.args.get("having")
    above.set("where", having and exp.Where(this=having.this))
    for clause in ("from_", "joins", "group", "having", "with_"):
        above.set(clause, None)
    below = select.copy()
    for clause in ("having", "order", "distinct", "limit", "offset", "with_"):
        below.set(clause, None)
    below.set("expressions", list(shown.values()) or [_alias(exp.Literal.number(1), name())])
    return above, below


def _with_mark(column: exp.Column, key: exp.Expr) -> exp.Column:
    """The column with the mark of the key that it stands for, which may be within parentheses."""
    grouping_sets.carried(column, key)
    within = isinstance(key, exp.Paren | exp.Subquery) and grouping_sets.key_of(column) is None
    return _with_mark(column, key.this) if within else column


def _rewrite(select: exp.Select, clauses: Iterable[str], replace: Callable[[exp.Expr], exp.Expr]) -> None:
    """Replaces parts of some clauses, in place; what the output calls its columns stays."""
    for clause in clauses:
        found = select.args.get(clause)
        if clause == "expressions":
            parts = [(part.unalias().transform(replace, copy=False), part.alias_or_name) for part in select.expressions]
            select.set(clause, [_alias(part, label) if label else part for part, label in parts])
        elif found is not None:
            found.transform(replace, copy=False)


def _column(name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True), exp.to_identifier(ALIAS, quoted=True))


def _alias(node: exp.Expr, label: str) -> exp.Alias:
    return exp.Alias(this=node, alias=exp.to_identifier(label, quoted=True))


def _is_in(node: exp.Expr, select: exp.Select) -> bool:
    """Whether a node is an expression of the SELECT itself, not of a query within."""
    return sublinks.is_value(node) and query_levels.enclosing(node) is select


def _is_grouping_of(node: exp.Expr, select: exp.Select) -> bool:
    """Whether it is GROUPING(…) of the keys of a SELECT; those that are named are of no FROM in the text."""
    is_grouping = grouping_sets.is_grouping(node)
    owner = query_levels.owner(node) if is_grouping else None
    return is_grouping and (owner is None or owner is select or query_levels.enclosing(node) is select)
