"""The messages of PostgreSQL's `pgoutput` plugin, protocol version 1. Pure; called by the decoder.

Each function reads one kind of message, given the bytes and where its body starts (after the byte that tells the kind),
and raises `ProtocolError` for bytes that are not such a message to the last. Begin, Commit, Relation, Truncate and
Message become values. Rows are many, so they become lists of fields as COPY in binary wants them, length and data:

    pgoutput column     n            u            b length data      t length data
    field               NULL         UNCHANGED    length data        length data

Origin (O) and Type (Y) messages tell nothing we need and are passed over unread.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error
from typing import Final, TypeAlias

from pgtrickle.errors import ServerError

NULL: Final = b"\xff\xff\xff\xff"
UNCHANGED: Final = None
"""Stands for a large value that an update left alone and that the server therefore did not send."""

Field: TypeAlias = bytes | None

_UINT16 = Struct(">H").unpack_from
_UINT32 = Struct(">I").unpack_from
_BEGIN = Struct(">QqI")
_COMMIT = Struct(">BQQq")
_COLUMN = Struct(">Ii")
_TRUNCATE = Struct(">IB")
_MESSAGE = Struct(">BQ")
_BEFORE = b"KO"
_NEW = ord("N")
_BINARY, _NULL, _TEXT, _UNCHANGED = b"bntu"


class ProtocolError(ServerError):
    """The server sent something that is not a message as documented."""

    code = "PT410"


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction follows, up to its Commit. `commit_lsn` is where its commit record is; `xid` is 32 bits wide."""

    commit_lsn: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction; `end_lsn` is the position right after its commit record."""

    commit_lsn: int
    end_lsn: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a relation, as it was when the change was made; `key` if it belongs to the replica identity."""

    name: str
    type_oid: int
    type_modifier: int
    key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """The shape of a table, sent before its first change and after each DDL. `identity` is `d`, `n`, `f` or `i`."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """What `pg_logical_emit_message` was given."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


def begin(data: bytes, at: int = 0) -> Begin:
    try:
        commit_lsn, _, xid = _BEGIN.unpack_from(data, at)
    except struct_error as error:
        raise _malformed("Begin", data) from error
    _require_end("Begin", data, at + _BEGIN.size)
    return Begin(commit_lsn, xid)


def commit(data: bytes, at: int = 0) -> Commit:
    try:
        _, commit_lsn, end_lsn, _ = _COMMIT.unpack_from(data, at)
    except struct_error as error:
        raise _malformed("Commit", data) from error
    _require_end("Commit", data, at + _COMMIT.size)
    return Commit(commit_lsn, end_lsn)


def relation(data: bytes, at: int = 0) -> Relation:
    try:
        (oid,) = _UINT32(data, at)
        schema, at = _string(data, at + 4)
        name, at = _string(data, at)
        identity = chr(data[at])
        (count,) = _UINT16(data, at + 1)
        at += 3
        columns = []
        for _ in range(count):
            flags = data[at]
            column, at = _string(data, at + 1)
            type_oid, modifier = _COLUMN.unpack_from(data, at)
            columns.append(RelationColumn(column, type_oid, modifier, bool(flags & 1)))
            at += _COLUMN.size
    except (struct_error, IndexError, ValueError) as error:
        raise _malformed("Relation", data) from error
    _require_end("Relation", data, at)
    # The server writes pg_catalog as an empty name.
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def truncate(data: bytes, at: int = 0) -> tuple[int, ...]:
    """The tables that were emptied."""
    try:
        count, _ = _TRUNCATE.unpack_from(data, at)
        at += _TRUNCATE.size
        _require_end("Truncate", data, at + 4 * count)
        return Struct(f">{count}I").unpack_from(data, at)
    except struct_error as error:
        raise _malformed("Truncate", data) from error


def message(data: bytes, at: int = 0) -> Message:
    try:
        flags, lsn = _MESSAGE.unpack_from(data, at)
        prefix, at = _string(data, at + _MESSAGE.size)
        (size,) = _UINT32(data, at)
    except (struct_error, ValueError) as error:
        raise _malformed("Message", data) from error
    _require_end("Message", data, at + 4 + size)
    return Message(bool(flags & 1), lsn, prefix, data[at + 4 :])


def insert(data: bytes, at: int, text: Collection[int] = ()) -> list[Field]:
    """The new row. Its body is read from after the relation's oid, as are those of update and delete.

    `text` are the places of columns that may come in text form, since their type has no binary one.
    """
    try:
        if data[at] != _NEW:
            raise _malformed("Insert", data)
        new, end = _fields(data, at + 1, text)
    except (struct_error, IndexError) as error:
        raise _malformed("Insert", data) from error
    _require_end("Insert", data, end)
    return new


def update(data: bytes, at: int, text: Collection[int] = ()) -> tuple[list[Field] | None, list[Field]]:
    """The old row and the new one. The old row is whole under REPLICA IDENTITY FULL; else it has the key columns only,
    and it is not sent (None) if none of them changed."""
    try:
        old = None
        if data[at] in _BEFORE:
            old, at = _fields(data, at + 1, text)
        if data[at] != _NEW:
            raise _malformed("Update", data)
        new, end = _fields(data, at + 1, text)
    except (struct_error, IndexError) as error:
        raise _malformed("Update", data) from error
    _require_end("Update", data, end)
    return old, new


def delete(data: bytes, at: int, text: Collection[int] = ()) -> list[Field]:
    """The old row: whole, or its key columns only."""
    try:
        if data[at] not in _BEFORE:
            raise _malformed("Delete", data)
        old, end = _fields(data, at + 1, text)
    except (struct_error, IndexError) as error:
        raise _malformed("Delete", data) from error
    _require_end("Delete", data, end)
    return old


def _fields(data: bytes, at: int, text: Collection[int]) -> tuple[list[Field], int]:
    """The columns of a row, and where it ends. This is where the time goes: nothing is made but the list of slices.

    A slice past the end is short, which shows in the end being past it.
    """
    fields: list[Field] = []
    (count,) = _UINT16(data, at)
    at += 2
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == _BINARY:
            end = at + 4 + _UINT32(data, at)[0]
            fields.append(data[at:end])
            at = end
        elif kind == _NULL:
            fields.append(NULL)
        elif kind == _UNCHANGED:
            fields.append(UNCHANGED)
        elif kind == _TEXT and len(fields) in text:
            end = at + 4 + _UINT32(data, at)[0]
            fields.append(data[at:end])
            at = end
        else:
            raise ProtocolError(f"column {len(fields)} came as {chr(kind)!r}, which was not asked for")
    return fields, at


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def _require_end(kind: str, data: bytes, end: int) -> None:
    if end != len(data):
        raise _malformed(kind, data)


def _malformed(kind: str, data: bytes) -> ProtocolError:
    return ProtocolError(
        f"not a whole {kind} message: {len(data)} bytes, {data[:40].hex()}",
        hint="Is there something between this program and the server that changes what is sent?",
    )
