"""What kind of subquery it is: plain rows, one group, or one that must be built by key. Pure; for `expressions.py` and
`lateral_query.py`."""

from __future__ import annotations

from sqlglot import exp

from pgtrickle.query.builder import correlation
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.syntax import sublinks
from pgtrickle.query.syntax.calls import Calls

_PLAIN_SELECT = frozenset({"expressions", "from_", "joins", "where", "order"})


def is_flat(query: exp.Select, scope: Scope) -> bool:
    """Whether no query in its FROM or select list is asked, nor one that reads the query around it."""
    return not correlation.read_below(query, scope) and not any(map(sublinks.asks, query.expressions))


def reads_in_list(query: exp.Select, scope: Scope) -> bool:
    """Whether its select list reads the query around it."""
    return any(correlation.read(part, scope) for part in query.expressions)


def is_plain(query: exp.Select, calls: Calls) -> bool:
    """Whether the query selects rows as FROM and WHERE give them."""
    if any(value for part, value in query.args.items() if part not in _PLAIN_SELECT):
        return False
    called = calls.groups(query) or calls.any_set(query.expressions) or has_windows(query)
    return query.args.get("from_") is not None and not called


def is_one_group(query: exp.Select, calls: Calls) -> bool:
    """Whether the query is sure to have one row: aggregates of all its rows."""
    rest = ("group", "having", "distinct", "limit", "offset")
    return calls.groups(query) and not any(query.args.get(part) for part in rest)


def groups_rows(query: exp.Select, calls: Calls) -> bool:
    """Whether it is aggregates of all rows of its FROM."""
    return query.args.get("from_") is not None and is_one_group(query, calls) and not has_windows(query)


def has_windows(query: exp.Select) -> bool:
    """Whether it calls functions over windows."""
    return any(window.parent_select is query for window in query.find_all(exp.Window))
