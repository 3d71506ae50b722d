"""Rows of pgoutput become rows of a binary COPY into a change buffer. Pure; called by the sink and the decoder.

A COPY row is the number of its fields, then the fields, each its length and data. A buffer row has

    xid  lsn  action  cdc_source  new_<column>…  old_<column>…

The first four are the same for all rows of a transaction with one action, so they are made once (`Target.begin`). The
values are carried over as they came: PostgreSQL wrote them with the type's send function and reads them with its
receive function. A column whose type has no binary form came as text, and goes as such into a `text` column of a table
in between (see `sink.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from struct import Struct
from typing import Final

from pgtrickle.capture import bulk, pgoutput
from pgtrickle.capture.buffer import buffer_column
from pgtrickle.capture.pgoutput import NULL, UNCHANGED, Field, ProtocolError, Relation

HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER: Final = b"\xff\xff"
BULK_ROWS: Final = 32
"""Rows from which on it pays to look at all of them at once."""
AT_ONCE_ROWS: Final = 2000
"""More would not stay in the processor's cache."""
FIXED_COLUMNS: Final = ("xid", "lsn", "action", "cdc_source")

_STEM = Struct(">hiQiQ")
_INSERT, _UPDATE, _DELETE, _TRUNCATE = (b"\0\0\0\1" + action + b"\0\0\0\1W" for action in (b"I", b"U", b"D", b"T"))
_WIDE: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class ValueType:
    """How a value is stored: type and modifier (of the base type, for a domain), and whether it has a binary form."""

    oid: int
    modifier: int
    binary: bool = True


@dataclass(frozen=True, slots=True)
class BufferShape:
    """A buffer as it is: its source, the source's columns that are captured, and the type it has for each.

    `refused_lsn`: it has refused a value of a transaction up to there. `pairs`: a row with both images always fits.
    """

    source: int
    columns: tuple[str, ...]
    types: tuple[tuple[int, int], ...]
    partitioned: bool = False
    refused_lsn: int = 0
    pairs: bool = True

    @property
    def copied(self) -> tuple[str, ...]:
        """The buffer's columns in the order of our COPY."""
        return FIXED_COLUMNS + tuple(buffer_column(side, name) for side in ("new", "old") for name in self.columns)


def extend_xid(xid: int, reference: int) -> int:
    """The 64-bit transaction id whose lower half is `xid`: the one nearest to `reference`, a 64-bit id of about now.

    No two transactions that a server still knows are 2³¹ apart, so the nearest is the one meant, whether `reference`
    was read before it or after.
    """
    ahead = (xid - reference) % _WIDE
    extended = reference + ahead if ahead < _WIDE // 2 else reference + ahead - _WIDE
    if extended < 0:
        raise ProtocolError(f"the transaction id {xid} is impossible: the server is at {reference}")
    return extended


class CopyTarget:
    """The rows on their way to one buffer."""

    __slots__ = (
        "delete_head",
        "insert_head",
        "marked",
        "nulls",
        "refused",
        "rows",
        "shape",
        "truncate_head",
        "update_head",
    )

    def __init__(self, shape: BufferShape) -> None:
        self.shape = shape
        self.nulls = NULL * len(shape.columns)
        self.rows = bytearray()
        self.begin(0, 0)

    def begin(self, xid: int, lsn: int) -> None:
        """The rows from now on are those of this transaction."""
        stem = _STEM.pack(len(FIXED_COLUMNS) + 2 * len(self.shape.columns), 8, xid, 8, lsn)
        self.insert_head = stem + _INSERT
        self.update_head = stem + _UPDATE
        self.delete_head = stem + _DELETE
        self.truncate_head = stem + _TRUNCATE
        self.marked = False
        self.refused = lsn <= self.shape.refused_lsn

    def mark(self) -> None:
        """The content of the source is no longer what the changes add up to; saying it once a transaction is enough."""
        if not self.marked:
            self.rows += self.truncate_head + self.nulls + self.nulls
            self.marked = True

    def take(self) -> bytearray:
        """The rows so far, which are then no longer here."""
        rows, self.rows = self.rows, bytearray()
        return rows


