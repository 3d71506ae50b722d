"""IMMEDIATE mode by pgbench: what one row costs its writer, and what ten writers get done, against the same without a
view; side by side with pg_ivm where `PG_IVM_DSN` names a server that has it.

`PGTRICKLE_BENCH_SCALE` is pgbench's: a hundred thousand accounts each. Then what one row of lineitem costs with each of
TPC-H's queries, at the scale `PGTRICKLE_BENCH_TPCH_SCALE`.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pgtrickle
from bench import tpch
from bench.harness import Connection, Figure, database, db, median, seconds
from pgtrickle.programs import binaries

SCALE = int(os.environ.get("PGTRICKLE_BENCH_SCALE", "10"))
SECONDS = int(os.environ.get("PGTRICKLE_BENCH_SECONDS", "10"))
CLIENTS = 10
TPCH_SCALE = os.environ.get("PGTRICKLE_BENCH_TPCH_SCALE", "1")
ROUNDS = 30
VIEWS = {
    "aggregate": "SELECT bid, sum(abalance) AS total, count(*) AS accounts FROM pgbench_accounts GROUP BY bid",
    "join": "SELECT a.aid, a.bid, a.abalance, b.bbalance FROM pgbench_accounts a "
    "JOIN pgbench_branches b ON b.bid = a.bid",
}
GOALS = {"aggregate": (5.0, 0.2), "join": (7.0, 0.1)}
ONE_ROW = (
    "\\set aid random(1, 100000 * :scale)\nUPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n"
)
OWN_BRANCH = (
    "\\set aid 100000 * (:client_id % :scale) + random(1, 100000)\n"
    "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n"
)
MANY = "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid % (10 * {scale}) = {remainder}"

LINEITEM = (
    "INSERT INTO lineitem SELECT (jsonb_populate_record(l, jsonb_build_object('l_linenumber', 101 + nextval('lines'))))"
    ".* FROM lineitem AS l WHERE l_orderkey = 32 AND l_linenumber = 1"
)

Kept = Callable[[str, str, str], AbstractContextManager[None]]
"""A view of that name and query, for a time."""


def run(dsn: str) -> Iterator[Figure]:
    yield from _side_by_side(dsn, "pgtrickle", _by_pgtrickle)
    if "PG_IVM_DSN" in os.environ:
        yield from _side_by_side(os.environ["PG_IVM_DSN"], "pg_ivm", _by_pg_ivm)
    with database(dsn, "tpch") as own:
        tpch.load(own, TPCH_SCALE)
        yield from _one_lineitem(own)


def _one_lineitem(dsn: str) -> Iterator[Figure]:
    """Medians; the first of a session, which plans the statement, apart."""
    with db.open_session(dsn) as connection, pgtrickle.connect(dsn) as trickle:
        connection.execute("CREATE SEQUENCE lines")
        for name, query in tpch.QUERIES.items():
            trickle.create_stream_table(name, query, refresh_mode="IMMEDIATE")
            with db.open_session(dsn) as writer:
                writer.execute("SET synchronous_commit = off")
                times = [seconds(lambda: writer.execute(LINEITEM)) for _ in range(1 + ROUNDS)]
            (found,) = trickle.verify(name)
            if not found.equal:
                raise AssertionError(found)
            trickle.drop_stream_table(name)
            connection.execute("DELETE FROM lineitem WHERE l_linenumber > 100")
            yield Figure(f"TPC-H {TPCH_SCALE}, {name}: one row of lineitem", median(times[1:]) * 1000, "ms")
            yield Figure(f"TPC-H {TPCH_SCALE}, {name}: the first of a session", times[0] * 1000, "ms")


def _side_by_side(dsn: str, who: str, kept: Kept) -> Iterator[Figure]:
    _pgbench(dsn, "--initialize", "--quiet", f"--scale={SCALE}")
    with db.open_session(dsn) as connection:
        connection.execute("CREATE INDEX ON pgbench_accounts (bid)")
        connection.execute("VACUUM ANALYZE")
        alone, together, many = _measured(dsn, connection)
        yield Figure("without a view: one row", alone, "ms")
        yield Figure(f"without a view: {CLIENTS} clients", together, "tx/s")
        yield Figure("without a view: a statement of 10 thousand rows", many, "s")
        for name, query in VIEWS.items():
            with kept(dsn, name, query):
                one, more, all_at_once = _measured(dsn, connection)
            most, least = GOALS[name]
            yield Figure(f"{who}, {name}: one row", one, "ms")
            yield Figure(f"{who}, {name}: one row, against none", one / alone, "×", f"at most {most:g}")
            yield Figure(f"{who}, {name}: {CLIENTS} clients", more, "tx/s")
            yield Figure(f"{who}, {name}: {CLIENTS} clients, against none", more / together, "×", f"at least {least:g}")
            yield Figure(f"{who}, {name}: 10 thousand rows, against none", all_at_once / many, "×")


def _measured(dsn: str, connection: Connection) -> tuple[float, float, float]:
    """Milliseconds of one row, transactions a second of many clients, seconds of many rows."""
    alone = _latency(_pgbench(dsn, *_script(ONE_ROW), "--client=1", f"--time={SECONDS}"))
    together = _throughput(_pgbench(dsn, *_script(OWN_BRANCH), f"--client={CLIENTS}", "--jobs=2", f"--time={SECONDS}"))
    times = [
        seconds(lambda at=at: connection.execute(MANY.format(scale=SCALE, remainder=at)))  # type: ignore[misc]
        for at in range(3)
    ]
    return alone, together, sorted(times)[1]


@contextmanager
def _by_pgtrickle(dsn: str, name: str, query: str) -> Iterator[None]:
    with pgtrickle.connect(dsn) as trickle:
        trickle.create_stream_table(f"bench_{name}", query, refresh_mode="IMMEDIATE")
        yield
        (found,) = trickle.verify(f"bench_{name}")
        if not found.equal:
            raise AssertionError(found)
        trickle.drop_stream_table(f"bench_{name}")


@contextmanager
def _by_pg_ivm(dsn: str, name: str, query: str) -> Iterator[None]:
    with db.open_session(dsn) as connection:
        connection.execute("SELECT pgivm.create_immv(%s, %s)", (f"public.bench_{name}", query))
        yield
        connection.execute(f"DROP TABLE public.bench_{name}")


def _script(text: str) -> tuple[str, ...]:
    path = Path(tempfile.gettempdir()) / f"pgtrickle-bench-{abs(hash(text))}.sql"
    path.write_text(text)
    return ("--no-vacuum", f"--file={path}", f"--define=scale={SCALE}")


def _pgbench(dsn: str, *arguments: str) -> str:
    program = str(binaries(18, None) / "pgbench")
    done = subprocess.run(
        [program, *arguments, dsn],
        env={**os.environ, "PGOPTIONS": "-c synchronous_commit=off"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def _latency(output: str) -> float:
    return float(_found(r"latency average = ([\d.]+) ms", output))


def _throughput(output: str) -> float:
    return float(_found(r"tps = ([\d.]+)", output))


def _found(pattern: str, output: str) -> str:
    match = re.search(pattern, output)
    if match is None:
        raise RuntimeError(output)
    return match[1]
