"""The replication protocol: one connection that streams the decoded WAL of a slot. Called by the decoder.

libpq does the talking, through psycopg's `pq`, which knows COPY in both directions. The stream has two kinds of
messages: `w`, with a message of the plugin in it, and `k`, which says how far the server has read the WAL, and may ask
for an answer. Our answers say up to where changes are safe with us: the server may forget the WAL before that.
"""

from __future__ import annotations

import re
import selectors
import time
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from types import TracebackType
from typing import Final

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from pgtrickle import db
from pgtrickle.capture.pgoutput import ProtocolError
from pgtrickle.errors import ServerError
from pgtrickle.model import quote

WAL_DATA: Final = ord("w")
KEEPALIVE: Final = ord("k")
WAL_DATA_HEADER: Final = 25
"""Bytes of a `w` message before the plugin's own message: the kind, two positions and a time."""

_KEEPALIVE = Struct(">cQqB")
_STATUS = Struct(">cQQQqB")
_EPOCH_2000_US: Final = 946_684_800_000_000
_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def parse_lsn(text: str) -> int:
    """A position in the WAL, from PostgreSQL's way of writing it (`16/B374D848`)."""
    match = _LSN.fullmatch(text)
    if match is None:
        raise ValueError(f"not an LSN: {text!r}")
    return int(match[1], 16) << 32 | int(match[2], 16)


def format_lsn(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


class StreamError(ServerError):
    """The stream cannot start, or ended. `sqlstate` is the server's reason, None if the connection was lost."""

    code = "PT411"

    def __init__(self, message: str, *, sqlstate: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.sqlstate = sqlstate


class SlotMissing(StreamError):
    """There is no such slot: the changes since it was dropped are lost."""

    code = "PT412"


class SlotInvalid(StreamError):
    """The server gave the slot up (too far behind, or wal_level lowered): the changes it stood for are lost."""

    code = "PT413"


class SlotBusy(StreamError):
    """Someone else streams from the slot at this moment."""

    code = "PT414"


class PublicationMissing(StreamError):
    """The publication was dropped: what was written since is not sent."""

    code = "PT415"


@dataclass(frozen=True, slots=True)
class Keepalive:
    """Everything before `position` has been sent; `reply` asks for an answer at once."""

    position: int
    reply: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """Which server this is, and how far its WAL reaches on disk."""

    system_id: str
    timeline: int
    position: int


def keepalive(data: bytes) -> Keepalive:
    if len(data) != _KEEPALIVE.size:
        raise ProtocolError(f"not a keepalive message: {data[:40].hex()}")
    _, position, _, reply = _KEEPALIVE.unpack(data)
    return Keepalive(position, bool(reply))


class ReplicationConnection:
    """A connection in replication mode. Not for several threads at once."""

    def __init__(self, dsn: str, *, application_name: str = "pgtrickle decoder", connect_timeout: int = 10) -> None:
        conninfo = make_conninfo(
            dsn,
            replication="database",
            application_name=db.session_name(application_name),
            connect_timeout=connect_timeout,
        )
        self._conn = pq.PGconn.connect(conninfo.encode())
        if self._conn.status != pq.ConnStatus.OK:
            reason = " ".join(self._conn.get_error_message().split())
            self._conn.finish()
            raise StreamError(
                f"cannot connect for replication to {db.mask(dsn)}: {reason}",
                hint="The role needs the REPLICATION right, and max_wal_senders a free place.",
            )
        self._warning: StreamError | None = None
        self._conn.notice_handler = self._notice
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._conn.socket, selectors.EVENT_READ)
        try:
            for statement in db.session_sql():  # values without a binary form are sent as text
                self._command(statement)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ReplicationConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._selector.close()
        self._conn.finish()

    def identify(self) -> Identity:
        system_id, timeline, position, _ = self._command("IDENTIFY_SYSTEM")
        return Identity(system_id, int(timeline), parse_lsn(position))

    def start(self, slot: str, publication: str, position: int) -> None:
        """Begin to stream, from `position` or from where the slot was confirmed, whichever is later."""
        names = _literal(quote(publication))
        command = (
            f"START_REPLICATION SLOT {quote(slot)} LOGICAL {format_lsn(position)}"
            f" (proto_version '1', publication_names {names}, binary 'true', messages 'true')"
        )
        result = self._conn.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise _refusal(slot, result)

    def arrived(self) -> Iterator[bytes]:
        """The messages that are here already; ends when the next one would have to be waited for."""
        get = self._conn.get_copy_data
        looked = False
        while True:
            try:
                size, view = get(1)
                while size > 0:
                    looked = False
                    yield view.tobytes()
                    size, view = get(1)
                if size == 0 and not looked:
                    self._conn.consume_input()
                    looked = True
                    continue
            except psycopg.OperationalError as error:
                raise StreamError(f"the connection was lost: {' '.join(str(error).split())}") from error
            if self._warning is not None:
                raise self._warning
            if size == 0:
                return
            raise self._ended()

    def wait(self, timeout: float) -> bool:
        """Whether something came within `timeout` seconds."""
        return bool(self._selector.select(timeout))

    def confirm(self, position: int) -> None:
        """Tell the server that it may forget what was before `position`; also the answer to its keepalives."""
        now = time.time_ns() // 1000 - _EPOCH_2000_US
        try:
            self._conn.put_copy_data(_STATUS.pack(b"r", position, position, position, now, 0))
            self._conn.flush()
        except psycopg.OperationalError as error:
            raise StreamError(f"the connection was lost: {' '.join(str(error).split())}") from error

    def _command(self, command: str) -> list[str]:
        """Run one command; the first row of its answer."""
        result = self._conn.exec_(command.encode())
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise StreamError(f"{command.split()[0]}: {_reason(result)}", sqlstate=_sqlstate(result))
        return [(result.get_value(0, place) or b"").decode() for place in range(result.nfields)]

    def _notice(self, result: pq.abc.PGresult) -> None:
        """Since PostgreSQL 18 a missing publication is a warning, and nothing is sent: that must not go unseen."""
        severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
        if severity == b"WARNING" and _sqlstate(result) == "55000":
            self._warning = PublicationMissing(_reason(result), sqlstate="55000")

    def _ended(self) -> StreamError:
        """Why the server ended the stream."""
        result = self._conn.get_result()
        if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
            return StreamError("the server ended the stream", hint="It is shutting down, or the slot was taken away.")
        sqlstate = _sqlstate(result)
        kind = PublicationMissing if sqlstate == "42704" else StreamError
        return kind(f"the server ended the stream: {_reason(result)}", sqlstate=sqlstate)


def _refusal(slot: str, result: pq.abc.PGresult) -> StreamError:
    sqlstate = _sqlstate(result)
    kind = {"42704": SlotMissing, "55000": SlotInvalid, "55006": SlotBusy}.get(sqlstate or "", StreamError)
    return kind(f"cannot stream from the slot {slot}: {_reason(result)}", sqlstate=sqlstate)


def _reason(result: pq.abc.PGresult) -> str:
    primary = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
    return primary.decode(errors="replace") if primary else " ".join(result.get_error_message().split())


def _sqlstate(result: pq.abc.PGresult) -> str | None:
    state = result.error_field(pq.DiagnosticField.SQLSTATE)
    return state.decode() if state else None


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
