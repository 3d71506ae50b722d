"""`explain --analyze`: rows and times of the plan for what is waiting, without Spark, and nothing is changed by it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from pgtrickle import Trickle, db
from pgtrickle.cli.main import app
from pgtrickle.db import Connection
from pgtrickle.errors import StateError, UsageError
from pgtrickle.refresh.lock import refresh_locks

TOTALS = "SELECT c.region, count(*) AS n, sum(o.amount) AS total FROM o JOIN c ON c.id = o.customer GROUP BY c.region"
EVERYTHING = (
    "SELECT pgt_id, status, frontier::text, data_timestamp FROM pgtrickle.pgt_stream_tables",
    "SELECT count(*) FROM pgtrickle.pgt_refresh_history",
    "SELECT * FROM totals",
    "SELECT * FROM pgtrickle_state.s_1_1",
)


@pytest.fixture
def conn(database18: str) -> Iterator[Connection]:
    with db.open_session(database18) as found:
        found.execute("CREATE TABLE c (id int PRIMARY KEY, region text)")
        found.execute("CREATE TABLE o (id int PRIMARY KEY, customer int, amount int)")
        found.execute("INSERT INTO c SELECT g, 'r' || g % 3 FROM generate_series(1, 9) AS g")
        found.execute("INSERT INTO o SELECT g, g % 9 + 1, g FROM generate_series(1, 90) AS g")
        yield found


@pytest.fixture
def trickle(conn: Connection, database18: str) -> Iterator[Trickle]:
    """A populated stream table; whatever asks for Spark from then on fails."""
    with Trickle(database18) as found:
        found._refresher.without_spark = True
        found.create_stream_table("totals", TOTALS, refresh_mode="DIFFERENTIAL")
        yield found


def everything(conn: Connection) -> list[list[tuple[object, ...]]]:
    buffers = conn.execute(
        "SELECT format('SELECT * FROM pgtrickle_changes.%I', relname) FROM pg_class"
        " WHERE relnamespace = 'pgtrickle_changes'::regnamespace AND relkind = 'r' ORDER BY relname"
    ).fetchall()
    queries = [*EVERYTHING, *(str(query) for (query,) in buffers)]
    return [sorted(conn.execute(db.statement(query)).fetchall(), key=repr) for query in queries]


def change(conn: Connection) -> None:
    conn.execute("INSERT INTO o VALUES (101, 1, 5), (102, 2, 6)")
    conn.execute("UPDATE c SET region = 'new' WHERE id = 3")


def test_rows_and_times_of_each_part(conn: Connection, trickle: Trickle) -> None:
    change(conn)
    before = everything(conn)
    told = re.sub(r"\d+\.\d ms", "? ms", trickle.explain("totals", analyze=True))
    assert everything(conn) == before
    assert told.startswith("run by PostgreSQL for the changes now waiting, and undone\n")
    assert "read changes of public.o (about 4 rows, really 2 in ? ms)" in told
    assert "read changes of public.c (about 2 rows, really 2 in ? ms)" in told
    assert "1. land contributions to the groups of aggregate 1 (really 7 in ? ms)" in told  # r0, r1, r2 and the new one
    assert "2. take the result from aggregate 1 (really 7 in ? ms)" in told
    assert told.endswith("result\n  4 rows to insert, 3 to delete; ? ms\n")
    again = trickle.refresh_stream_table("totals")
    assert (again.rows_inserted, again.rows_deleted) == (4, 3)
    assert all(found.equal for found in trickle.verify("totals"))


def test_nothing_to_run(conn: Connection, trickle: Trickle) -> None:
    assert trickle.explain("totals", analyze=True) == "nothing to run\n  no changes are waiting\n"
    conn.execute("TRUNCATE o")
    assert "computed again: public.o was truncated" in trickle.explain("totals", analyze=True)
    trickle.create_stream_table("later", TOTALS, initialize=False)
    assert trickle.explain("later", analyze=True) == "nothing to run\n  it was not populated yet\n"
    trickle.create_stream_table("whole", "SELECT random() AS r FROM o", refresh_mode="FULL")
    assert "computed in full" in trickle.explain("whole", analyze=True)
    with pytest.raises(UsageError, match="only a stream table"):
        trickle.explain(query=TOTALS, analyze=True)


def test_not_while_it_is_refreshed(database18: str, trickle: Trickle) -> None:
    (stream,) = trickle.status("totals")
    with db.connect(database18) as other, refresh_locks(other, [stream.pgt_id]) as locked:
        assert locked
        with pytest.raises(StateError, match=r"a refresh of public\.totals is under way"):
            trickle.explain("totals", analyze=True)


def test_from_the_command_line(conn: Connection, trickle: Trickle, database18: str) -> None:
    del trickle
    change(conn)
    before = everything(conn)
    call, env = ["explain", "totals", "--analyze"], {"PGTRICKLE_DSN": database18}
    told = CliRunner().invoke(app, call, env=env)
    assert told.exit_code == 0, told.output
    assert "4 rows to insert, 3 to delete" in told.output
    assert json.loads(CliRunner().invoke(app, [*call, "--json"], env=env).stdout)["text"].startswith(
        "run by PostgreSQL"
    )
    assert everything(conn) == before
