"""Finds words in the user's text, to say `line 3, column 14` there. Pure; used by `analyse/analyze.py` and
`builder/build.py`.

PostgreSQL's normalised text is what we read, but it is not what the user wrote; so a refusal is located by looking
for its keyword, function or name in the original text, outside strings and comments. Not found means no position.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_TOKEN = re.compile(
    r"""(?P<skip> \s+ | --[^\n]* | /\*(?:[^*]|\*(?!/))*\*/
              | [eE]'(?:[^'\\]|''|\\.)*' | (?:[bBxXnN]|[uU]&)?'(?:[^']|'')*'
              | \$(?P<tag>[A-Za-z_]\w*)?\$.*?\$(?(tag)(?P=tag))\$ )
      | (?P<quoted> "(?:[^"]|"")+" )
      | (?P<word> [^\W\d]\w* | \$\d+ | \d[\w.]* )
      | (?P<mark> . )""",
    re.VERBOSE | re.DOTALL,
)
_CLAUSES = {"select", "from", "where", "group", "having", "on", "order", "window", "values"}


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    start: int


def position(sql: str, offset: int) -> str:
    """`offset` (from 0) in `sql`, as people count: lines and columns from 1."""
    before = sql[: max(0, min(offset, len(sql)))]
    return f"line {before.count(chr(10)) + 1}, column {len(before) - (before.rfind(chr(10)) + 1) + 1}"


def locate(sql: str, *phrases: str) -> str | None:
    """The position of the first of `phrases` found; a phrase is words or marks apart by one space (`left join`)."""
    words = list(_words(sql))
    for phrase in phrases:
        wanted = phrase.split(" ")
        for index in range(len(words) - len(wanted) + 1):
            if all(words[index + step].text == part for step, part in enumerate(wanted)):
                return position(sql, words[index].start)
    return None


def locate_name(sql: str, name: str) -> str | None:
    """The position of an identifier, however quoted."""
    for word in _words(sql):
        if word.text == name:
            return position(sql, word.start)
    return None


def locate_second_statement(sql: str) -> str | None:
    """The position of what follows the first semicolon."""
    words = list(_words(sql))
    for word, following in pairwise(words):
        if word.text == ";" and following.text != ";":
            return position(sql, following.start)
    return None


def locate_scalar_subquery(sql: str) -> str | None:
    """The position of the first `(SELECT` that is an operand, not a FROM item."""
    words = list(_words(sql))
    clauses = [""]
    for index, word in enumerate(words):
        if word.text == "(":
            opens_query = index + 1 < len(words) and words[index + 1].text in ("select", "with", "values")
            previous = words[index - 1].text if index else ""
            if (
                opens_query
                and clauses[-1] not in ("", "from")
                and previous not in ("all", "union", "except", "intersect")
            ):
                return position(sql, word.start)
            clauses.append("")
        elif word.text == ")" and len(clauses) > 1:
            clauses.pop()
        elif word.text == "join":
            clauses[-1] = "from"
        elif word.text in _CLAUSES:
            clauses[-1] = word.text
    return None


def _words(sql: str) -> Iterator[_Word]:
    for match in _TOKEN.finditer(sql):
        if match.lastgroup == "quoted" or match.group("quoted") is not None:
            yield _Word(match.group("quoted")[1:-1].replace('""', '"'), match.start())
        elif match.group("word") is not None:
            yield _Word(match.group("word").lower(), match.start())
        elif match.group("mark") is not None:
            yield _Word(match.group("mark"), match.start())
