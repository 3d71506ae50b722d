"""The refresh's time in place of the clock, in a query that nothing of ours has parsed: PostgreSQL's own text of it.

    now()            ▶  CAST(current_setting('pgtrickle.now') AS timestamptz)
    CURRENT_TIME(2)  ▶  CAST(… AS timetz(2))            age(x)  ▶  age(CAST(… AS date), x)

For queries that have no tree, and for verification, which is to share nothing with the tree. A lexer: in the text that
`pg_get_viewdef` prints, keywords are in capitals and nothing else is called so without quotes, and what is not a
function of PostgreSQL's own has its schema before it. Literals and quoted names are left as they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from pgtrickle.answers import NOW

AGE_SINCE_TODAY: Final = frozenset({1386, 2059})
"""age() of one argument, of both kinds of timestamps, by oid."""
_TIME: Final = f"CAST(current_setting('{NOW}') AS timestamptz)"
_TYPES: Final = {
    "CURRENT_DATE": "date",
    "CURRENT_TIME": "timetz",
    "CURRENT_TIMESTAMP": "timestamptz",
    "LOCALTIME": "time",
    "LOCALTIMESTAMP": "timestamp",
}
_TOKEN: Final = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
      | (?<![\w$.])(?P<keyword>(?:CURRENT_(?:DATE|TIMESTAMP|TIME)|LOCALTIMESTAMP|LOCALTIME)\b)(?P<digits>\(\d+\))?
      | (?<![\w$.])(?P<call>now|transaction_timestamp)\(\)
      | (?<![\w$.])(?P<age>age\() | (?P<open>[(\[]) | (?P<close>[)\]]) | (?P<comma>,)""",
    re.VERBOSE | re.DOTALL,
)


def with_time(sql: str, functions: Collection[int]) -> str:
    """The text of a query that calls these functions (oids), over the time of the refresh."""
    parts, done = list[str](), 0
    ages = _ages(sql) if not AGE_SINCE_TODAY.isdisjoint(functions) else frozenset[int]()
    for found in _TOKEN.finditer(sql):
        value = _value(found, ages)
        if value is not None:
            parts += [sql[done : found.start()], value]
            done = found.end()
    return "".join([*parts, sql[done:]])


def _value(found: re.Match[str], ages: Collection[int]) -> str | None:
    if found["keyword"]:
        return f"CAST({_TIME} AS {_TYPES[found['keyword']]}{found['digits'] or ''})"
    if found["call"]:
        return _TIME
    return f"age(CAST({_TIME} AS date), " if found.start() in ages else None


def _ages(sql: str) -> frozenset[int]:
    """Where age() is called with one argument."""
    calls, of_one = list[tuple[int, bool] | None](), set[int]()
    for found in _TOKEN.finditer(sql):
        if found["age"]:
            calls.append((found.start(), True))
        elif found["open"]:
            calls.append(None)
        elif found["comma"] and calls and calls[-1] is not None:
            calls[-1] = (calls[-1][0], False)
        elif found["close"] and calls:
            call = calls.pop()
            if call is not None and call[1]:
                of_one.add(call[0])
    return frozenset(of_one)
