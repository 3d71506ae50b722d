"""Stream tables made without rows: the service fills them when they are first due, and what reads them waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.service.serving import served

from pgtrickle import connect
from pgtrickle.errors import Refused

DIAMOND = {
    "low": "SELECT id, v FROM t WHERE v < 50",
    "high": "SELECT id, v FROM t WHERE v >= 50",
    "pairs": "SELECT l.v AS low, h.v AS high FROM low AS l JOIN high AS h ON h.id = l.id + 50",
}


def test_the_service_fills_what_was_made_without_rows(database18: str, tmp_path: Path) -> None:
    with served(database18, tmp_path) as serving:
        serving.run(
            "CREATE TABLE t (id int PRIMARY KEY, v int)",
            "INSERT INTO t SELECT n, n FROM generate_series(1, 100) AS n",
        )

        def make(name: str, query: str, schedule: str | None, mode: str = "DIFFERENTIAL") -> None:
            call = "create_stream_table(%s, %s, schedule => %s, refresh_mode => %s, initialize => false)"
            serving.ask(call, name, query, schedule, mode)
            serving.queries[name] = query

        make("late", "SELECT id, v FROM t", "365d")
        make("below", "SELECT v, count(*) AS n FROM late GROUP BY v", "1s")
        make("leaf", "SELECT id FROM t", None)
        for name, query in DIAMOND.items():
            make(name, query, "1s" if name == "pairs" else None, "AUTO" if name == "pairs" else "DIFFERENTIAL")
        serving.await_equal(*DIAMOND)
        first = serving.rows(
            "SELECT action, initiated_by, reason FROM pgtrickle.pgt_refresh_history AS h"
            " JOIN pgtrickle.pgt_stream_tables USING (pgt_id) WHERE pgt_name = 'low' ORDER BY refresh_id LIMIT 1"
        )
        assert first == [("FULL", "INITIAL", "first population")]
        serving.run("INSERT INTO t VALUES (101, 20), (51 + 100, 70)")
        serving.await_equal(*DIAMOND)
        told = serving.rows("SELECT name, detail FROM pgtrickle_internal.unfilled_tables()")
        assert {name: str(detail).partition(";")[0] for name, detail in told} == {
            "public.late": "public.late was never filled: the service fills it when it is first due (365d)",
            "public.below": "public.below was never filled: the service fills it when it is first due (1s)",
            "public.leaf": "public.leaf was never filled: it has no schedule, and is filled when a table that reads it"
            " is due",
        }
        with connect(database18) as trickle, pytest.raises(Refused) as early:
            trickle.create_stream_table("early", "SELECT v FROM late")
        assert early.value.code == "PT453"
        assert serving.one("SELECT to_regclass('early')") is None
        serving.ask("refresh_stream_table('late', full => true)")
        serving.await_equal("late", "below")
        assert serving.rows("SELECT name FROM pgtrickle_internal.unfilled_tables()") == [("public.leaf",)]
