"""STABLE functions whose bodies prove nothing: taken at the word of who defines the table."""

from __future__ import annotations

import pytest

from pgtrickle.api import Trickle
from pgtrickle.errors import Error
from tests.stories.telling import Story

RATED = "SELECT kind, sum(rated(v)) AS total FROM t GROUP BY kind"
FUNCTION = (
    "CREATE OR REPLACE FUNCTION rated(v int) RETURNS numeric STABLE LANGUAGE plpgsql"
    " AS $$ BEGIN IF v IS NULL THEN RETURN 0.5; END IF; RETURN v * {}; END $$"
)


def test_a_promise_is_kept_with_the_table(told: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by name without it, FULL where any mode will do; made in one session, it holds for all that refresh."""
    told.run(FUNCTION.format("1.10"))
    with pytest.raises(Error) as caught:
        told.trickle.create_stream_table("rates", RATED, refresh_mode="DIFFERENTIAL")
    assert caught.value.code == "PT203"
    assert "trust_stable_functions" in str(caught.value.hint)
    told.create("whole", RATED, "AUTO")
    told.run("UPDATE t SET v = NULL WHERE id = 1")
    told.check("whole", "FULL")

    monkeypatch.setenv("PGTRICKLE_TRUST_STABLE_FUNCTIONS", "on")
    with Trickle(told.dsn) as promising:
        promising.create_stream_table("rates", RATED, refresh_mode="DIFFERENTIAL", initialize=False)
        assert "operators" in promising.explain(query=RATED)
    monkeypatch.delenv("PGTRICKLE_TRUST_STABLE_FUNCTIONS")
    told.queries["rates"] = RATED
    told.trickle.refresh_stream_table("rates", full=True)
    told.equal("rates")
    assert "taken as promised" in told.trickle.explain("rates")
    told.run(
        "UPDATE t SET v = v + 1 WHERE id < 5", "DELETE FROM t WHERE id = 7", "INSERT INTO t VALUES (30, 'k1', NULL)"
    )
    told.check("rates")
    assert [each.equal for each in told.trickle.verify("rates")] == [True]
    told.run(FUNCTION.format("3"))
    told.check("rates", "REINITIALIZE")
    told.run("ALTER TABLE t ALTER v TYPE int USING v + 1")
    told.trickle.refresh_stream_table("rates")
    told.equal("rates")
    with pytest.raises(Error) as caught:
        told.trickle.alter_stream_table("rates", query=RATED.replace("total", "sum"))
    assert caught.value.code == "PT203", "another query is another promise"
