"""Which way a refresh takes: bounds, what the last ones took, tries now and then. Each way gives the same rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from psycopg.types.json import Jsonb

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.errors import StateError
from pgtrickle.physical.table_facts import SMALL_CHANGES
from pgtrickle.refresh.choice import Bounds, Choice, choose
from pgtrickle.refresh.learned import Learned
from pgtrickle.refresh.ways import Size, Way, expected_ms
from tests.refresh.oracle import differing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIXED = Bounds(learn_costs=False, postgres_rows=1000)
FREE = Bounds(postgres_rows=10_000_000)
SMALL = Size(changes=10, rows=1000, stages=2)


def way(size: Size, bounds: Bounds, *, whole: bool = False, learned: Learned | None = None) -> Way:
    return choose("AUTO", size, learned or Learned(), bounds, whole=whole).way


def after(size: Size, took: Mapping[Way, float]) -> Learned:
    learned = Learned()
    for each, ms in took.items():
        learned = learned.after(each, size, ms, tried=True)
    return learned


@pytest.mark.parametrize("mode", ["DIFFERENTIAL", "FULL", "IMMEDIATE"])
def test_modes_asked_for_by_name_are_what_they_say(mode: str) -> None:
    dear = after(SMALL, {Way.CHANGES_ON_SPARK: 90_000.0, Way.FULL_BY_POSTGRESQL: 1.0})
    assert choose(mode, SMALL, dear, FREE, whole=False) == Choice(Way.CHANGES_ON_SPARK)
    assert choose(mode, SMALL, dear, FREE, whole=True) == Choice(Way.FULL_ON_SPARK)


def test_without_learning_bounds_decide() -> None:
    few, many = replace(SMALL, rows=1001), replace(SMALL, changes=SMALL_CHANGES + 1)
    assert way(SMALL, FIXED) is Way.CHANGES_BY_POSTGRESQL
    assert way(SMALL, FIXED, whole=True) is Way.FULL_BY_POSTGRESQL
    assert way(few, FIXED) is Way.CHANGES_ON_SPARK
    assert way(few, FIXED, whole=True) is Way.FULL_ON_SPARK
    assert way(many, FIXED) is Way.CHANGES_ON_SPARK
    assert way(many, FIXED, whole=True) is Way.FULL_BY_POSTGRESQL
    assert way(replace(SMALL, rows=0), replace(FIXED, postgres_rows=0)) is Way.CHANGES_ON_SPARK


@pytest.mark.parametrize("bounds", [replace(FREE, postgres_rows=999), replace(FREE, spare_source=True)])
def test_bounds_hold_whatever_was_learned(bounds: Bounds) -> None:
    learned = after(SMALL, {Way.CHANGES_ON_SPARK: 90_000.0, Way.CHANGES_BY_POSTGRESQL: 1.0, Way.FULL_BY_POSTGRESQL: 1})
    assert way(SMALL, bounds, learned=learned) is Way.CHANGES_ON_SPARK
    assert way(SMALL, bounds, learned=learned, whole=True) is Way.FULL_ON_SPARK


def test_the_cheapest_is_taken() -> None:
    learned = after(SMALL, {Way.CHANGES_BY_POSTGRESQL: 100.0, Way.FULL_BY_POSTGRESQL: 20.0})
    choice = choose("AUTO", SMALL, learned, FREE, whole=False)
    assert choice.way is Way.FULL_BY_POSTGRESQL
    assert choice.expected[Way.FULL_BY_POSTGRESQL] == pytest.approx(20.0, rel=0.01)
    assert "evaluated by PostgreSQL alone: about 20 ms expected" in str(choice.reason)
    assert "DIFFERENTIAL by PostgreSQL 100" in str(choice.reason)
    assert way(SMALL, replace(FREE, may_full=False), learned=learned) is Way.CHANGES_BY_POSTGRESQL


@pytest.mark.parametrize(("changes_ms", "full_ms"), [(100.0, 80.0), (20.0, 11.0)])
def test_in_full_only_if_that_gains_enough(changes_ms: float, full_ms: float) -> None:
    learned = after(SMALL, {Way.CHANGES_BY_POSTGRESQL: changes_ms, Way.FULL_BY_POSTGRESQL: full_ms})
    assert way(SMALL, FREE, learned=learned) is Way.CHANGES_BY_POSTGRESQL


def test_in_full_on_spark_only_for_many_changes() -> None:
    bounds, large = replace(FREE, postgres_rows=0), replace(SMALL, changes=1000)
    for size, taken in ((SMALL, Way.CHANGES_ON_SPARK), (large, Way.FULL_ON_SPARK)):
        learned = after(size, {Way.CHANGES_ON_SPARK: 5000.0, Way.FULL_ON_SPARK: 100.0})
        assert way(size, bounds, learned=learned) is taken


def test_one_slow_refresh_does_not_count() -> None:
    learned = Learned()
    for ms in (20.0, 21.0, 5000.0, 19.0, 20.0):
        learned = learned.after(Way.CHANGES_BY_POSTGRESQL, SMALL, ms, tried=False)
    assert learned.expected_ms(Way.CHANGES_BY_POSTGRESQL, SMALL) == pytest.approx(20.0, rel=0.01)
    assert Learned.stored(learned.to_store(), learned.since_try_ms) == learned
    assert learned.known(Way.CHANGES_BY_POSTGRESQL, SMALL) == 5


def test_spark_is_not_started_for_little() -> None:
    learned = after(SMALL, {Way.CHANGES_BY_POSTGRESQL: 2000.0, Way.CHANGES_ON_SPARK: 200.0})
    bounds = replace(FREE, may_full=False)
    assert way(SMALL, bounds, learned=learned) is Way.CHANGES_ON_SPARK
    assert way(SMALL, replace(bounds, spark_is_warm=False), learned=learned) is Way.CHANGES_BY_POSTGRESQL


Truth = Callable[[Way, int], float]


def total_ms(truth: Truth, rounds: int) -> tuple[float, list[Choice]]:
    learned, total, choices, size = Learned(), 0.0, [], replace(SMALL, rows=100_000)
    for round_ in range(rounds):
        choices.append(choice := choose("AUTO", size, learned, FREE, whole=False))
        took = truth(choice.way, round_)
        total += took
        learned = learned.after(choice.way, size, took, tried=choice.tried)
    return total, choices


@pytest.mark.parametrize("seed", range(20))
def test_regret_is_bounded(seed: int) -> None:
    """Whatever the ways take, the sum is near that of the best one; what would take many times as long is not tried
    again and again."""
    dice = random.Random(seed)
    ms = {each: 10 ** dice.uniform(1, 4) for each in (Way.CHANGES_BY_POSTGRESQL, Way.FULL_BY_POSTGRESQL)}
    ms |= {each.sibling: ms[each] * dice.uniform(0.5, 2) + dice.uniform(0, 200) for each in ms}
    total, choices = total_ms(lambda taken, _: ms[taken] * dice.uniform(0.9, 1.1), 2000)
    best = min(ms[each] for each in choices[0].expected)
    assert total < 2000 * max(best * 1.5, best + 15) + 3 * sum(ms.values())
    for choice in choices:
        assert choice.expected[choice.way] <= 3.3 * min(choice.expected.values()) + 15


def test_what_has_changed_is_found() -> None:
    """A way that was dearer is tried now and then, so that AUTO learns that it is cheaper by now."""

    def truth(taken: Way, round_: int) -> float:
        return {Way.CHANGES_BY_POSTGRESQL: 200.0, Way.FULL_BY_POSTGRESQL: 400.0 if round_ < 300 else 50.0}.get(
            taken, 900.0
        )

    _, choices = total_ms(truth, 1500)
    assert [choice.way for choice in choices[:300]].count(Way.FULL_BY_POSTGRESQL) < 30
    assert [choice.way for choice in choices[-300:]].count(Way.FULL_BY_POSTGRESQL) > 270


def test_statistics_tell_orders_of_magnitude() -> None:
    large = Size(changes=100, rows=1e7, stages=2)
    assert expected_ms(Way.CHANGES_BY_POSTGRESQL, large) < expected_ms(Way.CHANGES_ON_SPARK, large) < 1000
    assert expected_ms(Way.FULL_BY_POSTGRESQL, large) > 5000


QUERY = (
    "SELECT t.k, g.s, (SELECT max(v) FROM t) AS m, count(*) FROM t JOIN"
    " (SELECT k, sum(v) AS s FROM t GROUP BY k HAVING sum(v) > 2) AS g USING (k) GROUP BY 1, 2"
)


def fill(conn: db.Connection) -> None:
    conn.execute("CREATE TABLE t (k int, v int)")
    conn.execute("INSERT INTO t SELECT i % 5, i FROM generate_series(1, 50) AS i")


def test_spark_is_not_started_for_small_tables(database18: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGTRICKLE_POSTGRES_ROWS", "1000")

    def session() -> SparkSession:
        raise StateError("Spark was asked for", code="PT340", hint="")

    with Trickle(database18) as trickle, db.open_session(database18) as conn:
        monkeypatch.setattr(trickle._refresher, "session", session)
        fill(conn)
        trickle.create_stream_table("st", QUERY, refresh_mode="AUTO")
        conn.execute("UPDATE t SET v = 900 WHERE v = 7")
        trickle.refresh_stream_table("st")
        conn.execute("DELETE FROM t WHERE k = 1")
        trickle.refresh_stream_table("st", full=True)
        past = trickle.history("st")[::-1]
        assert [each.action for each in past] == ["FULL", "DIFFERENTIAL", "FULL"]
        assert [each.way for each in past] == [f"{each.action} by PostgreSQL" for each in past]
        assert all("evaluated by PostgreSQL alone" in str(each.reason) for each in past)
        assert not differing(conn, "st", QUERY)
        assert "DIFFERENTIAL by PostgreSQL would be taken" in trickle.explain("st")
        conn.execute("INSERT INTO t SELECT i % 5, i FROM generate_series(1, 20000) AS i")
        with pytest.raises(StateError, match="Spark was asked for"):
            trickle.refresh_stream_table("st", full=True)


def test_expected_and_taken_are_on_record(database18: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """AUTO learns in the transaction of the refresh, says what it expected and what it took, and forgets what another
    query took. A way that is known to be cheaper is taken; the table is as its query is."""
    monkeypatch.setenv("PGTRICKLE_POSTGRES_ROWS", "1000")
    monkeypatch.setenv("PGTRICKLE_LEARN_COSTS", "true")
    monkeypatch.setenv("PGTRICKLE_DIFFERENTIAL_MAX_CHANGE_RATIO", "1")
    with Trickle(database18) as trickle, db.open_session(database18) as conn:
        fill(conn)
        trickle.create_stream_table("st", QUERY, refresh_mode="AUTO")
        (filled,) = trickle.history("st")
        assert (filled.way, set(filled.expected or {})) == (
            "FULL by PostgreSQL",
            {"FULL by PostgreSQL", "FULL on Spark"},
        )
        assert filled.took_ms is not None
        assert filled.took_ms > 0
        assert filled.server_cpu_ms is not None
        for name, changes_ratio, full_ratio in (("FULL", 900.0, 0.5), ("DIFFERENTIAL", 0.5, 900.0)):
            ways = {"DIFFERENTIAL by PostgreSQL": {"1": [changes_ratio]}, "FULL by PostgreSQL": {"0": [full_ratio]}}
            conn.execute("UPDATE pgtrickle.pgt_refresh_costs SET ways = %s", (Jsonb(ways),))
            conn.execute("UPDATE t SET v = v + 700 WHERE v % 7 = 1")
            result = trickle.refresh_stream_table("st")
            assert result.action == name, result.reason
            assert not differing(conn, "st", QUERY)
        newest = trickle.history("st")[0]
        assert newest.way == "DIFFERENTIAL by PostgreSQL"
        assert newest.expected is not None
        assert newest.expected["FULL by PostgreSQL"] > 900
        said = trickle.explain("st")
        assert f", {newest.server_cpu_ms:.0f} ms of the server's CPU" in said
        assert "last refreshes, the newest first\n  DIFFERENTIAL by PostgreSQL: " in said
        assert " ms expected, took " in said
        assert "refreshes like this" in said
        trickle.alter_stream_table("st", query="SELECT k, v FROM t")
        stored = db.scalar(conn, "SELECT ways::text FROM pgtrickle.pgt_refresh_costs")
        assert "DIFFERENTIAL" not in str(stored)


@pytest.mark.parametrize("told", list(Way))
def test_each_way_gives_the_same_rows(database18: str, spark: SparkSession, told: Way) -> None:
    with Trickle(database18, spark=spark) as trickle, db.open_session(database18) as conn:
        trickle._refresher.way = told
        fill(conn)
        trickle.create_stream_table("st", QUERY, refresh_mode="AUTO")
        for change in (
            "UPDATE t SET v = 900 WHERE v = 7",
            "DELETE FROM t WHERE k = 1",
            "INSERT INTO t VALUES (9, NULL)",
        ):
            conn.execute(db.statement(change))
            result = trickle.refresh_stream_table("st")
            assert result.action == ("FULL" if told.whole else "DIFFERENTIAL")
            assert trickle.history("st", 1)[0].way == told.value
            assert not differing(conn, "st", QUERY)
