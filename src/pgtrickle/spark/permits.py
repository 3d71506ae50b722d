"""Bounds the connections to PostgreSQL that tasks have, over all executors: the setting `spark_connections`.

The driver gives permits out. A task takes as many as its connections may become before it opens the first, and waits
until there are so many: one that waits has none, so none waits for another for ever. Several Python workers may run
parts of one task; they share what it has. A permit ends with the socket that asked for it, whatever ends that.

The driver listens where executors reach it anyway. `on_spark.py` opens it, `worker.py` asks.
"""

from __future__ import annotations

import secrets
import socket
import socketserver
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pyspark import TaskContext

from pgtrickle.errors import EnvironmentProblem

_LONGEST_LINE = 200
_FIRST_LINE_S = 10.0
"""Who has not said by then what it wants is none of ours."""


@dataclass(frozen=True, slots=True)
class Permits:
    """Where a task asks, and for how many at once."""

    host: str
    port: int
    token: str = field(repr=False)
    """Without it, nobody is given any."""
    bound: int
    number: int = 1

    def of(self, number: int) -> Permits:
        """The same, for tasks that take so many."""
        if number > self.bound:
            raise EnvironmentProblem(
                f"spark_connections is {self.bound}, and one task of this refresh takes up to {number} connections",
                code="PT518",
                hint=f"set it to {number} or more, or to 0 for no bound",
            )
        return replace(self, number=number)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within it, the task may be connected."""
        context = TaskContext.get()
        task = 0 if context is None else context.taskAttemptId()
        with socket.create_connection((self.host, self.port), timeout=60) as asking:
            asking.settimeout(None)  # it waits for other tasks, however long these take
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            asking.sendall(f"{self.token} {task} {self.number}\n".encode())
            if asking.recv(1) != b"+":
                raise ConnectionError("the driver gives no permit to connect to PostgreSQL")
            yield


class Giver:
    """Gives permits out, at most so many at once. `bound` may change while it does."""

    def __init__(self, host: str, bound: int) -> None:
        self.bound = bound
        self._token = secrets.token_hex(16)
        self._held: OrderedDict[int, int] = OrderedDict()
        self._sockets: Counter[int] = Counter()
        self._changed = threading.Condition()
        self._server = _Server((host, 0), self)
        threading.Thread(target=self._server.serve_forever, name="permits", daemon=True).start()

    def for_tasks(self, host: str) -> Permits:
        """What tasks are told, to whom the driver is `host`."""
        return Permits(host, self._server.server_address[1], self._token, self.bound)

    @property
    def given(self) -> int:
        """How many are out."""
        return sum(self._held.values())

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def serve(self, asking: socket.socket) -> None:
        """One Python worker, until it or its task ends."""
        asking.settimeout(_FIRST_LINE_S)
        with asking.makefile("rb") as lines:
            token, task, number = lines.readline(_LONGEST_LINE).split()
            asking.settimeout(None)
            if not secrets.compare_digest(token, self._token.encode()):
                return
            self._take(int(task), int(number))
            try:
                asking.sendall(b"+")
                lines.read(1)  # which is when it ends
            finally:
                self._give_back(int(task))

    def _take(self, task: int, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: task in self._held or self.given + number <= self.bound)
            self._held.setdefault(task, number)
            self._sockets[task] += 1

    def _give_back(self, task: int) -> None:
        with self._changed:
            self._sockets[task] -= 1
            if not self._sockets[task]:
                del self._sockets[task], self._held[task]
                self._changed.notify_all()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], giver: Giver) -> None:
        self.giver = giver
        super().__init__(address, _Handler)


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        try:
            self.server.giver.serve(self.request)
        except (OSError, ValueError):
            return  # it has gone, or is none of ours
