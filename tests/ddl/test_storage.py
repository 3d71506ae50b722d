"""A stream table's own table is found by oid while others rename, move or drop it, and by the service's rounds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from pgtrickle import db
from pgtrickle.apply import storage
from pgtrickle.catalog.install import uninstall
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.errors import Error, StateError
from pgtrickle.model import Table
from pgtrickle.postgres.statements.result import Storage
from pgtrickle.scheduler.refresh_loop import RefreshLoop
from tests.ddl.place import Place


@dataclass
class Two:
    """The user's session, ours, and the stream table's table `s.st`."""

    dsn: str = field(repr=False)
    user: Connection
    ours: Connection
    relid: int = 0

    def run(self, *statements: str) -> None:
        for each in statements:
            self.user.execute(db.statement(each))

    def await_waiter(self) -> None:
        """Until our session waits for the user's lock."""
        query = f"SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = {self.ours.info.backend_pid}"
        with db.open_session(self.dsn) as other:
            while not db.scalar(other, query):
                threading.Event().wait(0.01)


@pytest.fixture
def two(database18: str) -> Iterator[Two]:
    with db.open_session(database18) as user, db.connect(database18) as ours:
        found = Two(database18, user, ours)
        found.run("CREATE SCHEMA s", "CREATE TABLE s.st (id int)")
        found.relid = int(str(db.scalar(user, "SELECT 's.st'::regclass::oid")))
        yield found


@pytest.mark.parametrize(
    ("meanwhile", "found"),
    [
        (["ALTER TABLE s.st RENAME TO old", "CREATE TABLE s.st (id int)"], ("s", "old")),
        (["ALTER TABLE s.st RENAME TO old", "CREATE MATERIALIZED VIEW s.st AS SELECT 1"], ("s", "old")),
        (["ALTER TABLE s.st RENAME TO old"], ("s", "old")),
        (["ALTER TABLE s.st SET SCHEMA public", "CREATE TABLE s.st (id int)"], ("public", "st")),
        (["DROP TABLE s.st", "CREATE TABLE s.st (id int)"], None),
    ],
)
def test_the_name_is_taken_while_we_wait_for_the_lock(
    two: Two, meanwhile: list[str], found: tuple[str, str] | None
) -> None:
    answers: list[Table | None] = []

    def wait() -> None:
        with two.ours.transaction():
            answers.append(storage.locked(two.ours, two.relid, "ROW EXCLUSIVE"))

    waiting = threading.Thread(target=wait)
    with two.user.transaction():
        two.run("LOCK TABLE s.st")
        waiting.start()
        two.await_waiter()
        two.run(*meanwhile)
    waiting.join()
    assert answers == [None if found is None else Table(two.relid, *found)]


def test_the_schema_is_renamed_while_we_write(two: Two) -> None:
    place = Storage("s", "st", (), frozenset())

    def write() -> None:
        with two.ours.transaction(), storage.held(two.ours, two.relid, place) as target:
            two.run("ALTER SCHEMA s RENAME TO other", "CREATE SCHEMA s", "CREATE TABLE s.st (id int)")
            db.execute(two.ours, f"INSERT INTO {target.qualified} VALUES (1)")

    with pytest.raises(StateError) as caught:
        write()
    assert caught.value.code == "PT312"
    assert db.scalar(two.user, "SELECT count(*) FROM s.st") == 0


def test_another_table_is_never_dropped(two: Two) -> None:
    two.run("ALTER TABLE s.st RENAME TO old", "CREATE TABLE s.st (id int)")
    with two.ours.transaction():
        storage.drop(two.ours, two.relid, cascade=False)
        storage.drop(two.ours, two.relid, cascade=False)
    assert db.scalar(two.user, "SELECT to_regclass('s.old') IS NULL AND to_regclass('s.st') IS NOT NULL")


@pytest.mark.parametrize("events", [True, False])
def test_a_round_of_the_service_removes_what_was_dropped(made18: Place, events: bool) -> None:
    made18.create("other", "SELECT v FROM t")
    made18.create("over", "SELECT v FROM st")
    made18.run("ALTER TABLE other RENAME TO another")
    if not events:
        made18.run("DROP EVENT TRIGGER pgtrickle_ddl", "DROP EVENT TRIGGER pgtrickle_drop")
    made18.run("UPDATE pgtrickle.pgt_stream_tables SET schedule = '1s', data_timestamp = now() - interval '1 h'")
    made18.run("DROP TABLE st")
    assert made18.value("SELECT status FROM pgtrickle.pgt_status() WHERE name = 'public.st'") == "ERROR"
    rounds = RefreshLoop(made18.dsn)
    try:
        rounds.round(Settings())
    finally:
        rounds.close()
    rows = made18.connection.execute("SELECT pgt_name, status, last_error FROM pgtrickle.pgt_stream_tables ORDER BY 1")
    found = {name: (status, error) for name, status, error in rows}
    assert found["another"] == ("ACTIVE", None)
    assert found.keys() == {"another", "over"}
    assert found["over"][0] == "ERROR"
    assert '"st"' in str(found["over"][1]) or "public.st" in str(found["over"][1])
    made18.trickle.drop_stream_table("over")
    assert made18.value("SELECT count(*) FROM pgtrickle.pgt_change_tracking") == 1


def test_a_role_that_may_only_read_sees_what_was_dropped(made18: Place) -> None:
    made18.run("DROP TABLE st")
    row = made18.connection.execute("SELECT status, last_error, owner FROM pgtrickle.stream_tables_info").fetchone()
    assert row == ("ERROR", "PT311: its table was dropped", None)


def test_a_restored_catalog_takes_no_table_for_its_own(made18: Place) -> None:
    """Restored from a dump, the catalog has oids of another database: here, of tables that are the user's."""
    made18.run("UPDATE pgtrickle.pgt_origin SET catalog_relid = 1", "CREATE TABLE mine AS SELECT 1 AS id, 2 AS v")
    made18.run("UPDATE pgtrickle.pgt_stream_tables SET pgt_relid = 'mine'::regclass")
    (stream,) = made18.trickle.status()
    assert (stream.status, stream.owner) == ("ERROR", None)
    assert "restored from a dump" in str(stream.last_error)
    for name in ("st", "mine"):
        with pytest.raises(Error, match="PT460"):
            made18.trickle.drop_stream_table(name)
    assert not made18.trickle.verify()[0].equal
    assert [str(each) for each in made18.trickle.status()] == ["public.st"]
    uninstall(made18.connection, drop_stream_tables=True)
    assert made18.value("SELECT v FROM mine") == 2
    assert made18.value("SELECT to_regclass('st') IS NOT NULL")
