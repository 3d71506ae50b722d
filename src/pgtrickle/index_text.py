"""Indexes of a stream table as users write them, read into parts and written out again. Pure.

    (customer_id)    (region, day DESC)    UNIQUE (id)    USING gin (tags)    USING gin (name public.gin_trgm_ops)

It is what follows the table's name in CREATE INDEX, over columns alone: an expression or a condition would be code that
runs at each refresh. Whoever wants one makes the index by CREATE INDEX; refreshes keep it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from psycopg import sql

from pgtrickle.errors import UsageError
from pgtrickle.model import folded, quote

BTREE: Final = "btree"
_TOKEN: Final = re.compile(r'\s*(?:"(?P<quoted>(?:[^"\0]|"")+)"|(?P<plain>[^\W\d][\w$]*)|(?P<mark>[(),.]))\s*')
_HINT: Final = (
    "write (region, day), UNIQUE (id) or USING gin (tags); an index with an expression or a WHERE is made by CREATE"
    " INDEX on the stream table, and refreshes keep it"
)
T = TypeVar("T")
Qualified = tuple[str, ...]
"""A name, with its schema before it where one was given."""


@dataclass(frozen=True, slots=True)
class IndexColumn:
    """One column of an index; `nulls_first` is as it is without being said if it equals `descending`."""

    name: str
    collation: Qualified = ()
    operators: Qualified = ()
    descending: bool = False
    nulls_first: bool = False

    def __str__(self) -> str:
        nulls = f" NULLS {'FIRST' if self.nulls_first else 'LAST'}" if self.nulls_first != self.descending else ""
        return (
            _shown(self.name)
            + (f" COLLATE {_qualified(self.collation)}" if self.collation else "")
            + (f" {_qualified(self.operators)}" if self.operators else "")
            + (" DESC" if self.descending else "")
            + nulls
        )

    @property
    def statement(self) -> sql.Composed:
        parts: list[sql.Composable] = [sql.Identifier(self.name)]
        if self.collation:
            parts.append(sql.SQL("COLLATE {}").format(sql.Identifier(*self.collation)))
        if self.operators:
            parts.append(sql.Identifier(*self.operators))
        if self.descending:
            parts.append(sql.SQL("DESC"))
        if self.nulls_first != self.descending:
            parts.append(sql.SQL("NULLS FIRST" if self.nulls_first else "NULLS LAST"))
        return sql.SQL(" ").join(parts)


@dataclass(frozen=True, slots=True)
class Index:
    """One index. Two that are equal are the same index, however they were written."""

    columns: tuple[IndexColumn, ...]
    unique: bool = False
    method: str = BTREE
    included: tuple[str, ...] = ()
    nulls_distinct: bool = True

    def __str__(self) -> str:
        return (
            ("UNIQUE " if self.unique else "")
            + (f"USING {_shown(self.method)} " if self.method != BTREE else "")
            + f"({', '.join(map(str, self.columns))})"
            + (f" INCLUDE ({', '.join(map(_shown, self.included))})" if self.included else "")
            + ("" if self.nulls_distinct else " NULLS NOT DISTINCT")
        )

    @property
    def names(self) -> frozenset[str]:
        """The columns of the table that it has."""
        return frozenset([*(column.name for column in self.columns), *self.included])

    def statement(self, table: sql.Composable) -> sql.Composed:
        """What makes it on a table."""
        included = sql.SQL(", ").join(map(sql.Identifier, self.included))
        return sql.SQL("CREATE {}INDEX ON {} USING {} ({}){}{}").format(
            sql.SQL("UNIQUE " if self.unique else ""),
            table,
            sql.Identifier(self.method),
            sql.SQL(", ").join(column.statement for column in self.columns),
            sql.SQL(" INCLUDE ({})").format(included) if self.included else sql.SQL(""),
            sql.SQL("" if self.nulls_distinct else " NULLS NOT DISTINCT"),
        )


def parse_indexes(texts: Sequence[str]) -> tuple[Index, ...]:
    """A list of indexes, each once. `none` alone is none."""
    if [text.strip().lower() for text in texts] == ["none"]:
        return ()
    return tuple(dict.fromkeys(map(parse_index, texts)))


def parse_index(text: str) -> Index:
    """One index, by PostgreSQL's rules for names. Columns alone, `region, day`, may be without parentheses."""
    return _Reader(text).index()


