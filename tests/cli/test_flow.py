"""The life of a stream table from the command line, on the warm Spark of the test run."""

from __future__ import annotations

import json

import psycopg
import pytest
from tests.cli.conftest import Call

TOTALS = (
    "SELECT c.region, count(*) AS orders, sum(o.amount) AS total"
    " FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.region"
)


def rows(dsn: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as connection:
        return sorted(connection.execute(query.encode()).fetchall(), key=repr)


@pytest.mark.usefixtures("spark")
def test_create_refresh_verify(call: Call, shop: str) -> None:
    made = call("create", "totals", "--query", TOTALS, "--json")
    assert made.exit_code == 0, made.output
    facts = json.loads(made.stdout)
    assert (facts["status"], facts["is_populated"]) == ("ACTIVE", True)
    assert (facts["refresh"]["action"], facts["refresh"]["rows_inserted"]) == ("FULL", 3)
    assert rows(shop, "TABLE totals") == rows(shop, TOTALS)

    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("INSERT INTO orders VALUES (1001, 1, 7.25); DELETE FROM orders WHERE id = 5")
    assert json.loads(call("verify", "--json").stdout)[0]["compared_with"] == "its snapshot"
    assert call("verify").exit_code == 0, "stale is not wrong"

    told = json.loads(call("refresh", "totals", "--json").stdout)
    assert (told["table"], told["action"], told["changes_read"]) == ("public.totals", "DIFFERENTIAL", 2)
    assert rows(shop, "TABLE totals") == rows(shop, TOTALS)
    assert call("refresh", "totals").stdout.startswith("NO_DATA: +0 -0 rows in ")
    assert call("refresh", "totals", "--full").stdout.startswith("FULL: +0 -0 rows in ")

    actions = [row["action"] for row in json.loads(call("history", "totals", "--json").stdout)]
    assert actions == ["FULL", "NO_DATA", "DIFFERENTIAL", "FULL"]
    assert len(json.loads(call("history", "totals", "--limit", "2", "--json").stdout)) == 2

    narrower = TOTALS.replace(" GROUP BY", " WHERE o.amount > 100 GROUP BY")
    altered = json.loads(call("alter", "totals", "--query", narrower, "--json").stdout)
    assert altered["query"] == narrower
    assert rows(shop, "TABLE totals") == rows(shop, narrower)

    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("UPDATE totals SET orders = orders + 1 WHERE region = 'r1'")
    wrong = call("verify", "totals", "--json")
    assert wrong.exit_code == 1
    assert {key: json.loads(wrong.stdout)[0][key] for key in ("equal", "missing", "extra")} == {
        "equal": False,
        "missing": 1,
        "extra": 1,
    }


@pytest.mark.usefixtures("spark")
def test_a_failed_creation_leaves_nothing(call: Call, shop: str) -> None:
    told = call("create", "ratio", "--query", "SELECT id, 1 / (id - 7) AS r FROM orders")
    assert told.exit_code == 1
    assert told.stderr.startswith("error: PT343: PostgreSQL refused: division by zero")
    assert json.loads(call("status", "--json").stdout) == []
    assert rows(shop, "SELECT to_regclass('ratio'), count(*) FROM pg_trigger WHERE tgname LIKE 'pgtrickle%'") == [
        (None, 0)
    ]
