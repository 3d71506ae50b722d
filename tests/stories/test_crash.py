"""The refreshing process killed (−9) at each of its steps: the old state or the new one, and nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stories.telling import Story

ROOT = Path(__file__).parents[2]
TOTALS = (
    "SELECT r.name, count(*) AS n, sum(o.amount) AS total, max(o.amount) AS most "
    "FROM orders o JOIN regions r ON r.id = o.region GROUP BY r.name"
)


def die(story: Story, table: str, failpoint: str, path: str) -> None:
    """Refreshes in a process of its own, which must be killed at the failpoint."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.stories.crash_child", story.dsn, table, path],
        cwd=ROOT,
        env={**os.environ, "PGTRICKLE_FAILPOINT": failpoint},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, (done.returncode, done.stdout, done.stderr[-2000:])


@pytest.mark.parametrize(
    ("failpoint", "path"),
    [
        ("spark-done", "small"),
        ("before-commit", "small"),
        ("after-commit", "small"),
        ("staging-created", "distributed"),
        ("landed", "distributed"),
    ],
)
def test_killed_then_refreshed_again(story18: Story, failpoint: str, path: str) -> None:
    story18.run(
        "CREATE TABLE regions (id int PRIMARY KEY, name text)",
        "CREATE TABLE orders (id int PRIMARY KEY, region int, amount numeric)",
        "INSERT INTO regions SELECT g, 'r' || g FROM generate_series(0, 3) g",
        "INSERT INTO orders SELECT g, g % 3, g FROM generate_series(1, 30) g",
    )
    story18.create("totals", TOTALS)
    before = story18.content("totals")
    story18.run("INSERT INTO orders VALUES (100, 1, 7.50)", "DELETE FROM orders WHERE id = 30", "DELETE FROM regions")
    story18.run("INSERT INTO regions VALUES (0, 'r0'), (1, 'one'), (2, 'r2')")
    die(story18, "totals", failpoint, path)
    _when_its_sessions_have_ended(story18)
    died = story18.last("totals")
    if failpoint == "after-commit":
        assert died.status == "COMPLETED"
        story18.equal("totals")
        story18.check("totals", "NO_DATA")
    else:
        assert died.status == "RUNNING"
        assert story18.content("totals") == before
        story18.check("totals")
        again, dead = story18.trickle.history("totals", 2)
        assert (again.status, dead.refresh_id, dead.status) == ("COMPLETED", died.refresh_id, "FAILED")
        assert "ended before" in str(dead.error)
    assert all(found.equal for found in story18.trickle.verify("totals"))
    assert not [name for name in story18.ours() if name.startswith("stage_")]
    story18.run("UPDATE orders SET amount = amount + 1 WHERE id = 100")
    story18.check("totals")


def _when_its_sessions_have_ended(story: Story) -> None:
    """The server notices that a client is gone when it next talks to it; the table's lock is held until then."""
    for _ in range(100):
        found = story.rows(
            "SELECT pid FROM pg_locks WHERE relation = 'pgtrickle_internal.pgt_refresh_locks'::regclass AND granted "
            "AND mode = 'RowShareLock' AND pid <> pg_backend_pid()"
        )
        if not found:
            return
        story.run("SELECT pg_sleep(0.1)")
    raise AssertionError("the dead process still holds its lock")