def parse_definition(statement: str) -> Index | None:
    """The index of PostgreSQL's own CREATE INDEX statement (pg_get_indexdef); None if it is more than columns."""
    try:
        return _Reader(statement).definition()
    except UsageError:
        return None


class _Reader:
    """Reads one index from its tokens: (kind, text), where a plain word is folded to lower case."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        place = 0
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                raise self._wrong()
            if found["quoted"] is not None:
                self.tokens.append(("name", found["quoted"].replace('""', '"')))
            elif found["plain"] is not None:
                self.tokens.append(("word", folded(found["plain"])))
            else:
                self.tokens.append(("mark", found["mark"]))
            place = found.end()

    def definition(self) -> Index:
        self._expect("word", "create")
        unique = self._takes("word", "unique")
        self._expect("word", "index")
        self._name()
        self._expect("word", "on")
        self._qualified()
        return replace(self.index(), unique=unique)

    def index(self) -> Index:
        if ("mark", "(") not in self.tokens and self.tokens[:1] not in ([("word", "unique")], [("word", "using")]):
            self.tokens = [("mark", "("), *self.tokens, ("mark", ")")]
        unique = self._takes("word", "unique")
        method = self._name() if self._takes("word", "using") else BTREE
        columns = self._list(self._column)
        included = self._list(self._name) if self._takes("word", "include") else ()
        nulls_distinct = True
        if self._takes("word", "nulls"):
            nulls_distinct = not self._takes("word", "not")
            self._expect("word", "distinct")
        if self.tokens:
            raise self._wrong()
        return Index(columns, unique, method, included, nulls_distinct)

    def _column(self) -> IndexColumn:
        name = self._name()
        collation = self._qualified() if self._takes("word", "collate") else ()
        operators = () if self._at_order() else self._qualified()
        descending = self._takes("word", "desc")
        if not descending:
            self._takes("word", "asc")
        nulls_first = descending
        if self._takes("word", "nulls"):
            nulls_first = self._takes("word", "first")
            if not nulls_first:
                self._expect("word", "last")
        return IndexColumn(name, collation, operators, descending, nulls_first)

    def _at_order(self) -> bool:
        return not self.tokens or self.tokens[0][0] == "mark" or self.tokens[0] in _ORDER

    def _list(self, one: Callable[[], T]) -> tuple[T, ...]:
        self._expect("mark", "(")
        found = [one()]
        while self._takes("mark", ","):
            found.append(one())
        self._expect("mark", ")")
        return tuple(found)

    def _qualified(self) -> Qualified:
        first = self._name()
        return (first, self._name()) if self._takes("mark", ".") else (first,)

    def _name(self) -> str:
        if not self.tokens or self.tokens[0][0] == "mark":
            raise self._wrong()
        return self.tokens.pop(0)[1]

    def _takes(self, kind: str, text: str) -> bool:
        if self.tokens and self.tokens[0] == (kind, text):
            del self.tokens[0]
            return True
        return False

    def _expect(self, kind: str, text: str) -> None:
        if not self._takes(kind, text):
            raise self._wrong()

    def _wrong(self) -> UsageError:
        return UsageError(f"{self.text!r} is not an index that we can make", code="PT023", hint=_HINT)


def _shown(name: str) -> str:
    """A name as one would write it: quoted where it must be, or might be read as a word of the index."""
    plain = re.fullmatch(r"[a-z_][a-z0-9_$]*", name) and name not in _WORDS
    return name if plain else quote(name)


def _qualified(name: Qualified) -> str:
    return ".".join(map(_shown, name))


_ORDER: Final = frozenset({("word", "asc"), ("word", "desc"), ("word", "nulls")})
_WORDS: Final = frozenset({"none", "unique", "using", "include", "nulls", "asc", "desc", "collate", "first", "last"})
