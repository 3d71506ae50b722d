"""A service over many tables under constant writes, and one that takes over from a leader killed in mid-refresh.

PGTRICKLE_DAG_SECONDS is how long the writers write.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from tests.service.running import running
from tests.service.serving import Served, served

from pgtrickle import db
from pgtrickle.db import statement

SECONDS = float(os.environ.get("PGTRICKLE_DAG_SECONDS", "20"))
ACCOUNTS = 20


def test_a_leader_is_killed_in_mid_refresh(database18: str, tmp_path: Path) -> None:
    with served(database18, tmp_path) as first:
        first.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
        first.create("s", "SELECT id, v FROM t")
        first.create("r", "SELECT v % 7 AS k, count(*) AS n FROM s GROUP BY 1")
        with running(database18, tmp_path) as second:
            second.await_event("lease_awaited")
            first.run("INSERT INTO t SELECT g, g FROM generate_series(1, 2000) g")
            first.until(
                lambda: first.one("SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE status = 'RUNNING'"),
                "a refresh under way",
            )
            first.service.kill()
            first.run("DELETE FROM t WHERE id % 3 = 0")
            second.await_event("lease_taken")
            first.service = second
            first.await_equal("s", "r")
            assert first.one("SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE error LIKE 'the process ended%'")
            first.await_tick()
            assert not first.one("SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE status = 'RUNNING'")
            assert first.rows("SELECT relname FROM pg_class WHERE relname LIKE 'stage\\_%'") == []


def build(made: Served) -> list[str]:
    """About fifty tables over a ledger in which every transaction adds up to zero: chains, fans, and diamonds, one of
    them over a stream table. Returns those of which the amounts add up to zero at every snapshot."""
    made.run(
        "CREATE TABLE ledger (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account int, amount int)",
        "CREATE TABLE accounts (id int PRIMARY KEY, region int)",
        f"INSERT INTO accounts SELECT g, g % 4 FROM generate_series(1, {ACCOUNTS}) g",
        "INSERT INTO ledger (account, amount) SELECT g, 0 FROM generate_series(1, 20) g",
    )
    whole = []
    made.create("entries", "SELECT id, account, amount FROM ledger", schedule=None)
    for chain in range(2):
        above = "entries"
        for link in range(9):
            name = f"chain{chain}_{link}"
            made.create(name, f"SELECT id, account, amount FROM {above}", "1s" if link == 8 else None)
            whole.append(name)
            above = name
    for place in range(8):
        made.create(f"by{place}", f"SELECT account % {place + 2} AS k, sum(amount) AS amount FROM ledger GROUP BY 1")
        made.create(f"of{place}", f"SELECT k % 2 AS k, sum(amount) AS amount FROM by{place} GROUP BY 1")
        whole += [f"by{place}", f"of{place}"]
    for name, source in (("a", "ledger"), ("b", "ledger"), ("c", "entries")):
        made.create(f"{name}_in", f"SELECT account, sum(amount) AS amount FROM {source} WHERE amount > 0 GROUP BY 1")
        made.create(f"{name}_out", f"SELECT account, sum(amount) AS amount FROM {source} WHERE amount < 0 GROUP BY 1")
        made.create(
            f"{name}_both",
            f"SELECT i.account, i.amount AS gained, o.amount AS spent FROM {name}_in i"
            f" JOIN {name}_out o ON o.account = i.account",
        )
    made.create(
        "regions",
        "SELECT a.region, sum(l.amount) AS amount FROM ledger l JOIN accounts a ON a.id = l.account GROUP BY 1",
    )
    made.create("named", "SELECT r.region, r.amount, a.id FROM regions r JOIN accounts a ON a.region = r.region")
    return [*whole, "regions"]


BROKEN = """
SELECT '{name}' WHERE (SELECT sum(amount) FROM {name}_in) + (SELECT sum(amount) FROM {name}_out) <> 0
UNION ALL
SELECT '{name}_both' WHERE EXISTS (
    SELECT account, i.amount, o.amount FROM {name}_in i JOIN {name}_out o USING (account)
    EXCEPT ALL SELECT account, gained, spent FROM {name}_both)
"""


@contextmanager
def repeating(dsn: str, work: object, threads: int) -> Iterator[list[BaseException]]:
    """Threads that do something again and again until the block ends; what they raise is raised by it."""
    assert callable(work)
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with db.open_session(dsn) as conn:
                while not stop.is_set():
                    work(conn)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    started = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
    for each in started:
        each.start()
    try:
        yield failures
    finally:
        stop.set()
        for each in started:
            each.join(30)
    if failures:
        raise failures[0]


def transfer(conn: db.Connection) -> None:
    """From some accounts to others, in several statements; now and then entries move, or all is rolled back."""
    with conn.transaction(force_rollback=random.random() < 0.1):
        taken = [(random.randint(1, ACCOUNTS), random.randint(1, 100)) for _ in range(3)]
        for account, amount in taken:
            conn.execute("INSERT INTO ledger (account, amount) VALUES (%s, %s)", (account, -amount))
        for account, amount in taken:
            other = account % ACCOUNTS + 1
            conn.execute("INSERT INTO ledger (account, amount) VALUES (%s, %s)", (other, amount))
        if random.random() < 0.3:
            conn.execute(
                "UPDATE ledger SET account = account %% %s + 1 WHERE id %% 97 = %s", (ACCOUNTS, random.randint(0, 96))
            )
    time.sleep(0.02)


@pytest.fixture
def many(database18: str, tmp_path: Path) -> Iterator[Served]:
    with served(database18, tmp_path, max_concurrent_refreshes="3") as found:
        yield found


@pytest.mark.long
def test_fifty_tables_under_constant_writes(many: Served) -> None:
    """At any moment, in one transaction: each table is of one snapshot, and so are the arms of each diamond."""
    whole = build(many)
    assert len(many.queries) >= 46
    seen = 0

    def look(conn: db.Connection) -> None:
        nonlocal seen
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with conn.transaction():
            sums = " UNION ALL ".join(f"SELECT '{name}', sum(amount) FROM {name}" for name in whole)
            off = conn.execute(statement(f"SELECT * FROM ({sums}) AS s(name, sum) WHERE sum <> 0")).fetchall()
            broken = conn.execute(statement(" UNION ALL ".join(BROKEN.format(name=n) for n in "abc"))).fetchall()
        assert (off, broken) == ([], [])
        seen += 1
        time.sleep(0.05)

    with repeating(many.dsn, transfer, 2), repeating(many.dsn, look, 1) as failures:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and not failures:
            time.sleep(0.2)
    assert seen > 5
    many.await_equal(*many.queries)
    assert many.rows("SELECT pgt_name, last_error FROM pgtrickle.pgt_stream_tables WHERE status <> 'ACTIVE'") == []
    assert int(str(many.one("SELECT min(epoch) FROM pgtrickle.diamond_groups() WHERE consistency = 'atomic'"))) > 0
