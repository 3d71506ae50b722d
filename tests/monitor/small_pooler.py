"""A connection pooler as small as can be: clients take turns on sessions of the server, for a transaction or for good.

It speaks enough of PostgreSQL's protocol for a driver without pipelines: whole requests one way, answers up to
`ReadyForQuery` the other way.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
from psycopg.conninfo import make_conninfo

_TOLD = ("server_version", "server_encoding", "client_encoding", "DateStyle", "standard_conforming_strings", "TimeZone")


class _Pool:
    def __init__(self, dsn: str, *, by_transaction: bool) -> None:
        self.dsn = make_conninfo(dsn, sslmode="disable", gssencmode="disable")
        self.by_transaction = by_transaction
        self.idle: list[psycopg.Connection] = []
        self.all: list[psycopg.Connection] = []

    def take(self) -> psycopg.Connection:
        if self.idle:
            return self.idle.pop()  # the one that was used last, as PgBouncer does
        self.all.append(psycopg.connect(self.dsn, autocommit=True))
        os.set_blocking(self.all[-1].fileno(), True)
        return self.all[-1]


def _exactly(read: int, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = os.read(read, size - len(found))
        if not part:
            raise ConnectionError
        found += part
    return found


def _message(read: int) -> tuple[bytes, bytes]:
    head = _exactly(read, 5)
    return head[:1], head + _exactly(read, struct.unpack("!i", head[1:])[0] - 4)


def _made(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("!i", len(content) + 4) + content


def _greet(client: socket.socket, pool: _Pool) -> None:
    """No password is asked for, and the key for cancelling is the pooler's own."""
    while True:
        size, code = struct.unpack("!ii", _exactly(client.fileno(), 8))
        _exactly(client.fileno(), size - 8)
        if code == 196608:
            break
        client.sendall(b"N")  # neither TLS nor GSSAPI
    server = pool.take()
    known = [(name, server.info.parameter_status(name) or "") for name in _TOLD]
    pool.idle.append(server)
    told = b"".join(_made(b"S", f"{name}\0{value}\0".encode()) for name, value in known)
    key = struct.pack("!i", random.randrange(2**31)) + random.randbytes(4)
    client.sendall(_made(b"R", struct.pack("!i", 0)) + told + _made(b"K", key) + _made(b"Z", b"I"))


def _serve(client: socket.socket, pool: _Pool) -> None:
    server: psycopg.Connection | None = None
    with client, suppress(OSError):
        _greet(client, pool)
        while True:
            kind, message = _message(client.fileno())
            if kind == b"X":
                break
            server = server or pool.take()
            os.write(server.fileno(), message)
            while kind in b"QS":
                answer, content = _message(server.fileno())
                client.sendall(content)
                if answer == b"Z":
                    if pool.by_transaction and content[-1:] == b"I":
                        pool.idle.append(server)
                        server = None
                    break
    if server is not None and server not in pool.idle:
        pool.idle.append(server)


@contextmanager
def small_pooler(dsn: str, *, by_transaction: bool) -> Iterator[str]:
    """The DSN by which clients reach it."""
    pool = _Pool(dsn, by_transaction=by_transaction)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    threading.Thread(target=_serve, args=(client, pool), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield make_conninfo(dsn, host="127.0.0.1", port=listening.getsockname()[1], gssencmode="disable")
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for each in pool.all:
                each.close()
