"""The service: waits for the lease, leads while it has it, and starts over when it loses it. Called by `pgtrickle run`.

    wait for the lease ──▶ lead: capture (the modes of sources and the decoder), refreshes, requests and audits, each in
    rounds
            ▲                of its own │ lease or server lost
            └──────── growing pauses ◀────┘

While it leads, this thread only listens on the lease's connection, for those who wake us, and keeps the lease alive.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import psycopg

from pgtrickle import db
from pgtrickle.catalog import install, origin
from pgtrickle.config import Settings, Value
from pgtrickle.errors import Error, ServerError, UsageError
from pgtrickle.fence import Fence, LeaseLost
from pgtrickle.scheduler import lease
from pgtrickle.scheduler.audit import Audit
from pgtrickle.scheduler.backoff import pause_after
from pgtrickle.scheduler.capture_loop import CaptureLoop
from pgtrickle.scheduler.events import database, say, set_level
from pgtrickle.scheduler.heartbeat import Activity, Loop, report
from pgtrickle.scheduler.lease import Lease
from pgtrickle.scheduler.loop_thread import LoopThread

LISTEN_S: Final = 0.25
"""How often we look up from listening, to see whether we are told to stop."""
FINISH_WITHIN_S: Final = 3.0
"""What is under way may finish; what is not done then is cut off, and PostgreSQL undoes it."""
CUT_OFF_WITHIN_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 5.0
_OF_SPARK: Final = ("spark_master", "spark_conf", "spark_archive")
"""Settings of the one Spark that this process has."""
_PASSING: Final = (ServerError.code, LeaseLost.code)


class ServiceLoop(Protocol):
    """What the service does in rounds. Made anew each time it begins to lead."""

    @property
    def backend_pids(self) -> tuple[int, ...]:
        """The sessions in which a round may be waiting; asked for by another thread than the round's."""

    @property
    def activity(self) -> Activity:
        """What it is at, for the heartbeat; asked for by another thread than the round's."""

    def round(self, settings: Settings) -> bool:
        """Do what there is to do; true if the next round should follow at once."""

    def stop(self) -> None:
        """Begin nothing more in the round under way; called by another thread than the round's."""

    def close(self) -> None:
        """End its sessions. Called when no round is under way."""


@dataclass(frozen=True, slots=True)
class Controls:
    """How the service is told what to do while it runs."""

    stop: threading.Event = field(default_factory=threading.Event)
    reload: threading.Event = field(default_factory=threading.Event)


