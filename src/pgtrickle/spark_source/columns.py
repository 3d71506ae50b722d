"""The columns of a stream table as Spark has them: their types, how their values are asked for, and made into Arrow's.

Integers, booleans and bytes travel as they are, times as numbers of days or microseconds, all else as text: by these
rows are told apart, so that 0.0 and −0.0 are two, and so are 'a' and 'A' under any collation. What Spark has no type
for arrives as text. A value that the type in Spark does not have (NaN in a decimal, infinity in a date) is an error,
not another value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pgtrickle.db import Connection
from pgtrickle.errors import StateError, UsageError

_DIGITS: Final = 38
_TEXT: Final = '{0}::text COLLATE "C"'
_DATE, _TIMESTAMP, _TIMESTAMPTZ, _NUMERIC, _BPCHAR, _BYTEA = 1082, 1114, 1184, 1700, 1042, 17
_TYPES: Final = {
    16: ("boolean", "{0}::bool", pa.bool_()),
    20: ("bigint", "{0}::int8", pa.int64()),
    21: ("smallint", "{0}::int8", pa.int16()),
    23: ("int", "{0}::int8", pa.int32()),
    700: ("float", _TEXT, pa.float32()),
    701: ("double", _TEXT, pa.float64()),
    _BYTEA: ("binary", "{0}::bytea", pa.binary()),
    _DATE: ("date", "({0}::date - date '1970-01-01')::int8", pa.date32()),
    _TIMESTAMP: ("timestamp_ntz", "(extract(epoch FROM {0}) * 1000000)::int8", pa.timestamp("us")),
    _TIMESTAMPTZ: ("timestamp", "(extract(epoch FROM {0}) * 1000000)::int8", pa.timestamp("us", "UTC")),
}
_COLUMNS: Final = """
SELECT a.attname, b.oid::bigint, b.typmod FROM pg_attribute AS a CROSS JOIN LATERAL (
    WITH RECURSIVE base AS (
        SELECT a.atttypid AS oid, a.atttypmod AS typmod
        UNION ALL
        SELECT t.typbasetype, t.typtypmod FROM base JOIN pg_type AS t ON t.oid = base.oid WHERE t.typtype = 'd')
    SELECT base.oid, base.typmod FROM base JOIN pg_type AS t ON t.oid = base.oid WHERE t.typtype <> 'd') AS b
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column: its name, its type in Spark, the SQL that asks for a value by `{0}`, and what Arrow has it as."""

    name: str
    spark: str
    form: str
    arrow: pa.DataType

    def asked(self, expression: str) -> str:
        """SQL of a value as it travels."""
        return self.form.format(expression)

    @property
    def ddl(self) -> str:
        """As Spark's schemas name it."""
        return f"`{self.name.replace('`', '``')}` {self.spark}"


def columns_of(connection: Connection, relid: int, wanted: Sequence[str] = ()) -> tuple[SourceColumn, ...]:
    """All columns of a table, or those wanted, in that order."""
    found = {
        str(name): _column(str(name), int(str(oid)), int(str(typmod)))
        for name, oid, typmod in connection.execute(_COLUMNS, (relid,))
    }
    missing = [name for name in wanted if name not in found]
    if missing:
        raise UsageError(
            f"columns: there is no column {missing[0]!r}", code="PT556", hint=f"There are {', '.join(found)}."
        )
    return tuple(found[name] for name in wanted or found)


def _column(name: str, oid: int, typmod: int) -> SourceColumn:
    if oid in _TYPES:
        return SourceColumn(name, *_TYPES[oid])
    if oid == _BPCHAR:  # its cast to text would strip the padding
        return SourceColumn(name, "string", 'textin(bpcharout({0})) COLLATE "C"', pa.string())
    if oid == _NUMERIC and typmod >= 0:
        precision, scale = (typmod - 4) >> 16 & 0xFFFF, (typmod - 4) & 0x7FF
        if scale <= precision <= _DIGITS:
            return SourceColumn(name, f"decimal({precision},{scale})", _TEXT, pa.decimal128(precision, scale))
    return SourceColumn(name, "string", _TEXT, pa.string())


def converted(batch: pa.RecordBatch, columns: Sequence[SourceColumn]) -> list[pa.Array]:
    """Values that have travelled, as Spark wants them."""
    return [_converted(batch.column(place), column) for place, column in enumerate(columns)]


def _converted(values: pa.Array, column: SourceColumn) -> pa.Array:
    try:
        if column.arrow == pa.date32():
            return pc.cast(pc.cast(values, pa.int32()), column.arrow)
        return pc.cast(values, column.arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise StateError(
            f"the column {column.name} has a value that Spark's {column.spark} cannot hold: {error}",
            code="PT560",
            hint="Cast it to text, or to a wider type, in the query of the stream table.",
        ) from error
