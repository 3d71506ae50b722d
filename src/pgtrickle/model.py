"""Values that every part shares: PostgreSQL types, columns, tables, expressions. Pure; level 0."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import Final

OWN_SCHEMAS: Final = frozenset({"pgtrickle", "pgtrickle_changes", "pgtrickle_internal", "pgtrickle_state"})
"""Where all is that we keep: no stream table is there, and none reads it."""
STREAM_TABLE_COMMENT: Final = "Stream table of pgtrickle: it follows a query, and only refreshes write to it."
"""What psql shows of a stream table to whoever does not know what it is, unless its owner says something else."""
FIRST_USER_OID: Final = 16384
"""Objects with smaller oids came with the server."""


_TO_SMALL: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def folded(name: str) -> str:
    """A name that is not quoted, as PostgreSQL reads it in UTF-8: only the letters of ASCII become small."""
    return name.translate(_TO_SMALL)


def quote(name: str) -> str:
    """`name` as a PostgreSQL identifier, always quoted."""
    return '"' + name.replace('"', '""') + '"'


_NUMERIC, _BPCHAR = 1700, 1042
# bool, bytea, "char", name, int8, int2, int4, text, oid, cidr, money, macaddr8, macaddr, inet, varchar, date, time,
# timestamp, timestamptz, timetz, bit, varbit, uuid, pg_lsn
_IDENTICAL_IF_EQUAL = frozenset(
    {
        16, 17, 18, 19, 20, 21, 23, 25, 26, 650, 774, 790, 829, 869, 1043, 1082, 1083,
        1114, 1184, 1266, 1560, 1562, 2950, 3220,
    }
)  # fmt: skip
# bool, int8, int2, int4, oid, float4, float8, date, time, timestamp, timestamptz, uuid
_SMALL = frozenset({16, 20, 21, 23, 26, 700, 701, 1082, 1083, 1114, 1184, 2950})
_VARCHAR = 1043
_DECLARED = re.compile(r"\((\d+)")
_SMALL_BYTES, _BYTES_A_CHARACTER = 16, 4


@dataclass(frozen=True, slots=True)
class PgType:
    """A type as PostgreSQL names it: `name` is `format_type()`'s text and can stand in a cast.

    `collation` is the qualified, quoted collation of a collatable column when it is not the default one;
    `deterministic` is false when that collation lets different byte strings be equal. `intervals` says whether values
    are made of intervals: `all` (an interval, a domain, array or range of them), or `some` (a row type with one).
    `is_enum` is true of an enum. `usual` is the type's own collation, of a column that has this one.
    """

    oid: int
    name: str
    collation: str | None = None
    deterministic: bool = True
    intervals: str | None = None
    is_enum: bool = False
    usual: str | None = None

    @property
    def has_one_look(self) -> bool:
        """Whether equal values are sure to be identical, as 1.0 and 1.00 are not. False where it depends."""
        if self.oid in (_NUMERIC, _BPCHAR):
            return self.deterministic and "(" in self.name
        return self.deterministic and (self.is_enum or self.oid in _IDENTICAL_IF_EQUAL)

    @property
    def is_small(self) -> bool:
        """Whether its values are sure to fit into an index, many of them in a row."""
        return self.oid in _SMALL

    @property
    def most_bytes(self) -> int | None:
        """About the size of its largest value; None if that is not known, as of text."""
        if self.is_small or self.is_enum:
            return _SMALL_BYTES
        declared = _DECLARED.search(self.name) if self.oid in (_NUMERIC, _BPCHAR, _VARCHAR) else None
        return None if declared is None else _SMALL_BYTES + _BYTES_A_CHARACTER * int(declared[1])

    @property
    def is_array(self) -> bool:
        return self.name.endswith(("[]", "vector"))


BIGINT = PgType(20, "bigint")
OID = PgType(26, "oid")
TABLEOID: Final = "tableoid"
"""The system column that tells which table a row is of: of one that others inherit, or itself."""


@dataclass(frozen=True, slots=True)
class Column:
    """An output column of an operator. `name` is unique in the whole tree (`c7`); `label` is for people (`o.id`)."""

    name: str
    type: PgType
    label: str = ""


@dataclass(frozen=True, slots=True)
class Expr:
    """A scalar SQL expression over column names (`c7 + 1`), in PostgreSQL's dialect; `columns` are those it reads."""

    sql: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """A source relation: an ordinary, partitioned or stream table."""

    oid: int
    schema: str
    name: str

    @property
    def qualified(self) -> str:
        return f"{quote(self.schema)}.{quote(self.name)}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"
