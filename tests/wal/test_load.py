"""Moved to and fro while others write."""

from __future__ import annotations

import random
import threading
import time

from pgtrickle import db
from pgtrickle.capture import handover
from pgtrickle.db import Connection

from .world import World, decoding, world


class Writers:
    """Threads that write to `t` without pause: all kinds of changes, savepoints, rollbacks, old transaction ids."""

    def __init__(self, made: World, count: int) -> None:
        self._stop = threading.Event()
        self._failures: list[Exception] = []
        self.committed = 0
        self._threads = [threading.Thread(target=self._run, args=(made.dsn, place)) for place in range(count)]

    def __enter__(self) -> Writers:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join(20)
        assert not any(each.is_alive() for each in self._threads)
        assert self._failures == []

    def _run(self, dsn: str, place: int) -> None:
        chance = random.Random(place)
        try:
            with db.open_session(dsn) as conn:
                while not self._stop.is_set():
                    self._transaction(conn, chance, place)
                    self.committed += 1
        except Exception as error:  # noqa: BLE001 - asserted on above
            self._failures.append(error)

    def _transaction(self, conn: Connection, chance: random.Random, place: int) -> None:
        key = chance.randrange(50) * 10 + place
        with conn.transaction(force_rollback=chance.random() < 0.1):
            if chance.random() < 0.4:
                conn.execute("SELECT pg_current_xact_id()")
                time.sleep(chance.random() * 0.02)
            conn.execute(
                "INSERT INTO t VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET v = t.v + 1", (key, chance.randrange(9))
            )
            if chance.random() < 0.3:
                with conn.transaction(force_rollback=chance.random() < 0.5):
                    conn.execute("DELETE FROM t WHERE id = %s", (key,))
            if chance.random() < 0.3:
                conn.execute("UPDATE t SET v = v + 1 WHERE id %% 10 = %s AND id < 100", (place,))
        time.sleep(chance.random() * 0.01)


def test_moved_to_and_fro_under_load_nothing_is_lost_or_doubled(database: str) -> None:
    """With the real decoder: what counts in the buffer adds up to the table, after every move and at the end."""
    with world(database) as made, decoding(made), Writers(made, 4) as writers:
        deadline = time.monotonic() + 8
        moves = 0
        while time.monotonic() < deadline:
            handover.begin_transition(made.conn, made.oid, "soak")
            time.sleep(0.1)
            handover.complete(made.conn, made.oid, "soak")
            time.sleep(0.3)
            handover.back(made.conn, made.oid, "soak")
            time.sleep(0.1)
            moves += 1
        handover.begin_transition(made.conn, made.oid, "soak")
        handover.complete(made.conn, made.oid, "soak")
        writers.__exit__()
        made.await_decoder()
        sides = made.sides()
        assert sides is not None
        assert len(sides.handovers) == 2 * moves + 1
        assert moves >= 3
        assert made.counted() == made.content()
        assert writers.committed > 50
        assert len(made.buffered("T")) > 10
        assert len(made.buffered("W")) > 10
