"""An atomic group never shows two versions: a reader looks all the time, whatever is done to a table of the group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from pgtrickle import db, failpoints
from pgtrickle.api import Trickle, connect
from pgtrickle.config import Settings
from pgtrickle.db import statement
from pgtrickle.errors import StateError
from pgtrickle.refresh.refresh_record import OTHER_GROUP
from pgtrickle.scheduler import request_executor
from pgtrickle.scheduler.refresh_loop import RefreshLoop

STEADY = Settings(differential_max_change_ratio=100)
QUERIES = {
    "a": "SELECT id, version FROM seen WHERE n > 0",
    "b": "SELECT min(version) AS least, max(version) AS most FROM base WHERE n > 0",
    "c": "SELECT a.id, a.version, b.least, b.most FROM a CROSS JOIN b",
    "d": "SELECT c.id, c.version, base.version AS direct FROM c JOIN base ON base.id = c.id",
}
"""Two ways from `base` to `c`, and a third to `d`: one version is in all of them, or the reader has seen two."""
VERSIONS = """
SELECT version FROM a UNION SELECT least FROM b UNION SELECT most FROM b
UNION SELECT version FROM c UNION SELECT least FROM c UNION SELECT most FROM c
UNION SELECT version FROM d UNION SELECT direct FROM d
"""


@dataclass
class Reader:
    """Reads all tables in one transaction, again and again; keeps what it saw."""

    dsn: str
    seen: set[frozenset[int]] = field(default_factory=set)
    looks: int = 0
    error: Exception | None = None
    _end: threading.Event = field(default_factory=threading.Event)

    def _look(self) -> None:
        try:
            with db.open_session(self.dsn) as conn:
                conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                while not self._end.is_set():
                    with conn.transaction():
                        found = frozenset(int(str(version)) for (version,) in conn.execute(statement(VERSIONS)))
                    self.seen.add(found)
                    self.looks += 1
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    @contextmanager
    def looking(self) -> Iterator[None]:
        self._end.clear()
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()


@dataclass
class World:
    """A group, rounds of refreshes in this thread, and the reader."""

    dsn: str
    conn: db.Connection
    trickle: Trickle
    rounds: RefreshLoop
    reader: Reader
    version: int = 1

    def run(self, *statements: str) -> None:
        with self.conn.transaction():
            for each in statements:
                self.conn.execute(statement(each))

    def write(self) -> None:
        self.version += 1
        self.run(f"UPDATE base SET version = {self.version}")

    def round(self, settings: Settings = STEADY) -> None:
        """One tick, in which all are due."""
        self.run("UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = data_timestamp - interval '1 hour'")
        self.rounds._attempts.succeeded([each.pgt_id for each in self.trickle.status()])  # no pause
        self.rounds.round(settings)

    def create(self, name: str, mode: str = "AUTO") -> None:
        self.trickle.create_stream_table(name, QUERIES[name], schedule="1s", refresh_mode=mode)

    def actions(self, name: str) -> list[str]:
        """Of what was done since it was filled."""
        found = [each.action for each in self.trickle.history(name) if each.status == "COMPLETED"]
        return [str(action) for action in reversed(found) if action != "NO_DATA"][1:]

    def check(self) -> None:
        """All are as their queries say, and of the last version; no reader has seen two."""
        self.check_tables()
        assert self.reader.error is None
        assert {each for each in self.reader.seen if len(each) != 1} == set()
        assert len(self.reader.seen) > 1, "it has looked before and after"

    def check_tables(self) -> None:
        assert self.conn.execute(statement(VERSIONS)).fetchall() == [(self.version,)]
        for name in QUERIES:
            query = self.trickle.status(name)[0].defining_query
            both = f"(TABLE {name} EXCEPT ALL ({query})) UNION ALL (({query}) EXCEPT ALL TABLE {name})"
            assert self.conn.execute(statement(both)).fetchall() == [], name
        assert "RUNNING" not in {each.status for name in QUERIES for each in self.trickle.history(name)}


@pytest.fixture
def world(database18: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(RefreshLoop, "_session", lambda self: spark)
    with db.open_session(database18) as conn, connect(database18, spark=spark) as trickle:
        made = World(database18, conn, trickle, RefreshLoop(database18), Reader(database18))
        made.run(
            "CREATE TABLE base (id int PRIMARY KEY, n int, version int)",
            "INSERT INTO base SELECT g, g, 1 FROM generate_series(1, 20) g",
            "CREATE VIEW seen AS SELECT id, n, version FROM base",
        )
        for name in QUERIES:
            made.create(name)
        made.round()
        made.write()
        made.round()
        yield made
        made.rounds.close()


DISTURBANCES: dict[str, list[str]] = {
    "type": [
        "CREATE OR REPLACE VIEW seen AS SELECT id, 1 AS n, version FROM base",
        "ALTER TABLE base ALTER COLUMN n TYPE bigint",
        "CREATE OR REPLACE VIEW seen AS SELECT id, n::integer AS n, version FROM base",
    ],
    "rename": [
        "ALTER TABLE base RENAME COLUMN version TO edition",
        "ALTER TABLE base RENAME COLUMN edition TO version",
    ],
    "rename_of_a_table": ["ALTER TABLE base RENAME TO old", "ALTER TABLE old RENAME TO base"],
    "view": ["CREATE OR REPLACE VIEW seen AS SELECT id, n, version FROM base WHERE id > 3"],
    "default": ["ALTER TABLE base ALTER COLUMN n SET NOT NULL"],
    "capture": ["ALTER TABLE base DISABLE TRIGGER ALL"],
    "truncate": ["CREATE TEMPORARY TABLE kept AS TABLE base", "TRUNCATE base", "INSERT INTO base SELECT * FROM kept"],
}


@pytest.mark.parametrize("what", DISTURBANCES)
def test_ddl_before_the_tick(world: World, what: str) -> None:
    with world.reader.looking():
        world.run(*DISTURBANCES[what])
        world.write()
        for _ in range(3):
            world.round()
        world.write()
        world.round()
    world.check()


@pytest.mark.parametrize("what", ["type", "view", "truncate"])
def test_ddl_amid_the_tick(world: World, what: str) -> None:
    with world.reader.looking():
        world.write()
        with amid(lambda: world.run(*DISTURBANCES[what])):
            world.round()
        world.write()
        world.round()
    world.check()


@pytest.mark.parametrize(("name", "full"), [("a", False), ("b", True), ("c", False), ("d", True)])
def test_a_refresh_by_hand_takes_the_group_along(world: World, name: str, full: bool) -> None:
    epoch = "SELECT max(epoch) FROM pgtrickle.diamond_groups()"
    before = int(str(db.scalar(world.conn, epoch)))
    with world.reader.looking():
        world.write()
        result = world.trickle.refresh_stream_table(name, full=full)
        assert not full or (result.action, result.reason) == ("FULL", "full refresh asked for")
    world.check()
    assert db.scalar(world.conn, epoch) == before + 1


def test_auto_chooses_full_by_the_number_of_changes(world: World) -> None:
    with world.reader.looking():
        world.write()
        world.round(Settings())
    world.check()
    assert {world.actions(name)[-1] for name in "acd"} == {"FULL"}


def test_values_of_pairs_that_are_gone(world: World) -> None:
    """The delta of a member divides by zero, the present does not."""
    world.run("CREATE TABLE x (k int, v int)", "CREATE TABLE y (k int, v int)")
    world.run("INSERT INTO x VALUES (1, 5)", "INSERT INTO y VALUES (1, 0)")
    divided = "SELECT s.id, s.version, 9 / (x.v - y.v) > -99 AS fine FROM seen s JOIN x ON x.k = 1 JOIN y ON y.k = 1"
    divided = f"SELECT id, version FROM ({divided}) AS pairs WHERE fine"
    world.trickle.alter_stream_table("a", query=divided)
    world.round()
    with world.reader.looking():
        world.run("UPDATE x SET v = 1", "UPDATE y SET v = 5")
        world.write()
        world.round()
    world.check()
    assert world.actions("a")[-1] == "FULL"


@pytest.mark.parametrize(("name", "mode"), [("a", "FULL"), ("b", "DIFFERENTIAL"), ("d", "FULL"), ("d", "DIFFERENTIAL")])
def test_another_mode_computes_a_member_anew(world: World, name: str, mode: str) -> None:
    with world.reader.looking():
        world.trickle.alter_stream_table(name, refresh_mode=mode)
        world.write()
        world.round()
        world.write()
        world.round()
    world.check()


def test_a_new_member_is_filled_with_the_others(world: World) -> None:
    world.trickle.drop_stream_table("d")
    world.trickle.drop_stream_table("c")
    world.write()  # a and b know nothing of it
    world.create("c")
    world.create("d")
    with world.reader.looking():
        world.write()
        world.round()
    world.check()


@pytest.mark.parametrize("names", [("d",), ("c", "d")], ids=["a_member_comes", "ways_come_to_meet"])
def test_a_group_that_changes_amid_a_tick(
    world: World, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """The service has worked out the groups, and is busy with other units while someone creates tables: those of a
    group that has one more by now, or that were in none, are not refreshed without the new ones."""
    for name in reversed(names):
        world.trickle.drop_stream_table(name)
    world.round()
    world.write()
    work = world.rounds._work

    def busy(*given: Any) -> None:
        for name in names:
            world.create(name)
        world.write()
        work(*given)

    with monkeypatch.context() as patch:
        patch.setattr(world.rounds, "_work", busy)
        world.round()
    assert world.conn.execute(statement(VERSIONS)).fetchall() == [(world.version - 1,)]
    assert world.trickle.history("a", 1)[0].reason == OTHER_GROUP
    with world.reader.looking():
        world.write()
        world.round()
    world.check()


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_view_that_is_replaced_closes_a_diamond(world: World, by_hand: bool) -> None:
    """`e` is by itself until it is refreshed, and found to read `d` by now, and `base`."""
    world.run("CREATE VIEW ends AS SELECT id, version, version AS direct FROM base")
    world.trickle.create_stream_table("e", "SELECT id, version, direct FROM ends", schedule="1s")
    world.run(
        "CREATE OR REPLACE VIEW ends AS SELECT d.id, d.version, b.version AS direct FROM d JOIN base b USING (id)"
    )
    world.write()
    if by_hand:
        assert world.trickle.refresh_stream_table("e").action == "REINITIALIZE"
    else:
        world.round()
        assert world.trickle.history("e", 1)[0].reason == OTHER_GROUP
        world.round()
    assert world.conn.execute("SELECT DISTINCT version, direct FROM e").fetchall() == [(world.version, world.version)]
    assert world.conn.execute(statement(VERSIONS)).fetchall() == [(world.version,)]


def test_a_new_member_whose_group_is_suspended_is_not_created(world: World) -> None:
    world.trickle.drop_stream_table("d")
    world.trickle.alter_stream_table("b", status="SUSPENDED")
    with pytest.raises(StateError, match="b: the stream table is suspended") as refused:
        world.create("d")
    assert refused.value.code == "PT347"
    assert "d" not in {each.pgt_name for each in world.trickle.status()}
    world.run(f"SELECT pgtrickle.create_stream_table('d', $$ {QUERIES['d']} $$, diamond_consistency => 'none')")
    assert request_executor.carry_out(world.trickle.connection, world.trickle) == 1
    assert db.scalar(world.conn, "SELECT state FROM pgtrickle.pgt_requests") == "DONE"


def test_another_query_of_the_same_columns(world: World) -> None:
    with world.reader.looking():
        world.write()
        world.trickle.alter_stream_table("a", query="SELECT id, version FROM base WHERE n > 5")
        world.write()
        world.round()
    world.check()


@pytest.mark.parametrize("name", ["a", "c"])
def test_another_query_of_other_columns(world: World, name: str) -> None:
    """The table is made anew, and empty until its group is refreshed; no other version is to be seen."""
    query = {
        "a": "SELECT n * 2 AS twice, version, id FROM base WHERE n > 5",
        "c": "SELECT b.most, a.version, b.least, a.id, 1 AS one FROM a CROSS JOIN b",
    }
    with world.reader.looking():
        world.write()
        world.trickle.alter_stream_table(name, query=query[name])
    world.check()
    with world.reader.looking():
        world.write()
        world.round()
    world.check()
    read = "SELECT source_relid FROM pgtrickle.pgt_dependencies"
    assert db.scalar(world.conn, f"SELECT count(*) FROM ({read} EXCEPT SELECT oid FROM pg_class) AS gone") == 0
    buffers = "SELECT substr(relname, 9)::oid FROM pg_class WHERE relname ~ '^changes_[0-9]+$'"
    assert db.scalar(world.conn, f"SELECT count(*) FROM ({buffers} EXCEPT {read}) AS left_behind") == 0
    assert world.actions("d")[-1] == "DIFFERENTIAL"


def test_a_retyped_column_is_followed_by_all_of_them(world: World) -> None:
    """Without the reader: PostgreSQL refuses its prepared statement, whose result has another type."""
    world.write()
    world.run("DROP VIEW seen CASCADE", "ALTER TABLE base ALTER COLUMN version TYPE bigint")
    world.run("CREATE VIEW seen AS SELECT id, n, version FROM base")
    world.trickle.alter_stream_table("a", query=QUERIES["a"])
    world.write()
    world.round()
    world.round()
    world.check_tables()
    kinds = "SELECT DISTINCT atttypid::regtype::text FROM pg_attribute WHERE attname IN ('version', 'direct', 'most')"
    assert world.conn.execute(statement(f"{kinds} AND attrelid = ANY ('{{a,b,c,d}}'::regclass[])")).fetchall() == [
        ("bigint",)
    ]
    world.write()
    world.round()
    world.check_tables()


def test_another_query_where_a_member_is_suspended(world: World) -> None:
    """It is said that the table could not be filled, and the others stay as they were."""
    world.trickle.alter_stream_table("b", status="SUSPENDED")
    world.write()
    with pytest.raises(StateError, match="b: the stream table is suspended") as refused:
        world.trickle.alter_stream_table(
            "c", query="SELECT a.id, a.version, b.least, b.most, 1 AS one FROM a CROSS JOIN b"
        )
    assert refused.value.code == "PT347"
    world.round()
    assert world.conn.execute("SELECT DISTINCT version FROM d").fetchall() == [(world.version - 1,)]
    world.trickle.alter_stream_table("b", status="ACTIVE")
    world.round()
    world.check_tables()


def test_a_suspended_member_holds_all_of_them_by_hand_too(world: World) -> None:
    world.trickle.alter_stream_table("b", status="SUSPENDED")
    world.write()
    result = world.trickle.refresh_stream_table("a")
    assert result.action == "SKIP"
    assert "public.b: the stream table is suspended" in result.reason
    assert [each.status for each in world.trickle.history("c", 1)] == ["SKIPPED"]
    assert world.conn.execute(statement(VERSIONS)).fetchall() == [(world.version - 1,)]


def test_nothing_is_committed_if_it_does_not_come_to_rest(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone alters a member in each try: the group waits, and says why."""
    pgt_id = world.trickle.status("d")[0].pgt_id

    def reach(place: str) -> None:
        if place == "after-commit":
            world.run(f"UPDATE pgtrickle.pgt_stream_tables SET updated_at = clock_timestamp() WHERE pgt_id = {pgt_id}")

    world.write()
    with world.reader.looking(), monkeypatch.context() as patch:
        patch.setattr(failpoints, "reach", reach)
        world.round()
    assert world.conn.execute(statement(VERSIONS)).fetchall() == [(world.version - 1,)]
    (last,) = world.trickle.history("c", 1)
    assert (last.status, last.reason) == ("SKIPPED", "tried 5 times: it was refreshed or altered since the tick began")
    with world.reader.looking():
        world.round()
    world.check()


def test_a_session_that_ends_after_a_member_was_done(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is recorded in a row that the group's transaction has changed: not before that is over."""
    hit = False

    def reach(place: str) -> None:
        nonlocal hit
        if place == "after-commit" and not hit:
            hit = True
            world.run(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'pgtrickle reader'"
            )

    world.write()
    with world.reader.looking(), monkeypatch.context() as patch:
        patch.setattr(failpoints, "reach", reach)
        world.round()
    assert world.conn.execute(statement(VERSIONS)).fetchall() == [(world.version - 1,)]
    assert [each.status for each in world.trickle.history("a", 1)] == ["FAILED"]
    with world.reader.looking():
        world.round()
    world.check()


@contextmanager
def amid(act: Callable[[], None]) -> Iterator[None]:
    """Does it once, after the first member of the group is done and before all are: another session, which waits for
    the locks of that member."""
    thread = threading.Thread(target=act)

    def reach(place: str) -> None:
        if place == "after-commit" and thread.ident is None:
            thread.start()
            time.sleep(0.2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "reach", reach)
        yield
    thread.join()
