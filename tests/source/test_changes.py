"""Followers: the changes of a stream table from snapshot to snapshot, as the reader of a stream of Spark takes them.

A copy that takes each batch equals the stream table, whatever happens in between; a batch is the same however often and
by however many tasks it is read. Spark itself comes in `test_spark_source.py`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

import pgtrickle
from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.catalog import followers
from pgtrickle.refresh.definition import dropped
from pgtrickle.scheduler import retention
from pgtrickle.spark_source.source import ChangeReader, Options, StreamTableSource, TableReader
from tests.conftest import fresh_database
from tests.service.running import until

Rows = Counter[tuple[object, ...]]
QUERY = "SELECT o.region, o.amount, o.at, o.note FROM orders o WHERE o.amount > 1 OR o.amount IS NULL"


_readers: list[ChangeReader] = []


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    """As Spark does in the end."""
    yield
    while _readers:
        _readers.pop().stop()


@dataclass
class Copy:
    """A copy outside of the database, which follows by batches as Spark does. `tasks`: how many read a batch."""

    dsn: str
    tasks: int = 1
    columns: str = ""
    name: str = "copy"
    offset: dict[str, Any] = field(default_factory=dict)
    rows: Rows = field(default_factory=Counter)
    reader: ChangeReader = field(init=False)

    def __post_init__(self) -> None:
        self.restart()
        self.offset = self.offset or self.reader.initialOffset()

    def restart(self) -> None:
        """As after a crash: all that is left is the offset."""
        options = {"path": "follow", "follower": self.name, "partitions": str(self.tasks), "columns": self.columns}
        self.reader = ChangeReader(self.dsn, Options.of(options))
        _readers.append(self.reader)

    def batch(self, end: dict[str, Any]) -> Rows:
        """Weighted rows, each read once by one of the tasks."""
        found: Rows = Counter()
        for part in self.reader.partitions(self.offset, end):
            for rows in self.reader.read(part):
                for *values, change in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                    found[tuple(map(str, values))] += 1 if change == "insert" else -1
        return found

    def take(self) -> Rows:
        """The next batch, applied and told."""
        end = self.reader.latestOffset(self.offset)
        changes = self.batch(end)
        self.rows = Counter({row: n for row in self.rows | changes | -changes if (n := self.rows[row] + changes[row])})
        assert all(number > 0 for number in self.rows.values()), "a row was deleted that was not there"
        self.reader.commit(end)
        self.offset = end
        return changes


@contextmanager
def followed(dsn: str) -> Iterator[tuple[psycopg.Connection[Any], Trickle]]:
    with psycopg.connect(dsn, autocommit=True) as connection, Trickle(dsn) as trickle:
        trickle._refresher.without_spark = True
        connection.execute(
            "CREATE TABLE orders (id int, region text, amount numeric(10, 2), at timestamptz, note float8)"
        )
        connection.execute(
            "INSERT INTO orders SELECT g, nullif('r' || g % 7, 'r3'), g % 50, '2024-01-01Z'::timestamptz, g / 7.0"
            " FROM generate_series(1, 300) AS g UNION ALL SELECT 0, 'twice', 9, NULL, '-0' FROM generate_series(1, 2)"
        )
        trickle.create_stream_table("follow", QUERY, refresh_mode="DIFFERENTIAL")
        yield connection, trickle


def table(connection: psycopg.Connection[Any]) -> Rows:
    found = connection.execute("SELECT region, amount, at AT TIME ZONE 'UTC', note FROM follow")
    return Counter(
        tuple(str(value) if place != 2 or value is None else f"{value}+00:00" for place, value in enumerate(row))
        for row in found
    )


WINDOWS = (
    """INSERT INTO orders VALUES (900, 'new', 5, now(), 'NaN'), (901, NULL, NULL, NULL, NULL),
       (902, NULL, NULL, NULL, NULL)""",
    "UPDATE orders SET amount = amount + 1 WHERE id % 3 = 0",
    "DELETE FROM orders WHERE id = 0 OR amount IS NULL",
    "UPDATE orders SET note = 0 WHERE note = '-0'; UPDATE orders SET note = '-0' WHERE id % 5 = 0",
    "UPDATE orders SET amount = amount + 1; UPDATE orders SET amount = amount - 1",
    """DELETE FROM orders WHERE id % 2 = 0;
       INSERT INTO orders SELECT g, 'back', 7, '2025-01-01Z'::timestamptz, g FROM generate_series(1, 40) AS g""",
)


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_copy_follows(database18: str, tasks: int) -> None:
    with followed(database18) as (connection, trickle):
        copy = Copy(database18, tasks)
        copy.take()
        assert copy.rows == table(connection)
        for number, window in enumerate(WINDOWS):
            connection.execute(window.encode())
            trickle.refresh_stream_table("follow", full=number % 2 == 1)
            if number == 3:
                copy.restart()
            copy.take()
            assert copy.rows == table(connection), window


def test_nothing_is_told_that_has_not_changed(database18: str) -> None:
    """Neither where a refresh computes all rows again, nor of rows that came and went."""
    with followed(database18) as (connection, trickle):
        copy = Copy(database18)
        copy.take()
        before = copy.offset
        assert trickle.refresh_stream_table("follow", full=True).action == "FULL"
        assert copy.reader.latestOffset(before) == before
        connection.execute("INSERT INTO orders VALUES (1000, 'short', 5, now(), 1)")
        trickle.refresh_stream_table("follow")
        connection.execute("DELETE FROM orders WHERE id = 1000; UPDATE orders SET note = 1 WHERE id = 10")
        trickle.refresh_stream_table("follow", full=True)
        changes = copy.take()
        assert sorted(changes.values()) == [-1, 1]
        assert copy.rows == table(connection)


def test_a_batch_can_be_read_until_it_is_told(database18: str) -> None:
    """The first one, too, which has all rows as of its snapshot. A transaction that is open meanwhile comes last."""
    with followed(database18) as (connection, trickle), psycopg.connect(database18) as other:
        copy = Copy(database18)
        first = copy.reader.latestOffset(copy.offset)
        as_of_first = table(connection)
        other.execute("INSERT INTO follow VALUES ('late', 8, NULL, 8)")  # nobody should; that it is told is what counts
        for window in WINDOWS[:2]:
            connection.execute(window.encode())
            trickle.refresh_stream_table("follow")
        copy.restart()
        assert copy.batch(first) == as_of_first
        copy.reader.commit(first)
        copy.offset, copy.rows = first, as_of_first
        second = copy.reader.latestOffset(first)
        changes = copy.batch(second)
        connection.execute(WINDOWS[2].encode())
        trickle.refresh_stream_table("follow")
        copy.restart()
        assert copy.batch(second) == changes
        other.commit()
        copy.take()
        assert copy.rows == table(connection)
        assert any(row[0] == "late" for row in copy.rows)


def test_only_some_columns(database18: str) -> None:
    with followed(database18) as (connection, trickle):
        copy = Copy(database18, columns="region, amount")
        copy.take()
        connection.execute("UPDATE orders SET note = 77; UPDATE orders SET region = 'moved' WHERE id = 7")
        trickle.refresh_stream_table("follow")
        assert sorted(copy.take().values()) == [-1, 1]
        with pytest.raises(pgtrickle.UsageError, match="follows other columns") as caught:
            Copy(database18, columns="region, note").take()
        assert caught.value.code == "PT554"


def changes_kept(connection: psycopg.Connection[Any]) -> int | None:
    """How many changes the buffer of the stream table holds; None if there is none."""
    oid = connection.execute("SELECT 'follow'::regclass::oid").fetchone()
    assert oid is not None
    try:
        row = connection.execute(f"SELECT count(*) FROM pgtrickle_changes.changes_{oid[0]}".encode()).fetchone()
    except psycopg.errors.UndefinedTable:
        return None
    assert row is not None
    return int(row[0])


def test_changes_are_kept_as_long_as_they_are_needed(database18: str) -> None:
    """Also where a stream table reads the same changes, and is quicker or slower; and not for ever."""
    with followed(database18) as (connection, trickle), db.connect(database18) as own:
        assert changes_kept(connection) is None
        copy = Copy(database18)
        copy.take()
        assert changes_kept(connection) == 0
        trickle.create_stream_table(
            "below", "SELECT region, count(*) FROM follow GROUP BY region", refresh_mode="DIFFERENTIAL"
        )
        connection.execute(WINDOWS[1].encode())
        trickle.refresh_stream_table("follow")
        trickle.refresh_stream_table("below")
        kept = changes_kept(connection)
        assert kept
        copy.take()
        assert copy.rows == table(connection)
        assert changes_kept(connection) == 0
        trickle.drop_stream_table("below")
        assert changes_kept(connection) == 0, "it is still followed"
        trickle.drop_follower("copy")
        dropped.look(own)
        assert changes_kept(connection) is None
        copy.restart()
        with pytest.raises(pgtrickle.StateError) as caught:
            copy.take()
        assert caught.value.code == "PT553"
        assert trickle.followers() == ()


def test_one_that_stays_away_expires(database18: str) -> None:
    with followed(database18) as (connection, trickle), db.connect(database18) as own:
        copy = Copy(database18)
        copy.take()
        connection.execute("UPDATE pgtrickle.pgt_followers SET seen_at = now() - interval '3 days'")
        (warned,) = [check for check in trickle.health() if check.check_name == "followers"]
        assert warned.severity == "WARN"
        assert "the follower copy of public.follow was not seen for 3 days" in warned.detail
        retention.prune(own)
        assert [each.status for each in trickle.followers()] == ["FOLLOWING"]
        connection.execute("UPDATE pgtrickle.pgt_followers SET seen_at = now() - interval '8 days'")
        retention.prune(own)
        dropped.look(own)
        assert changes_kept(connection) is None
        assert [each.status for each in trickle.followers()] == ["EXPIRED"]
        (told,) = [check for check in trickle.health() if check.check_name == "followers"]
        assert "has expired" in told.detail
        for again in (copy.take, copy.restart, copy.take):
            if again == copy.restart:
                copy.restart()
                continue
            with pytest.raises(pgtrickle.StateError, match="stayed away") as caught:
                again()
            assert caught.value.code == "PT553"
        connection.execute("SELECT pgtrickle.drop_follower('copy')")
        anew = Copy(database18)
        anew.take()
        assert anew.rows == table(connection)
        assert next(check for check in trickle.health() if check.check_name == "followers").severity == "OK"


@pytest.mark.parametrize(
    "accident",
    ["TRUNCATE follow", "DROP TRIGGER {0}_insert ON follow", "ALTER TABLE follow DISABLE TRIGGER {0}_update"],
)
def test_changes_that_are_not_known_are_an_error(database18: str, accident: str) -> None:
    with followed(database18) as (connection, _):
        copy = Copy(database18)
        copy.take()
        oid = connection.execute("SELECT 'pgtrickle_' || 'follow'::regclass::oid").fetchone()
        assert oid is not None
        connection.execute("INSERT INTO follow VALUES ('by hand', 8, NULL, 8)")
        connection.execute(accident.format(oid[0]).encode())
        for _ in range(2):
            with pytest.raises(pgtrickle.StateError, match="are not known") as caught:
                copy.take()
            assert caught.value.code == "PT555"
            copy.restart()


@pytest.mark.parametrize(
    ("first", "accident"),
    [
        (True, "TRUNCATE follow"),
        (False, "TRUNCATE follow"),
        (True, "ALTER TABLE follow DISABLE TRIGGER {0}_update"),
        (True, "DROP TABLE pgtrickle_changes.changes_{1}"),
    ],
)
def test_what_happens_before_a_planned_batch_is_read(database18: str, first: bool, accident: str) -> None:
    """Tasks may begin long after their batch was planned."""
    with followed(database18) as (connection, trickle):
        copy = Copy(database18)
        if not first:
            copy.take()
            connection.execute(WINDOWS[1].encode())
            trickle.refresh_stream_table("follow")
        (part,) = copy.reader.partitions(copy.offset, copy.reader.latestOffset(copy.offset))
        row = connection.execute("SELECT 'pgtrickle_' || oid, oid FROM pg_class WHERE relname = 'follow'").fetchone()
        assert row is not None
        connection.execute(accident.format(*row).encode())
        with pytest.raises(pgtrickle.StateError, match="are not known") as caught:
            list(copy.reader.read(part))
        assert caught.value.code == "PT555"


ALTERED = """ALTER TABLE {0} DROP COLUMN new_region, ADD COLUMN new_region text;
INSERT INTO {0} (xid, action) VALUES (pg_current_xact_id(), 'T')"""
"""What DDL of the stream table comes to in its buffer."""


@pytest.mark.parametrize("accident", ["TRUNCATE follow", ALTERED], ids=["truncate", "alter"])
def test_what_a_task_waits_for_is_seen(database18: str, accident: str) -> None:
    """It takes values away from snapshots that do not see it."""
    with followed(database18) as (connection, _), psycopg.connect(database18) as other:
        copy = Copy(database18)
        (part,) = copy.reader.partitions(copy.offset, copy.reader.latestOffset(copy.offset))
        row = connection.execute("SELECT 'pgtrickle_changes.changes_' || 'follow'::regclass::oid").fetchone()
        assert row is not None
        other.execute(accident.format(*row).encode())
        answers: list[object] = []

        def read() -> None:
            try:
                answers.append(list(copy.reader.read(part)))
            except pgtrickle.StateError as error:
                answers.append(error.code)

        reading = threading.Thread(target=read)
        reading.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation IS NOT NULL"
        until(lambda: connection.execute(waiting).fetchone() == (1,), "the task waits")
        other.commit()
        reading.join(60)
        assert answers == ["PT555"]


def test_rows_that_moved_between_tasks(database18: str) -> None:
    """Another file of the same rows, with other pages."""
    with followed(database18) as (connection, trickle):
        connection.execute("INSERT INTO orders SELECT g, 'more', 5, NULL, g FROM generate_series(1, 3000) AS g")
        trickle.refresh_stream_table("follow")
        connection.execute("DELETE FROM follow WHERE amount > 20")
        reader = TableReader(database18, Options.of({"path": "follow", "partitions": "2"}))
        first, second = reader.partitions()
        read = [sum(batch.num_rows for batch in reader.read(part)) for part in (first, second)]
        assert min(read) > 0
        assert connection.execute("SELECT count(*) FROM follow").fetchone() == (sum(read),)
        connection.execute("VACUUM FULL follow")
        with pytest.raises(pgtrickle.StateError) as caught:
            list(reader.read(second))
        assert caught.value.code == "PT568"


LOOKS = {"numeric": ("1.0", "1.00"), "interval": ("1 mon", "30 days"), "float8": ("0.0", "-0.0")}
FOLDED = dict.fromkeys(("text COLLATE folded", "varchar(5) COLLATE folded", "text[] COLLATE folded"), ("a", "A"))


def follows_looks(dsn: str, types: dict[str, tuple[str, str]]) -> None:
    """Equal values that are not the same are told, from one to the other and back, and as of the first batch."""
    columns = [f"c{place}" for place in range(len(types))]
    values = ["{" + old + "}" if "[]" in type_ else old for type_, (old, _) in types.items()]
    others = ["{" + new + "}" if "[]" in type_ else new for type_, (_, new) in types.items()]
    with psycopg.connect(dsn, autocommit=True) as connection, Trickle(dsn) as trickle:
        trickle._refresher.without_spark = True
        definition = ", ".join(f"{name} {type_}" for name, type_ in zip(columns, types, strict=True))
        connection.execute(f"CREATE TABLE things (id int, {definition})".encode())
        marks = ", ".join(["%s"] * len(types))
        connection.execute(f"INSERT INTO things VALUES (1, {marks}), (2, {marks})".encode(), values * 2)
        trickle.create_stream_table("follow", "SELECT * FROM things", refresh_mode="DIFFERENTIAL")
        copy, first = Copy(dsn), Rows({("1", *values): 1, ("2", *values): 1})
        begun = copy.reader.latestOffset(copy.offset)
        for place, (name, (old, new)) in enumerate(zip(columns, zip(values, others, strict=True), strict=True)):
            for value, before in ((new, old), (old, new), (new, old)):
                connection.execute(f"UPDATE things SET {name} = %s WHERE id = 1".encode(), [value])
                trickle.refresh_stream_table("follow")
                if not copy.rows:
                    assert copy.batch(begun) == first
                    copy.take()
                    continue
                told = copy.take()
                seen = {row[place + 1]: weight for row, weight in told.items()}
                assert seen == {value: 1, before: -1}, name
        assert copy.rows == Rows({("1", *others): 1, ("2", *values): 1})


def test_values_that_are_equal_and_not_the_same(database18: str) -> None:
    follows_looks(database18, LOOKS)


@pytest.mark.long
def test_values_that_a_collation_does_not_tell_apart(server15: embedded.Server) -> None:
    """The servers that wheels bring have no ICU."""
    with fresh_database(server15) as dsn:
        with db.open_session(dsn) as connection:
            connection.execute(
                "CREATE COLLATION public.folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            )
        follows_looks(dsn, FOLDED)


@contextmanager
def followed_as(dsn: str, columns: str) -> Iterator[tuple[psycopg.Connection[Any], Trickle]]:
    """With columns of such names."""
    with psycopg.connect(dsn, autocommit=True) as connection, Trickle(dsn) as trickle:
        trickle._refresher.without_spark = True
        connection.execute("CREATE TABLE numbers (a int, b int, c int)")
        connection.execute("INSERT INTO numbers VALUES (1, 2, 3), (1, 2, 3), (4, 5, 6)")
        trickle.create_stream_table("follow", f"SELECT {columns} FROM numbers", refresh_mode="DIFFERENTIAL")
        yield connection, trickle


@pytest.mark.parametrize("columns", ["a AS w, b AS c2, c AS c0", "a AS net, b AS changed, c AS xid"])
def test_columns_may_have_any_name(database18: str, columns: str) -> None:
    with followed_as(database18, columns) as (connection, trickle):
        copy = Copy(database18, tasks=2)
        copy.take()
        assert copy.rows == Rows({("1", "2", "3"): 2, ("4", "5", "6"): 1})
        connection.execute("UPDATE numbers SET a = 7 WHERE a = 4; DELETE FROM numbers WHERE a = 1")
        trickle.refresh_stream_table("follow")
        copy.take()
        assert copy.rows == Rows({("7", "5", "6"): 1})


def test_a_column_that_is_called_as_the_follower_s_own(database18: str) -> None:
    with followed_as(database18, 'a, b AS "_Change_Type"') as (connection, _):
        options = {"path": "follow", "follower": "copy"}
        source = type("Source", (StreamTableSource,), {"dsn": database18})
        for refused in (Copy(database18).take, source(options).schema):
            with pytest.raises(pgtrickle.UsageError, match="_Change_Type") as caught:
                refused()
            assert (caught.value.code, bool(caught.value.hint)) == ("PT569", True)
        assert connection.execute("SELECT FROM pgtrickle.pgt_followers").rowcount == 0
        assert source({"path": "follow"}).schema() == "`a` int, `_Change_Type` int"
        assert source({**options, "columns": "a"}).schema() == "`a` int, _change_type string"
        Copy(database18, columns="a").take()


def test_two_streams_under_one_name(database18: str) -> None:
    """The second begins from the start and goes on; the first finds out."""
    with followed(database18) as (connection, trickle):
        first = Copy(database18)
        first.take()
        second = Copy(database18)
        connection.execute(WINDOWS[1].encode())
        trickle.refresh_stream_table("follow")
        second.take()
        assert second.rows == table(connection)
        with pytest.raises(pgtrickle.StateError) as caught:
            first.take()
        assert caught.value.code == "PT559"


def test_a_stream_table_that_is_followed_is_not_dropped_by_accident(database18: str) -> None:
    with followed(database18) as (connection, trickle), db.connect(database18) as own:
        Copy(database18).take()
        with pytest.raises(pgtrickle.StateError, match="the follower copy reads") as caught:
            trickle.drop_stream_table("follow")
        assert caught.value.code == "PT557"
        trickle.drop_stream_table("follow", cascade=True)
        assert followers.list_all(own) == ()
        with pytest.raises(pgtrickle.StateError):
            Copy(database18).take()
        assert connection.execute("SELECT FROM pgtrickle.pgt_change_tracking").rowcount == 0


def begin(dsn: str, options: dict[str, str]) -> None:
    reader = ChangeReader(dsn, Options.of(options))
    _readers.append(reader)
    reader.latestOffset()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"follower": "f", "nonsense": "1"}, "PT562"),
        ({"path": ""}, "PT563"),
        ({"partitions": "0"}, "PT564"),
        ({"columns": "region, nothing", "follower": "f"}, "PT556"),
        ({"follower": "f", "expires": "soon"}, "PT558"),
        ({"follower": "f", "expires": "-1 day"}, "PT558"),
    ],
)
def test_options_that_make_no_sense(database18: str, options: dict[str, str], code: str) -> None:
    with followed(database18) as (connection, _):
        with pytest.raises(pgtrickle.UsageError) as caught:
            begin(database18, {"path": "follow", **options})
        assert (caught.value.code, bool(caught.value.hint)) == (code, True)
        assert connection.execute("SELECT FROM pgtrickle.pgt_followers").rowcount == 0
