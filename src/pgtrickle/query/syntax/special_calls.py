"""Calls that have words between their operands: SQL/JSON, XML, TRIM, ROWS FROM. Pure; a parser's part of `dialect.py`.

    JSON_VALUE(a.j, '$.x' RETURNING integer)    →    "JSON_VALUE(" a.j ", " '$.x' " RETURNING integer)"

Such a call need not be understood to be evaluated by PostgreSQL: its operands are expressions as any other, and what
stands between them is written back as it was. Where an operand begins is told by the word before it. In PostgreSQL's
normalised text only words of the syntax have capital letters, unless they are quoted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar, Final, TypeAlias

from sqlglot import TokenType, exp
from sqlglot.tokenizer_core import Token

JSON_AGGREGATES: Final = frozenset({"JSON_OBJECTAGG", "JSON_ARRAYAGG"})
ROWS_FROM: Final = "ROWS_FROM"
"""How ROWS FROM (…) is called while it is parsed (`hidden`)."""
_IN_FROM: Final = frozenset({"JSON_TABLE", "XMLTABLE", ROWS_FROM})
_JSON: Final = frozenset(
    {"JSON", "JSON_ARRAY", "JSON_EXISTS", "JSON_OBJECT", "JSON_QUERY", "JSON_SCALAR", "JSON_SERIALIZE", "JSON_VALUE"}
)
_XML: Final = frozenset(
    {"XMLCONCAT", "XMLELEMENT", "XMLEXISTS", "XMLFOREST", "XMLPARSE", "XMLPI", "XMLROOT", "XMLSERIALIZE"}
)
NAMES: Final = frozenset({"NORMALIZE", "SUBSTRING", "TRIM"}) | _JSON | _XML | _IN_FROM | JSON_AGGREGATES

# Where an operand could begin: a word before it, and one that stands for none, or in its place.
_BEFORE_OPERAND: Final = frozenset(
    {"BOTH", "CONTENT", "DEFAULT", "DISTINCT", "DOCUMENT", "FROM", "LEADING", "TRAILING", "VERSION"}
)
_NO_OPERAND: Final = frozenset(
    {"ABSENT", "NAME", "NFC", "NFD", "NFKC", "NFKD", "NO", "RETURNING", "STANDALONE", "WITH", "WITHOUT"}
)
#: After an operand: what begins the next one.
_NEXT_OPERAND: Final = frozenset(
    {"DEFAULT", "ESCAPE", "FOR", "FROM", "ORDER BY", "PASSING", "PATH", "PLACING", "SIMILAR", "VERSION"}
)
_LISTS: Final = frozenset({"XMLATTRIBUTES", "XMLNAMESPACES"})
_ROWS_FROM: Final = re.compile(r"""(?s)[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|\bROWS FROM ?\(""")


#: Parses an expression that begins at a token: that of a column's definition, or any. Answers where it ends.
ParseOperand: TypeAlias = Callable[[int, bool], tuple[exp.Expr, int]]


class SpecialCall(exp.Expression):
    """A call with words: `texts` stand before, between and after its operands."""

    arg_types: ClassVar = {"this": True, "expressions": False, "texts": True, "columns": False, "ordered": False}

    @property
    def is_rows_from(self) -> bool:
        return self.name == ROWS_FROM

    @property
    def is_aggregate(self) -> bool:
        return self.name in JSON_AGGREGATES

    @property
    def is_ordered(self) -> bool:
        """Whether it is an aggregate that says in which order it takes its rows."""
        return bool(self.args.get("ordered"))

    @property
    def column_names(self) -> list[str]:
        """The columns that JSON_TABLE or XMLTABLE makes."""
        return list(self.args.get("columns") or ())

    def written(self, write: Callable[[exp.Expr], str]) -> str:
        texts: tuple[str, ...] = self.args["texts"]
        operands = [write(operand) for operand in self.expressions]
        return texts[0] + "".join(operand + text for operand, text in zip(operands, texts[1:], strict=True))


def hidden(sql: str) -> str:
    """`sql` with ROWS FROM as the name of a call."""
    return _ROWS_FROM.sub(lambda found: f"{ROWS_FROM}(" if found[0].startswith("ROWS") else found[0], sql)


class Reader:
    """Reads one call, token by token."""

    def __init__(self, sql: str, tokens: list[Token], operand: ParseOperand) -> None:
        self._sql = sql
        self._tokens = tokens
        self._operand = operand
        self._texts: list[str] = []
        self._operands: list[exp.Expr] = []
        self._columns: list[str] = []
        self._levels: list[str] = []
        self._ordered = False

    def read(self, place: int) -> tuple[SpecialCall, int]:
        """The call whose name is at `place`, and the place after it."""
        name, begin = self._tokens[place].text, place
        place += 1
        expects = True
        while True:
            if place >= len(self._tokens):
                raise ValueError("a call that does not end")
            token = self._tokens[place]
            if token.token_type == TokenType.R_PAREN:
                self._levels.pop()
                expects = False
                if not self._levels:
                    break
            elif token.token_type == TokenType.L_PAREN and (not expects or self._opens_list(place)):
                expects = self._open(place)
            elif expects and not self._is_word(token, _BEFORE_OPERAND | _NO_OPERAND | _LISTS):
                self._take(begin, place)
                found, place = self._operand(place, self._levels[-1] == "columns")
                self._operands.append(found)
                begin, expects = place, False
                continue
            else:
                expects = self._after(place, expects=expects)
            place += 1
        self._take(begin, place + 1)
        self._texts[-1] = self._texts[-1].rstrip()
        if name == ROWS_FROM:
            self._texts[0] = "ROWS FROM " + self._texts[0].removeprefix(ROWS_FROM)
        call = SpecialCall(
            this=name,
            expressions=self._operands,
            texts=tuple(self._texts),
            columns=tuple(self._columns),
            ordered=self._ordered,
        )
        return call, place + 1

    def _opens_list(self, place: int) -> bool:
        before = self._tokens[place - 1]
        return not self._levels or self._is_word(before, _LISTS | {"COLUMNS"})

    def _open(self, place: int) -> bool:
        """A parenthesis that is not an operand's: the call's own, that of a list, of column definitions, of a type."""
        before = self._tokens[place - 1]
        if self._is_word(before, frozenset({"COLUMNS"})):
            self._levels.append("columns")
            self._note_column(place + 1)
            return False
        is_list = not self._levels or self._is_word(before, _LISTS)
        self._levels.append("list" if is_list else "type")
        return is_list

    def _after(self, place: int, *, expects: bool) -> bool:
        """Whether an operand may follow a token that is none."""
        token = self._tokens[place]
        if token.token_type == TokenType.COMMA:
            if self._levels[-1] == "columns":
                self._note_column(place + 1)
            return self._levels[-1] == "list"
        if token.token_type == TokenType.COLON:
            return True
        if expects:
            return self._is_word(token, _BEFORE_OPERAND)
        if self._is_word(token, frozenset({"COLUMNS"})) and self._tokens[place + 1].token_type != TokenType.L_PAREN:
            self._levels[-1] = "columns"
            self._note_column(place + 1)
        self._ordered |= self._is_word(token, frozenset({"ORDER BY"}))
        begins = self._is_word(token, _NEXT_OPERAND)
        return begins and self._tokens[place + 1].text != "ORDINALITY"

    def _note_column(self, place: int) -> None:
        """A column definition begins: with the column's name, or with NESTED PATH."""
        token = self._tokens[place]
        if not self._is_word(token, frozenset({"NESTED"})):
            self._columns.append(token.text)

    @staticmethod
    def _is_word(token: Token, words: frozenset[str]) -> bool:
        return token.token_type not in (TokenType.IDENTIFIER, TokenType.STRING) and token.text in words

    def _take(self, begin: int, end: int) -> None:
        """What stands between two operands, with one blank where there were any."""
        text, last = "", None
        for token in self._tokens[begin:end]:
            text += " " if last is not None and token.start > last.end + 1 else ""
            text += self._sql[token.start : token.end + 1]
            last = token
        before = begin > 0 and end > begin and self._tokens[begin].start > self._tokens[begin - 1].end + 1
        after = end < len(self._tokens) and end > begin and self._tokens[end].start > self._tokens[end - 1].end + 1
        self._texts.append((" " if before and self._texts else "") + text + (" " if after else ""))
