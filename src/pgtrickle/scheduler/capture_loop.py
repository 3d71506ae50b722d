"""The capture side of the service: in each round every source is looked at and moved one step, and the decoder with it.

`CaptureLoop.round` is called by the service in a thread of its own, whether refreshes are enabled or not. A slot that a
killed service left is found by the first round: it is read on if sources count on it, and dropped if none do.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, Final

import psycopg

from pgtrickle import db
from pgtrickle.capture import slot
from pgtrickle.capture.modes import SlotState, Step
from pgtrickle.capture.supervise import Rests, Supervised, supervise
from pgtrickle.catalog import writer as record
from pgtrickle.config import Settings
from pgtrickle.fence import Fence
from pgtrickle.scheduler.alerts import Levels, Measures, alerts
from pgtrickle.scheduler.decoding import Decoding
from pgtrickle.scheduler.events import say
from pgtrickle.scheduler.heartbeat import Activity

ALERT_CHANNEL: Final = "pg_trickle_alert"


class CaptureLoop:
    """Capture of one database, as long as the lease for it is ours, if there is one. Its rounds are for one thread;
    `backend_pids` may be asked for by another."""

    def __init__(self, dsn: str, lease: Callable[[], Fence | None] | None = None) -> None:
        self._dsn = dsn
        self._lease = lease
        self._conn: db.Connection | None = None
        self._decoding = Decoding(dsn)
        self._levels = Levels()
        self._rests = Rests()

    @property
    def backend_pids(self) -> tuple[int, ...]:
        """The session in which a round may be waiting."""
        conn = self._conn
        return () if conn is None or conn.closed else (conn.info.backend_pid,)

    @property
    def activity(self) -> Activity:
        """The decoder; a round is a single look at everything."""
        return Activity(inner=self._decoding.loops)

    def round(self, settings: Settings) -> bool:
        """One look at everything; true if something moved, and what follows should not wait."""
        fence = None if self._lease is None else self._lease()
        if self._lease is not None and fence is None:  # another service steers capture in this database
            self._decoding.stop()
            return False
        conn = self._connection()
        state = self._decoding.follow(conn, fence)
        steered = supervise(conn, settings, decoder=state, rests=self._rests, fence=fence)
        for each in steered:
            _tell(each)
        record.note_decoded(conn)
        self._alert(conn, settings)
        return any(each.decision.step is not Step.STAY and each.error is None for each in steered)

    def stop(self) -> None:
        """Nothing to do: a round is a single look at everything."""

    def close(self) -> None:
        """Stop the decoder. The slot stays where sources count on it, and the next service goes on from there."""
        self._decoding.stop()
        if self._conn is not None:
            self._conn.close()

    def _connection(self) -> db.Connection:
        if self._conn is None or self._conn.closed:
            self._conn = db.connect(self._dsn, application_name="pgtrickle capture")
        return self._conn

    def _alert(self, conn: db.Connection, settings: Settings) -> None:
        self._levels, told = alerts(self._levels, _measure(conn), settings)
        for alert in told:
            conn.execute("SELECT pg_notify(%s, %s)", (ALERT_CHANNEL, json.dumps(dict(alert))))
            say("alert", logging.WARNING, alert=dict(alert))


def _measure(conn: psycopg.Connection[Any]) -> Measures:
    """What the slot holds back, and how full the buffers are: by the statistics, which cost nothing."""
    current = slot.inspect(conn)
    rows = conn.execute(
        "SELECT CASE WHEN c.oid IS NULL THEN k.source_relid::text ELSE format('%I.%I', n.nspname, c.relname) END,"
        " pg_stat_get_live_tuples(to_regclass(k.buffer_name)) FROM pgtrickle.pgt_change_tracking AS k"
        " LEFT JOIN pg_class AS c ON c.oid = k.source_relid LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace"
    ).fetchall()
    held = current.held_bytes if current.state is not SlotState.ABSENT else None
    return Measures(current.name, held, {str(source): int(count or 0) for source, count in rows})


def _tell(steered: Supervised) -> None:
    """A step taken, or one that could not be taken, stands in the log; staying as it is does not."""
    if steered.error is not None:
        say(
            "capture_step_failed",
            logging.WARNING,
            source=steered.source_oid,
            step=str(steered.decision.step),
            error=steered.error,
        )
    elif steered.decision.step is not Step.STAY:
        decision = steered.decision
        level = logging.WARNING if decision.failed else logging.INFO
        say("capture_step", level, source=steered.source_oid, step=str(decision.step), reason=decision.reason)
