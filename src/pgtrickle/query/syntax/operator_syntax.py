"""Operators that sqlglot does not know, or takes for something else, written as OPERATOR(…). Pure; for `dialect.py`.

    a <<= b   →   a OPERATOR(<<=) b          (@ a)   →   (OPERATOR(@) a)

PostgreSQL has many operators, and reads them the same way in either spelling. Its normalised text has parentheses
around every operation, so that an operator after one stands before its only operand.
"""

from __future__ import annotations

import re
from typing import Final

_STRING: Final = r"[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'"
_QUOTED: Final = r'"(?:[^"]|"")*"'
_SPELLED_OUT: Final = r"\bOPERATOR\([^)]*\)"
_SIGN: Final = r"[+\-*/<>=~!@#%^&|`?]+"
_TOKEN: Final = re.compile(rf"(?s){_STRING}|{_QUOTED}|{_SPELLED_OUT}|(?P<before>\(?)(?P<sign>{_SIGN})")

_ARITHMETIC: Final = ("+", "-", "*", "/", "%", "^", "&", "|", "#", "<<", ">>", "||")
_COMPARISONS: Final = ("=", "<>", "<", "<=", ">", ">=", "~", "~*", "!~", "!~*", "~~", "~~*", "!~~", "!~~*")
_CONTAINERS: Final = ("&&", "@>", "<@", "->", "->>", "#>", "#>>", "#-", "?", "?|", "?&", "@?", "<->", "&<", "&>", "-|-")
_BETWEEN: Final = frozenset((*_ARITHMETIC, *_COMPARISONS, *_CONTAINERS, "=>"))
"""Between two operands: what sqlglot writes as it read it; or after the name of an argument."""
_BEFORE: Final = frozenset(["-", "~", "*"])
"""Before the only one; or all columns, in count(*)."""


def spelled_out(sql: str) -> str:
    """`sql` with the operators that sqlglot does not know as OPERATOR(…)."""
    return _TOKEN.sub(_spelled, sql)


def _spelled(found: re.Match[str]) -> str:
    sign = found["sign"]
    if sign is None or sign in (_BEFORE if found["before"] else _BETWEEN):
        return found[0]
    return f"{found['before']}OPERATOR({sign})"
