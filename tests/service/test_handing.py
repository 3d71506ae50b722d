"""The command line beside a running service: the service computes, and what is told is what it did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.serving import Served, served
from typer.testing import CliRunner, Result

from pgtrickle.cli.main import app

TOTALS = "SELECT region, count(*) AS n, sum(amount) AS total FROM orders GROUP BY region"


@pytest.fixture
def serving(database18: str, tmp_path: Path) -> Iterator[Served]:
    with served(database18, tmp_path) as found:
        found.run(
            "CREATE TABLE orders (id int PRIMARY KEY, region text, amount int)",
            "INSERT INTO orders SELECT n, 'r' || n % 3, n FROM generate_series(1, 300) AS n",
        )
        yield found


def test_create_alter_and_refresh_are_carried_out_by_the_service(serving: Served) -> None:
    def call(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments), env={"PGTRICKLE_DSN": serving.dsn})

    def is_equal(query: str) -> bool:
        return sorted(serving.rows("TABLE totals"), key=repr) == sorted(serving.rows(query), key=repr)

    made = call("create", "totals", "--query", TOTALS, "--schedule", "1d", "--json")
    assert made.exit_code == 0, made.output
    facts = json.loads(made.stdout)
    assert (facts["status"], facts["is_populated"]) == ("ACTIVE", True)
    assert (facts["refresh"]["action"], facts["refresh"]["rows_inserted"]) == ("FULL", 3)
    assert facts["refresh"]["phases"], "where the time went"

    serving.run("INSERT INTO orders VALUES (1001, 'r1', 7)", "DELETE FROM orders WHERE id = 5")
    refreshed = call("refresh", "totals", "--json")
    assert refreshed.exit_code == 0, (refreshed.output, refreshed.exception)
    told = json.loads(refreshed.stdout)
    assert (told["table"], told["action"], told["changes_read"]) == ("public.totals", "DIFFERENTIAL", 2)
    assert is_equal(TOTALS)
    assert call("refresh", "totals", "--full").stdout.startswith("FULL: +0 -0 rows in ")
    assert call("refresh", "--all").stdout.startswith("public.totals: NO_DATA: +0 -0 rows in ")

    narrower = TOTALS.replace(" GROUP BY", " WHERE amount > 100 GROUP BY")
    altered = json.loads(call("alter", "totals", "--query", narrower, "--schedule", "2d", "--json").stdout)
    assert (altered["query"], altered["schedule"]) == (narrower, "2d")
    assert is_equal(narrower)

    failed = call("create", "ratio", "--query", "SELECT id, 1 / (id - 7) AS r FROM orders")
    assert failed.exit_code == 1
    assert failed.stderr.startswith("error: PT343: PostgreSQL refused: division by zero")
    assert serving.one("SELECT to_regclass('ratio')") is None

    found = serving.rows("SELECT kind, state, error_code FROM pgtrickle.pgt_requests ORDER BY id")
    done = [(kind, "DONE", None) for kind in ("create", "refresh", "refresh", "refresh", "alter")]
    assert found == [*done, ("create", "FAILED", "PT343")]
    serving.run("SELECT pgtrickle.refresh_stream_table('totals', full => true)")
    serving.until(lambda: serving.actions("totals")[-1] == "FULL", "a full refresh by SQL")
