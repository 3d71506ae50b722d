"""How a value travels between PostgreSQL and Spark: three kinds, all lossless.

Integers and booleans go as themselves, text as text; every other type goes as its PostgreSQL text form, which
`pg_dump` relies on to be exact. Two are not: PostgreSQL does not read the smallest number of microseconds again as it
writes it, and the name of a relation that is gone, or is found on another path. Spark only moves and compares these
forms; it never computes with the last kind. Called by whatever writes SQL that Spark's tasks run, and by what lands
their rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from pgtrickle.model import Column, PgType, quote
from pgtrickle.query.looks import from_text, text_form

WEIGHT = "w"
"""Name of the weight column, in every weighted relation."""


class Wire(Enum):
    """The three kinds: Spark's type name, and PostgreSQL's."""

    INTEGER = ("bigint", "int8")
    BOOLEAN = ("boolean", "bool")
    TEXT = ("string", "text")

    @property
    def spark(self) -> str:
        return self.value[0]

    @property
    def postgres(self) -> str:
        return self.value[1]


_INTEGERS = frozenset({20, 21, 23})
_BOOLEAN = 16
_TEXTS = frozenset({25, 1043})


def wire(type_: PgType) -> Wire:
    if type_.oid in _INTEGERS:
        return Wire.INTEGER
    return Wire.BOOLEAN if type_.oid == _BOOLEAN else Wire.TEXT


def travels_as_itself(type_: PgType) -> bool:
    """Whether equal values have equal wire forms and the other way round, so Spark may compare them."""
    return wire(type_) is not Wire.TEXT or (type_.oid in _TEXTS and type_.deterministic)


def send(expression: str, type_: PgType) -> str:
    """SQL that turns a value of the type into its wire form."""
    kind = wire(type_)
    return text_form(expression, type_) if kind is Wire.TEXT else f"({expression})::{kind.postgres}"


def receive(expression: str, type_: PgType) -> str:
    """SQL that turns a wire form back into the value, with its collation."""
    return from_text(expression, type_)


def spark_schema(columns: Iterable[Column]) -> str:
    """The Spark schema, as DDL text, of rows with these columns and a weight."""
    fields = [f"{quote_spark(column.name)} {wire(column.type).spark}" for column in columns]
    return ", ".join([*fields, f"{WEIGHT} bigint"])


def quote_spark(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def send_rows(relation: str, columns: Iterable[Column]) -> str:
    """SELECT of the wire forms of a weighted relation."""
    return f"SELECT {', '.join([*_sent(columns), WEIGHT])} FROM ({relation}) AS rows_to_send"


def send_plain(relation: str, columns: Iterable[Column]) -> str:
    """SELECT of the wire forms of a relation that has no weights."""
    return f"SELECT {', '.join(_sent(columns))} FROM ({relation}) AS rows_to_send"


def _sent(columns: Iterable[Column]) -> list[str]:
    return [f"{send(quote(column.name), column.type)} AS {quote(column.name)}" for column in columns]


def net(sent: str, columns: tuple[Column, ...]) -> str:
    """SELECT of the wire forms of `send_rows` in which rows that are alike are one, with the sum of their weights.

    Alike is what has the same wire form: 1.0 and 1.00 stay two.
    """
    names = [
        f'{quote(column.name)} COLLATE "C"' if wire(column.type) is Wire.TEXT else quote(column.name)
        for column in columns
    ]
    outputs = [f"{name} AS {quote(column.name)}" for name, column in zip(names, columns, strict=True)]
    return (
        f"SELECT {', '.join([*outputs, f'sum({WEIGHT})::bigint AS {WEIGHT}'])} FROM ({sent}) AS sent_rows "
        f"GROUP BY {', '.join(names) or '()'} HAVING sum({WEIGHT}) <> 0"
    )


def receive_arrays(columns: tuple[Column, ...], *, first: int = 1) -> str:
    """SELECT of the rows sent as array parameters $first, $first+1, …: one array a column, then the weights."""
    kinds = [wire(column.type).postgres for column in columns] + ["int8"]
    names = [quote(column.name) for column in columns] + [WEIGHT]
    arrays = ", ".join(f"${first + position}::{kind}[]" for position, kind in enumerate(kinds))
    outputs = [f"{receive('sent.' + quote(c.name), c.type)} AS {quote(c.name)}" for c in columns]
    return f"SELECT {', '.join([*outputs, 'sent.' + WEIGHT])} FROM unnest({arrays}) AS sent({', '.join(names)})"


def definition(column: Column) -> str:
    """The column in a CREATE TABLE."""
    collation = f" COLLATE {column.type.collation}" if column.type.collation else ""
    return f"{quote(column.name)} {column.type.name}{collation}"
