"""Marks the keys of grouping sets in a syntax tree, as PostgreSQL resolved them. Pure; a part of `builder/build.py`.

`analyse/grouping_keys.py` says which expressions above the groups are keys, and which keys the others hold. The first
are found by their place. For those within an expression the text tells where, and PostgreSQL which and how many: where
the two do not agree, it is not known what the query means, and `UnknownKeyError` says so. Later steps go by marks
alone. What a window is by, PostgreSQL keeps elsewhere: there the text must tell. In a query within such an expression a
key is a column and nothing else: `builder/split_grouping.py` finds it by its name there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from pgtrickle.query.syntax import dialect, grouping_sets, named_windows, sublinks
from pgtrickle.query.syntax.calls import Calls, sorted_by
from pgtrickle.query.syntax.grouping_sets import UnknownKeyError
from pgtrickle.query.syntax.resolved_keys import Above, Grouped


def mark(query: exp.Expr, found: Sequence[Grouped], calls: Calls) -> None:
    """Marks all keys of all grouping sets of a query, in place."""
    selects = [select for select in query.find_all(exp.Select, bfs=False) if _has_sets(select)]
    if len(selects) != len(found):
        raise UnknownKeyError("its grouping sets were not understood")
    left = list(found)
    for select in selects:
        fitting = list(dict.fromkeys(grouped for grouped in left if _fits(select, grouped)))
        for is_alike in (_is_named, _is_written):
            if len(fitting) > 1:
                fitting = [grouped for grouped in fitting if is_alike(select, grouped)]
        if len(fitting) != 1:
            raise UnknownKeyError("which of its grouping sets is which cannot be told")
        left.remove(fitting[0])
        if not fitting[0].definite:
            raise UnknownKeyError("two are the same, one of constants is part of another, or one is of a query around")
        _Marker(select, fitting[0], calls).mark()


def _has_sets(select: exp.Select) -> bool:
    group = select.args.get("group")
    return group is not None and not grouping_sets.is_simple(group)


def _fits(select: exp.Select, grouped: Grouped) -> bool:
    """Whether a SELECT may be the one: its clauses are of the same sizes."""
    keys, order = grouping_sets.written(select.args["group"]), select.args.get("order")
    sizes = (len(keys), len(select.expressions), 0 if order is None else len(order.expressions))
    if sizes != (len(grouped.keys), len(grouped.selected), len(grouped.order)):
        return False
    if (select.args.get("having") is None) != (grouped.having is None):
        return False
    return len({_text(key) for key in keys}) <= len(set(grouped.keys))


def _is_named(select: exp.Select, grouped: Grouped) -> bool:
    """Whether the columns are called so; `?column?` is not written."""
    return grouped.names == tuple(part.output_name or "?column?" for part in select.expressions)


def _is_written(select: exp.Select, grouped: Grouped) -> bool:
    """Whether what is a key in the select list is written as that key is."""
    texts = dict(zip(grouped.keys, map(_text, grouping_sets.written(select.args["group"])), strict=True))
    above = zip(select.expressions, grouped.selected, strict=True)
    return all(part.key is None or texts[part.key] == _text(node.unalias()) for node, part in above)


class _Marker:
    """Marks the keys of one SELECT."""

    def __init__(self, select: exp.Select, grouped: Grouped, calls: Calls) -> None:
        self._select = select
        self._grouped = grouped
        self._calls = calls
        self._texts: dict[str, set[int]] = {}
        self._asked: set[str] = set()  # keys that are none within an expression
        self._is_split = False

    def mark(self) -> None:
        select, grouped = self._select, self._grouped
        for key, number in zip(grouping_sets.written(select.args["group"]), grouped.keys, strict=True):
            _set(key, number)
            if number not in grouped.constants:
                self._texts.setdefault(_text(key), set()).add(number)
            elif key.find(exp.Query, exp.Column) is not None:
                self._asked.add(_text(key))
        self._is_split = self._does_more()
        ordered = sorted_by(select)
        for part, above in zip(
            [*(part.unalias() for part in select.expressions), *ordered],
            [*grouped.selected, *grouped.order, *grouped.on],
            strict=True,
        ):
            self._above(part, above)
        if grouped.having is not None:
            self._above(select.args["having"].this, grouped.having)
            self._require_nulled(select.args["having"].this, grouped.having.key)

    def _does_more(self) -> bool:
        """Whether something is done over the groups, apart from them, where what were keys are columns: first rows,
        DISTINCT, a query that is no key."""
        args = self._select.args
        if any(args.get(clause) is not None for clause in ("limit", "offset", "distinct")):
            return True
        above = [*self._select.expressions, *filter(None, (args.get("having"), args.get("order")))]
        return any(not self._is_in_key(query) for part in above for query in part.find_all(exp.Query))

    def _is_in_key(self, query: exp.Expr) -> bool:
        node: exp.Expr | None = query
        while node is not None and node is not self._select:
            if _text(node) in self._asked:
                return True
            node = node.parent
        return False

    def _above(self, part: exp.Expr, above: Above) -> None:
        if above.key is not None:
            _set(sublinks.bare(part) if not isinstance(part, exp.Subquery) else part, above.key)
            return
        for order in named_windows.orders(part):
            self._order(order)
        if self._is_split and any(_text(node) in self._asked for node in self._own(part)):
            raise UnknownKeyError("a subquery that is a key is asked again within an expression, apart from its groups")
        self._name(part, above)
        places = [(node, self._texts[_text(node)]) for node in self._keys_in(part)]
        found = [(node, numbers & set(above.within)) for node, numbers in places]
        if any(len(numbers) != 1 for _, numbers in found):
            raise UnknownKeyError("an expression in it may be of two keys of GROUP BY")
        for node, numbers in found:
            self._require_nulled(node, *numbers)
            _set(node, *numbers)
        if sorted(number for _, numbers in found for number in numbers) != list(above.within):
            raise UnknownKeyError("the keys of GROUP BY in an expression of it were not understood")

    def _order(self, part: exp.Expr) -> None:
        """Marks the keys in what a window is partitioned or ordered by, which is not in PostgreSQL's expression."""
        if any(_text(node) in self._asked for node in self._own(part)):
            raise UnknownKeyError("a window in it may be by a subquery that is a key, or ask it anew")
        named = [key for node in self._own(part) if grouping_sets.is_grouping(node) for key in node.expressions]
        for node in (*self._keys_in(part), *named):
            numbers = self._texts.get(_text(node), set())
            if len(numbers) != 1:
                raise UnknownKeyError("a window in it may be by two keys of GROUP BY")
            self._require_nulled(node, *numbers)
            _set(node, *numbers)

    def _require_nulled(self, node: exp.Expr, number: int | None) -> None:
        """Refuses a subquery that is a key, where PostgreSQL asks it anew."""
        if number is not None and sublinks.asks(node) and not self._grouped.nulls_subqueries:
            raise UnknownKeyError("within an expression, PostgreSQL before 18 asks a subquery that is a key anew")

    def _name(self, part: exp.Expr, above: Above) -> None:
        """Marks the arguments of GROUPING(…)."""
        elsewhere = {id(node) for order in named_windows.orders(part) for node in order.walk()}
        calls = [node for node in self._own(part) if grouping_sets.is_grouping(node) and id(node) not in elsewhere]
        if [len(call.expressions) for call in calls] != [len(keys) for keys in above.named]:
            raise UnknownKeyError("GROUPING in it was not understood")
        for call, keys in zip(calls, above.named, strict=True):
            for argument, key in zip(call.expressions, keys, strict=True):
                if key not in self._texts.get(_text(argument), {key}):
                    raise UnknownKeyError("GROUPING in it was not understood")
                _set(argument, key)

    def _keys_in(self, part: exp.Expr) -> Iterator[exp.Expr]:
        """The outermost keys, as the text has them: neither in an aggregate nor in a query within."""
        if self._calls.aggregate(part) is not None or grouping_sets.is_grouping(part):
            return
        if isinstance(part, exp.Identifier | exp.DataType):  # which may have the text of a key
            return
        if isinstance(part, exp.Window):  # of what it is over, see `_order`
            yield from self._keys_in(part.this)
            return
        if sublinks.is_value(part) and not isinstance(part, exp.Paren) and _text(part) in self._texts:
            yield part
        elif not isinstance(part, exp.Query):
            for inner in part.iter_expressions():
                yield from self._keys_in(inner)

    def _own(self, part: exp.Expr) -> Iterator[exp.Expr]:
        """The nodes of an expression, but for those of queries within."""
        return part.dfs(prune=lambda node: isinstance(node, exp.Query) and not isinstance(node, exp.Subquery))


def _set(node: exp.Expr, number: int) -> None:
    grouping_sets.marked(node, number)
    if isinstance(node.parent, exp.Subquery) and node.arg_key == "this":
        _set(node.parent, number)  # a query and the value that it is


def _text(node: exp.Expr) -> str:
    """What a key looks like, in parentheses or not."""
    return dialect.text(sublinks.bare(node))
