"""A database with one captured source and one consumer of it, the decoder if asked for, and the sum of what counts."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pgtrickle import db
from pgtrickle.capture import change_window, handover, slot, triggers
from pgtrickle.capture.decoder import Decoder
from pgtrickle.catalog import writer
from pgtrickle.catalog.install import install
from pgtrickle.catalog.writer import Definition
from pgtrickle.db import Connection
from pgtrickle.model import Table

Bag = Counter[tuple[str | None, ...]]


@dataclass
class World:
    """`conn` is in no transaction between the calls; `frontier` is where the consumer's window begins."""

    dsn: str
    conn: Connection
    source: Table
    columns: list[str]
    pgt_id: int = 0
    frontier: str = ""

    @property
    def oid(self) -> int:
        return self.source.oid

    def one(self, query: str) -> object:
        return db.scalar(self.conn, query)

    def mode(self) -> str:
        return str(self.one(f"SELECT cdc_mode FROM pgtrickle.pgt_change_tracking WHERE source_relid = {self.oid}"))

    def history(self) -> list[tuple[str, str, str]]:
        return [
            (str(old), str(new), str(reason))
            for old, new, reason in self.conn.execute(
                "SELECT old_mode, new_mode, reason FROM pgtrickle.pgt_cdc_history WHERE source_relid = %s ORDER BY id",
                (self.oid,),
            )
        ]

    def sides(self) -> change_window.Sides | None:
        return change_window.sides_of(self.conn, [self.oid]).get(self.oid)

    def pending(self) -> change_window.Pending:
        sides = change_window.sides_of(self.conn, [self.oid])
        return change_window.pending(self.conn, [self.oid], self.frontier, sides=sides)[self.oid]

    def buffered(self, side: str) -> list[str]:
        """The actions of one side in the buffer, in order of writing."""
        buffer = f"pgtrickle_changes.changes_{self.oid}"
        query = f"SELECT action::text FROM {buffer} WHERE cdc_source = '{side}' ORDER BY lsn, change_id"
        return [str(action) for (action,) in self.conn.execute(db.statement(query))]

    def counted(self) -> Bag:
        """The weights of all rows that count since the frontier, added up."""
        outputs = [f"o{place}" for place in range(len(self.columns))]
        changes = change_window.changes_sql(
            self.oid, list(zip(self.columns, outputs, strict=True)), self.frontier, self.now(), sides=self.sides()
        )
        return self.bag(f"SELECT {', '.join(f'{each}::text' for each in outputs)}, w FROM ({changes}) AS delta")

    def content(self) -> Bag:
        return self.bag(f"SELECT {', '.join(f'{each}::text' for each in self.columns)}, 1 FROM {self.source.qualified}")

    def bag(self, query: str) -> Bag:
        bag: Bag = Counter()
        for *values, weight in self.conn.execute(db.statement(query)):
            bag[tuple(None if value is None else str(value) for value in values)] += int(str(weight))
        return Counter({row: weight for row, weight in bag.items() if weight})

    def now(self) -> str:
        return str(self.one("SELECT pg_current_snapshot()::text"))

    def await_decoder(self, timeout_s: float = 20.0) -> None:
        """Wait until all that is committed now is in the buffers."""
        target = self.one("SELECT pg_logical_emit_message(true, 'pgtrickle', 'barrier')::text")
        self.await_true(
            f"SELECT coalesce((SELECT lsn FROM pgtrickle_internal.pgt_decoded) >= '{target}', false)", timeout_s
        )

    def await_true(self, query: str, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.one(query):
            assert time.monotonic() < deadline, query
            time.sleep(0.02)


@contextmanager
def world(
    dsn: str,
    *columns: str,
    table: str = "CREATE TABLE t (id int PRIMARY KEY, v int); ALTER TABLE t REPLICA IDENTITY FULL",
    mode: str = "statement",
) -> Iterator[World]:
    """The source is `t`, its consumer `st`, as a stream table that reads those columns."""
    with db.open_session(dsn) as conn:
        install(conn)
        conn.execute("SET synchronous_commit = on")  # off on the server: what is not flushed cannot be decoded
        db.execute(conn, table)
        conn.execute("CREATE TABLE st (id int)")
        source = table_of(conn, "t")
        made = World(dsn, conn, source, list(columns or ("id", "v")))
        made.pgt_id = consume(conn, "st", source, made.columns, trigger_mode=mode)
        made.frontier = made.now()
        yield made


def consume(conn: Connection, name: str, source: Table, columns: list[str], *, trigger_mode: str = "statement") -> int:
    """Register the table `name` as a stream table that reads `columns` of the source."""
    with conn.transaction():
        definition = Definition("q", "q", "public", "AUTO", "DIFFERENTIAL", None, None, [(source, columns)])
        pgt_id = writer.register(conn, table_of(conn, name), definition, schedule=None, requested_cdc_mode=None)
        triggers.attach(conn, source, columns, trigger_mode=trigger_mode)
    return pgt_id


def table_of(conn: Connection, name: str) -> Table:
    return Table(int(str(db.scalar(conn, f"SELECT '{name}'::regclass::oid::bigint"))), "public", name)


@contextmanager
def decoding(made: World) -> Iterator[None]:
    """The decoder runs; what ends it before we do is raised here."""
    stop = threading.Event()
    failures: list[Exception] = []
    name = slot.ensure(made.conn).name

    def run() -> None:
        try:
            Decoder(made.dsn, name, name).run(stop)
        except Exception as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def to_wal(made: World) -> str:
    handover.begin_transition(made.conn, made.oid, "asked")
    return handover.complete(made.conn, made.oid, "caught up")


def in_slot(made: World) -> list[str]:
    """The kinds of the row changes that the slot has still to give: I, U, D, T."""
    made.conn.execute("SELECT pg_logical_emit_message(true, 'test', 'flushes what others have committed')")
    found = made.conn.execute(
        "SELECT get_byte(data, 0) FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
        " 'proto_version', '1', 'publication_names', %s, 'messages', 'true')",
        (slot.name(made.conn), slot.name(made.conn)),
    )
    return [kind for (byte,) in found if (kind := chr(int(str(byte)))) in "IUDT"]


def drop_slot(made: World) -> None:
    made.conn.execute("SELECT pg_drop_replication_slot(%s)", (slot.name(made.conn),))