class Route:
    """From the rows of one relation to one target. `problem` says why the values cannot be had: then it only marks.

    Rows come as pgoutput has them after the relation's oid. `text` are the places of columns that come as text.
    """

    __slots__ = ("_bulk", "_count", "_covered", "_pick", "_used", "_whole", "problem", "target", "text")

    def __init__(self, target: CopyTarget, relation: Relation, text: frozenset[int], problem: str | None) -> None:
        self.target = target
        self.problem = problem
        self.text = text
        self._whole = relation.identity == "f"
        """Whether old rows come whole."""
        self._covered = True
        """Whether old rows have all the columns we need."""
        self._count = len(relation.columns)
        places: list[int] = []
        if problem is None:
            place_of = {column.name: place for place, column in enumerate(relation.columns)}
            places = [place_of[name] for name in target.shape.columns]
            self._covered = self._whole or all(relation.columns[place].key for place in places)
        self._pick = _picker(places, self._count)
        self._used = frozenset(places)
        self._bulk = places == sorted(places)
        """Whether the values can stay in the order they have."""

    def inserts(self, rows: list[bytes]) -> None:
        target = self.target
        if self.problem is not None or target.refused:
            target.mark()
            return
        if self._bulk and len(rows) >= BULK_ROWS:
            rows = self._transcode(rows, target.insert_head, target.nulls)
        for row in rows:
            new = self._pick(pgoutput.insert(row, 0, self.text))  # never UNCHANGED, which join() would refuse
            target.rows += b"".join((target.insert_head, *new, target.nulls))  # type: ignore[arg-type]

    def deletes(self, rows: list[bytes]) -> None:
        target = self.target
        if self.problem is not None or target.refused or not self._covered:
            target.mark()
            return
        head = target.delete_head + target.nulls
        if self._bulk and len(rows) >= BULK_ROWS:
            rows = self._transcode(rows, head, b"")
        for row in rows:
            target.rows += b"".join((head, *self._pick(pgoutput.delete(row, 0, self.text))))  # type: ignore[arg-type]

    def _transcode(self, rows: list[bytes], head: bytes, tail: bytes) -> list[bytes]:
        """Take over as many rows as can be at once; those left must be looked at one by one."""
        left: list[bytes] = []
        for start in range(0, len(rows), AT_ONCE_ROWS):
            some = rows[start : start + AT_ONCE_ROWS]
            done, more = bulk.transcode(some, self._count, self._used, head, tail, self.text)
            self.target.rows += done
            left += more
        return left

    def updates(self, rows: list[bytes]) -> None:
        """Writes nothing if the columns used are the same bytes. With an identity index they are when no old row came:
        the index covers them, and the server sends its columns if one of them changed."""
        target = self.target
        if self.problem is not None or target.refused or not self._covered:
            target.mark()
            return
        for row in rows:
            old, new = pgoutput.update(row, 0, self.text)
            if old is None:
                if self._whole:  # a partition whose identity is not its root's
                    target.mark()
                continue
            if UNCHANGED in new:
                new = [before if after is UNCHANGED else after for before, after in zip(old, new, strict=True)]
            after, before = self._pick(new), self._pick(old)  # no UNCHANGED is left in them
            if after == before:
                continue
            if target.shape.pairs:
                target.rows += b"".join((target.update_head, *after, *before))  # type: ignore[arg-type]
            else:
                target.rows += b"".join((target.delete_head, target.nulls, *before))  # type: ignore[arg-type]
                target.rows += b"".join((target.insert_head, *after, target.nulls))  # type: ignore[arg-type]


def misfit(relation: Relation, shape: BufferShape, types: Sequence[ValueType | None]) -> str | None:
    """Why the rows of `relation` cannot go into the buffer; None if they can. `types` are those of its columns, None
    where a type is gone."""
    if shape.partitioned and relation.identity != "f":
        return (
            f"{relation.schema}.{relation.name} is partitioned, and its identity does not tell that of its partitions"
        )
    found = {column.name: value for column, value in zip(relation.columns, types, strict=True)}
    for name, expected in zip(shape.columns, shape.types, strict=True):
        if name not in found:
            return f"{relation.schema}.{relation.name} has no column {name!r}"
        value = found[name]
        if value is None or (value.oid, value.modifier) != expected:
            return f"the type of {relation.schema}.{relation.name}.{name} is not the one captured"
    return None


def _picker(places: list[int], count: int) -> Callable[[list[Field]], Iterable[Field]]:
    """A function that takes the values at `places`, as fast as can be."""
    if places == list(range(count)):
        return _all
    if not places:
        return _none
    if len(places) == 1:
        (only,) = places
        return lambda fields: (fields[only],)
    return itemgetter(*places)


def _all(fields: list[Field]) -> Iterable[Field]:
    return fields


def _none(fields: list[Field]) -> Iterable[Field]:
    return ()