class Service:
    """The service of one database. `requests` and `refreshes` are made by the caller, who knows what carries out the
    former; only refreshes can be switched off (`enabled`). `flags` are settings that the command line gave. `name` is
    that of the database for the log, where the process serves several: then one that cannot be reached at the start is
    waited for."""

    def __init__(
        self,
        dsn: str,
        refreshes: Callable[[Fence], ServiceLoop],
        requests: Callable[[Fence], ServiceLoop],
        controls: Controls,
        flags: Mapping[str, Value | None] | None = None,
        name: str | None = None,
    ) -> None:
        self._dsn = dsn
        self._refreshes = refreshes
        self._requests = requests
        self._controls = controls
        self._flags = flags
        self._name = name
        self._settings: Settings | None = None
        self._instance = db.instance()

    def run(self) -> None:
        """Serve until told to stop. Raises only what no waiting can mend: the server cannot be reached at the start, or
        its catalog is not one that this program can use."""
        if self._name is None:
            db.connect(self._dsn).close()
        else:
            database.set(self._name)
        say("service_started", database=db.mask(self._dsn), pid=os.getpid(), instance=self._instance)
        failures = 0
        while not self._controls.stop.is_set():
            since = time.monotonic()
            try:
                self._serve()
            except (ServerError, psycopg.OperationalError, psycopg.InterfaceError) as error:
                if isinstance(error, ServerError) and error.code not in _PASSING:
                    raise
                failures = 1 if time.monotonic() - since > _LONGEST_PAUSE_S else failures + 1
                pause = pause_after(failures, longest_s=_LONGEST_PAUSE_S)
                say("connection_lost", logging.WARNING, error=error, next_try_s=pause)
                self._controls.stop.wait(pause)
        say("service_stopped")

    def _serve(self) -> None:
        if not self._prepare():
            return
        timeout_ms = self._read().lease_timeout_ms
        held = lease.acquire(self._dsn, self._instance, timeout_ms, self._controls.stop, _waiting)
        if held is None:
            return
        try:
            say("lease_taken", epoch=held.fence.epoch)
            self._lead(held)
        finally:
            held.release()
            say("lease_given_up")

    def _prepare(self) -> bool:
        """Wait until the server can be written to, and see that there is a catalog with leases in it; false if told to
        stop before. A catalog that has them is brought up to date by who leads."""
        with db.connect(self._dsn) as conn:
            if lease.is_standby(conn):
                _waiting(lease.STANDBY)
            while lease.is_standby(conn):
                if self._controls.stop.wait(lease.ASK_AGAIN_S):
                    return False
            if not install.has_leases(conn):
                self._install(conn)
        return True

    def _install(self, conn: db.Connection) -> None:
        applied = install.install(conn).applied
        if applied:
            say("catalog_installed", versions=list(applied))

    def _lead(self, held: Lease) -> None:
        with db.connect(self._dsn) as conn:
            self._install(conn)
            origin.require_here(conn)  # of a restored catalog, nothing can be told by oid
        settings = self._load()
        parts: dict[str, ServiceLoop] = {
            "refreshes": self._refreshes(held.fence),
            "requests": self._requests(held.fence),
            "capture": CaptureLoop(self._dsn, lambda: held.capture),
            "audits": Audit(self._dsn),
        }
        work = [(LoopThread(name, part.round, settings), part) for name, part in parts.items()]
        held.loops = lambda: report(_loops(work))
        try:
            while not self._controls.stop.is_set():
                woken = held.watch(LISTEN_S)
                if self._controls.reload.is_set():
                    self._controls.reload.clear()
                    settings, woken = self._load(), True
                for rounds, _ in work:
                    rounds.settings = settings
                    if woken:
                        rounds.wake()
        finally:
            self._finish(work)

    def _load(self) -> Settings:
        """The settings as they are now, read in a new session: one that is open does not see what was set since for the
        database. Wrong ones are an error at the start only; later those stay that were right. Spark stays the same."""
        known = self._settings
        found = self._read()
        if found is known:
            return known
        for name in _OF_SPARK if known is not None else ():
            if getattr(found, name) != getattr(known, name):
                say("setting_kept", logging.WARNING, setting=name, until="the next start")
                found = replace(found, **{name: getattr(known, name)})
        self._settings = found
        set_level(found.log_level)
        say("settings_read")
        return found

    def _read(self) -> Settings:
        known = self._settings
        try:
            with db.connect(self._dsn) as conn:
                return Settings.load(conn, self._flags)
        except UsageError as error:
            if known is None:
                raise
            say("settings_not_read", logging.WARNING, error=error)
            return known

    def _finish(self, work: Sequence[tuple[LoopThread, ServiceLoop]]) -> None:
        """End all parts, in time: a round that does not end by itself loses its sessions."""
        for rounds, part in work:
            rounds.stop()
            part.stop()
        deadline = time.monotonic() + FINISH_WITHIN_S
        late = [each for each in work if not each[0].join(max(deadline - time.monotonic(), 0))]
        if late:
            self._cut_off([rounds.name for rounds, _ in late], [pid for _, part in late for pid in part.backend_pids])
        deadline = time.monotonic() + CUT_OFF_WITHIN_S
        for rounds, part in work:
            if rounds.join(max(deadline - time.monotonic(), 0)):
                part.close()
            else:  # it ends when it finds its sessions gone, or with the process
                threading.Thread(target=_close_after, args=(rounds, part), daemon=True).start()

    def _cut_off(self, names: list[str], pids: list[int]) -> None:
        """End sessions of ours that wait for something: PostgreSQL would go on waiting after we are gone."""
        say("rounds_cut_off", logging.WARNING, rounds=names, backend_pids=pids)
        try:
            with db.connect(self._dsn, connect_timeout=2) as conn:
                conn.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::integer[]) AS pid", (pids,))
        except (Error, psycopg.Error) as error:
            say("rounds_not_cut_off", logging.WARNING, error=error)


def _loops(work: Sequence[tuple[LoopThread, ServiceLoop]]) -> list[Loop]:
    """All loops of the service as they are now."""
    found: list[Loop] = []
    for rounds, part in work:
        at = part.activity
        found += [rounds.loop(at), *at.inner]
    return found


def _waiting(reason: str) -> None:
    say("lease_awaited", reason=reason)


def _close_after(rounds: LoopThread, part: ServiceLoop) -> None:
    rounds.join()
    part.close()
