"""The requests side of the service: in each round, what was asked for by SQL is carried out. Called by the service.

What carries it out is opened when there is something to do, by the caller's word: this level does not know the API.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from pgtrickle import db
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.fence import Fence
from pgtrickle.scheduler import request_executor
from pgtrickle.scheduler.heartbeat import Activity, Busy


class ApiSession(request_executor.Executor, Protocol):
    """An executor with the connection that it works on (an `api.Trickle`)."""

    @property
    def connection(self) -> Connection: ...

    @property
    def backend_pids(self) -> tuple[int, ...]: ...

    def close(self) -> None: ...


class RequestLoop:
    """Where requests come in. Its rounds are for one thread; `backend_pids` may be asked for by another."""

    def __init__(self, dsn: str, api: Callable[[Settings], ApiSession], fence: Fence | None = None) -> None:
        self._dsn = dsn
        self._fence = fence
        self._open = api
        self._conn: Connection | None = None
        self._api: tuple[Settings, ApiSession] | None = None
        self._at: Busy | None = None

    @property
    def backend_pids(self) -> tuple[int, ...]:
        """The sessions in which a request may be waiting."""
        own = () if self._conn is None or self._conn.closed else (self._conn.info.backend_pid,)
        return own if self._api is None else (*own, *self._api[1].backend_pids)

    @property
    def activity(self) -> Activity:
        """The request that is being carried out."""
        return Activity(self._at)

    def round(self, settings: Settings) -> bool:
        """Carry out what is pending, if anything is."""
        if not request_executor.waiting(self._opened()):
            return False
        api = self._at_work(settings)
        try:
            request_executor.carry_out(api.connection, api, self._fence, self._began)
        finally:
            self._at = None
        return False

    def _began(self, request: request_executor.Request) -> None:
        what = f"carrying out request {request.id}: {request.kind} {request.args.get('name')}"
        self._at = Busy(what, time.monotonic(), self.backend_pids)

    def stop(self) -> None:
        """Nothing to do: a request under way is cut off if it does not end, and taken up again by the next service."""

    def close(self) -> None:
        if self._api is not None:
            self._api[1].close()
            self._api = None
        if self._conn is not None:
            self._conn.close()

    def _opened(self) -> Connection:
        if self._conn is None or not db.is_usable(self._conn):
            if self._conn is not None:
                self._conn.close()
            self._conn = db.connect(self._dsn, application_name="pgtrickle requests")
        return self._conn

    def _at_work(self, settings: Settings) -> ApiSession:
        """What carries requests out, under the settings as they are."""
        known = self._api
        if known is not None and known[0] == settings and db.is_usable(known[1].connection):
            return known[1]
        if known is not None:
            known[1].close()
            self._api = None
        self._api = (settings, self._open(settings))
        return self._api[1]
