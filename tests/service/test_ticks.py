"""Ticks of a real `pgtrickle run`: chains, fans, diamonds, failures, requests. All tables are made by SQL alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import psycopg
import pytest
from tests.conftest import fresh_database
from tests.refresh.oracle import differing
from tests.service.serving import Ear, Served, in_schema, served

from pgtrickle import embedded


@pytest.fixture(scope="module")
def serving(server18: embedded.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("ticks")
    with fresh_database(server18) as dsn, served(dsn, directory, allow_circular="on") as found:
        yield found


@pytest.fixture
def here(serving: Served, request: pytest.FixtureRequest) -> Iterator[Served]:
    with in_schema(serving, request.node.name.split("[")[0].removeprefix("test_")[:50]) as found:
        yield found


def test_requests_are_carried_out(here: Served) -> None:
    here.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    here.create("s", "SELECT id, v FROM t WHERE v > 1", schedule="1h")
    assert here.rows("SELECT id, v FROM s") == [(2, 2)]
    here.run("INSERT INTO t VALUES (3, 3)")
    here.ask("refresh_stream_table('s')")
    assert here.rows("SELECT id, v FROM s ORDER BY id") == [(2, 2), (3, 3)]
    here.ask("alter_stream_table('s', query => 'SELECT id FROM t', schedule => '1s')")
    assert here.rows("SELECT id FROM s ORDER BY id") == [(1,), (2,), (3,)]
    here.queries["s"] = "SELECT id FROM t"
    here.run("DELETE FROM t WHERE id = 1")
    here.await_equal("s")
    here.create("r", "SELECT id FROM s")
    with pytest.raises(psycopg.Error, match="reads") as refused:
        here.ask("drop_stream_table('s')")
    assert refused.value.sqlstate == "PT303"
    with pytest.raises(psycopg.Error, match=r"s → .*r → .*s cannot .* aggregate count is not monotone") as circle:
        here.ask("alter_stream_table('s', query => 'SELECT count(*)::int AS id FROM r')")
    assert circle.value.sqlstate == "PT372"
    here.await_equal("s", "r")
    here.ask("drop_stream_table('s', cascade => true)")
    assert here.rows("SELECT 1 FROM pgtrickle.pgt_stream_tables") == []


def test_chain_of_ten(here: Served) -> None:
    """All but the last have no schedule of their own, and come with it, to the same snapshot."""
    here.run("CREATE TABLE c0 (id int PRIMARY KEY, v int)", "INSERT INTO c0 SELECT g, g FROM generate_series(1, 50) g")
    names = [f"c{place}" for place in range(11)]
    for above, name in pairwise(names[:-1]):
        here.create(name, f"SELECT id, v + 1 AS v FROM {above}", schedule=None)
    here.create("c10", "SELECT id, v + 1 AS v FROM c9")
    here.run("UPDATE c0 SET v = v * 2 WHERE id < 5", "DELETE FROM c0 WHERE id = 9", "INSERT INTO c0 VALUES (99, 0)")
    here.until(
        lambda: not here.rows("SELECT id, v + 10 FROM c0 EXCEPT ALL SELECT id, v FROM c10"), "the end of the chain"
    )
    here.await_equal(*names[1:])
    here.await_tick()
    assert here.one("SELECT count(DISTINCT data_timestamp) FROM pgtrickle.pgt_stream_tables") == 1
    assert {action for name in names[1:] for action in here.actions(name)[1:]} == {"DIFFERENTIAL"}
    assert here.one("SELECT count(*) FROM pgtrickle.pgt_scheduler_jobs WHERE state = 'DONE'")


def test_a_circle_is_refreshed_as_one(here: Served) -> None:
    """Even and odd distances from 1, over a table that the same tick refreshes first, and one that reads them both."""
    here.run("CREATE TABLE edge (src int, dst int)", "INSERT INTO edge SELECT g, g + 1 FROM generate_series(1, 9) g")
    here.create("hops", "SELECT src AS at, dst FROM edge WHERE src > 0", schedule=None)
    here.create("odd", "SELECT dst FROM hops WHERE at = 1 GROUP BY dst", schedule=None)
    here.create("even", "SELECT h.dst FROM odd o JOIN hops h ON h.at = o.dst GROUP BY h.dst")
    here.queries["odd"] = (
        "SELECT dst FROM (SELECT dst FROM hops WHERE at = 1 UNION ALL"
        " SELECT h.dst FROM even e JOIN hops h ON h.at = e.dst) AS u GROUP BY dst"
    )
    here.ask("alter_stream_table('odd', query => %s)", here.queries["odd"])
    here.create("meeting", "SELECT o.dst FROM odd o JOIN even e ON e.dst = o.dst")
    walk = (
        "WITH RECURSIVE r AS (SELECT dst, 1 AS p FROM edge WHERE src = 1"
        " UNION SELECT e.dst, 1 - p FROM r JOIN edge e ON e.src = r.dst) SELECT dst FROM r WHERE p = {}"
    )
    for change in ("INSERT INTO edge VALUES (5, 2)", "DELETE FROM edge WHERE src = 5", "UPDATE edge SET dst = 4"):
        here.run(change)
        here.until(
            lambda: (
                not differing(here.conn, "odd", walk.format(1)) and not differing(here.conn, "even", walk.format(0))
            ),
            change,
        )
        here.await_equal("meeting")
    here.await_tick()
    assert here.one("SELECT count(DISTINCT (data_timestamp, frontier::text)) FROM pgtrickle.pgt_stream_tables") == 1
    assert here.actions("odd")[-1] == here.actions("even")[-1]
    assert here.one("SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE reason ~ 'settled after . rounds'")
    assert not here.rows("SELECT 1 FROM pgtrickle.pgt_refresh_history WHERE status = 'FAILED'")


def test_fan_out_and_no_work_below_a_no_op(here: Served) -> None:
    here.run(
        "CREATE TABLE t (id int PRIMARY KEY, g int, v int)",
        "INSERT INTO t SELECT g, g % 3, 1 FROM generate_series(1, 9) g",
    )
    here.create("top", "SELECT id, g FROM t WHERE v > 0")
    for place in range(4):
        here.create(f"fan{place}", f"SELECT g, count(*) AS n FROM top WHERE id > {place} GROUP BY g")
    fans = [f"fan{place}" for place in range(4)]
    here.run("INSERT INTO t VALUES (100, 1, 1)")
    here.await_equal("top", *fans)
    before = {name: here.actions(name) for name in fans}
    worked = len(here.actions("top"))
    here.run("UPDATE t SET v = 2")
    here.until(lambda: len(here.actions("top")) > worked, "top looks at the update")
    here.await_tick()
    assert here.rows(
        "SELECT rows_inserted, rows_deleted FROM pgtrickle.get_refresh_history('top', 20)"
        " WHERE action = 'DIFFERENTIAL' ORDER BY refresh_id DESC LIMIT 1"
    ) == [(0, 0)]
    assert {name: here.actions(name) for name in fans} == before


def test_a_full_table_sends_only_differences_down(here: Served) -> None:
    here.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT g, g FROM generate_series(1, 500) g")
    here.create("ranked", "SELECT id, rank() OVER (ORDER BY v DESC) AS place FROM t", schedule="1s", mode="FULL")
    here.create("last", "SELECT id, place FROM ranked WHERE place > 100")
    here.run("UPDATE t SET v = 0 WHERE id = 2")
    here.await_equal("ranked", "last")
    changes = here.one(
        "SELECT max(changes_read) FROM pgtrickle.get_refresh_history('last', 50) WHERE action = 'DIFFERENTIAL'"
    )
    assert changes == 4, "two rows have another place now: each was taken out and put in"


def test_a_table_in_the_middle_is_suspended(here: Served) -> None:
    """It stays as it is; what reads it goes on with that, and catches up when it comes back."""
    here.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    here.create("first", "SELECT id FROM t")
    here.create("middle", "SELECT id FROM first")
    here.create("below", "SELECT m.id, f.id AS other FROM middle m JOIN first f ON true")
    here.ask("alter_stream_table('below', diamond_consistency => 'none')")
    here.ask("alter_stream_table('middle', status => 'SUSPENDED')")
    here.run("INSERT INTO t VALUES (2)")
    here.await_equal("first", "below")
    assert here.rows("SELECT id FROM middle") == [(1,)]
    assert here.rows("SELECT id, other FROM below ORDER BY other") == [(1, 1), (1, 2)]
    here.ask("alter_stream_table('middle', status => 'ACTIVE')")
    here.await_equal("first", "middle", "below")


def test_a_diamond_with_a_failure_on_one_side(here: Served) -> None:
    """Nothing half-new is seen, others are unharmed, and it recovers when the data is corrected."""
    here.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT g, g FROM generate_series(1, 20) g")
    here.create("plain", "SELECT id, v FROM t")
    here.create("inverse", "SELECT id, 100 / v AS x FROM t")
    here.create("joined", "SELECT p.id, p.v, i.x FROM plain p JOIN inverse i ON i.id = p.id")
    here.create("sibling", "SELECT id FROM t")
    here.await_tick()
    assert here.rows("SELECT member_name, is_convergence FROM pgtrickle.diamond_groups()") == [
        ("inverse", False),
        ("plain", False),
        ("joined", True),
    ]
    with Ear(here.dsn) as ear:
        here.run("INSERT INTO t VALUES (21, 0)")
        here.await_equal("sibling")
        here.until(lambda: here.state("inverse")[0] == "SUSPENDED", "the failing side")
        assert len(ear.heard("refresh_failed")) == 3
        (told,) = ear.heard("auto_suspended")
        assert "division by zero" in str(told["error"])
        here.run("INSERT INTO t VALUES (22, 22)")
        here.await_equal("sibling")
    for name in ("plain", "inverse", "joined"):
        assert here.one(f"SELECT max(id) FROM {name}") == 20, name
    assert here.state("plain")[0] == "ACTIVE"
    epoch = here.one("SELECT max(epoch) FROM pgtrickle.diamond_groups()")
    here.run("UPDATE t SET v = 7 WHERE v = 0")
    here.ask("alter_stream_table('inverse', status => 'ACTIVE')")
    here.await_equal("plain", "inverse", "joined")
    assert here.state("inverse") == ("ACTIVE", 0, None)
    assert here.one("SELECT max(epoch) FROM pgtrickle.diamond_groups()") == int(str(epoch)) + 1


def test_a_member_of_a_group_is_computed_anew(here: Served) -> None:
    """Together with the others, at a snapshot that knows its new definition."""
    here.run(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 20) g",
        "CREATE FUNCTION sign(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1'",
    )
    here.create("low", "SELECT id, v FROM t WHERE id < 15")
    here.create("rest", "SELECT id, v FROM t WHERE id > 5")
    here.create(
        "common",
        "SELECT s.id, a_member_of_a_group_is_computed_anew.sign(r.v) AS v FROM low s JOIN rest r ON r.id = s.id",
    )
    here.await_tick()
    here.run("CREATE OR REPLACE FUNCTION sign(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT -1'")
    here.run("INSERT INTO t VALUES (-1, 1), (99, 9)", "DELETE FROM t WHERE id = 7")
    here.await_equal("low", "rest", "common")
    assert here.actions("common")[1] == "REINITIALIZE"
    here.run("DELETE FROM t WHERE id = 8")
    here.await_equal("low", "rest", "common")
    assert here.actions("common")[-1] == "DIFFERENTIAL"


def test_what_passes_is_not_counted(here: Served) -> None:
    """A source that someone has locked: the refresh gives up after a while, tries again, and counts nothing."""
    here.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    here.create("s", "SELECT id FROM t")
    here.create("other", "SELECT id FROM u")
    here.ask("alter_stream_table('s', status => 'SUSPENDED')")
    here.run("INSERT INTO t VALUES (1)")
    with psycopg.connect(here.dsn) as locker:
        locker.execute("LOCK TABLE what_passes_is_not_counted.t IN ACCESS EXCLUSIVE MODE")
        here.ask("alter_stream_table('s', status => 'ACTIVE')")
        here.run("INSERT INTO u VALUES (1)")
        here.await_equal("other")
        here.until(lambda: here.state("s")[2] is not None, "the refresh that finds the lock")
        assert here.state("s")[:2] == ("ACTIVE", 0)
    here.await_equal("s")
    here.until(lambda: here.state("s") == ("ACTIVE", 0, None), "all is well")


def test_one_user_s_input_stops_nobody_else(here: Served) -> None:
    here.run("CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE TABLE u (id int PRIMARY KEY)")
    here.create("good", "SELECT id, a FROM t")
    here.create("bad", "SELECT id FROM u")
    here.run("UPDATE pgtrickle.pgt_stream_tables SET schedule = '99999999999999999999d' WHERE pgt_name = 'bad'")
    here.run("INSERT INTO t VALUES (1, 1)", "INSERT INTO u VALUES (1)")
    here.await_equal("good")
    here.until(lambda: here.state("bad")[0] == "ERROR", "the table without sense is in ERROR")
    assert "PT017" in str(here.state("bad")[2])
    assert here.one("SELECT count(*) FROM pgtrickle.health_check() WHERE detail LIKE '%%PT017%%'") == 1
    with pytest.raises(psycopg.Error) as refused:
        here.create("never", "SELECT id FROM t", schedule="5000000000d")
    assert refused.value.sqlstate == "PT016"
    here.create("deep", f"SELECT id, {'+'.join(['a'] * 4000)} AS x FROM t", mode="AUTO")
    assert here.rows("SELECT * FROM deep") == [(1, 4000)]
    here.ask("alter_stream_table('bad', schedule => '1s')")
    here.await_equal("good", "bad", "deep")
    assert here.state("bad") == ("ACTIVE", 0, None)
    rounds = tuple(f'"{part}_failed"' for part in ("refreshes", "requests", "capture", "audits"))
    assert [line for line in here.service.log.splitlines() if any(each in line for each in rounds)] == []
