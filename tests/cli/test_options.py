"""General options wherever they stand; verbs on all tables; create that meets a table of its name."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Call

from pgtrickle.cli.anywhere import in_place

TOTALS = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["status", "--dsn", "D"], ["--dsn", "D", "status"]),
        (["status", "--dsn=D", "t"], ["--dsn=D", "status", "t"]),
        (["--json", "status", "t"], ["status", "t", "--json"]),
        (["--dsn", "A", "run", "--dsn", "B"], ["--dsn", "A", "--dsn", "B", "run"]),
        (["drop", "--", "--json"], ["drop", "--", "--json"]),
        (["status", "--dsn"], ["--dsn", "status"]),
        ([], []),
    ],
)
def test_general_options_stand_anywhere(given: list[str], wanted: list[str]) -> None:
    assert in_place(given) == wanted


def test_all_tables_and_tables_that_exist(call: Call) -> None:
    call("create", "base", "--query", TOTALS, "--no-initialize")
    call("create", "above", "--query", "SELECT max(total) AS most FROM base", "--no-initialize")
    again = call("create", "base", "--query", "SELECT 1 AS x", "--if-not-exists")
    assert (again.exit_code, again.stdout) == (0, "public.base exists already\n")
    assert call("create", "base", "--query", TOTALS).exit_code == 1
    paused = json.loads(call("--json", "pause", "--all").stdout)
    assert {each["table"]: each["status"] for each in paused} == {
        "public.base": "SUSPENDED",
        "public.above": "SUSPENDED",
    }
    assert call("resume", "above").stdout == "public.above is ACTIVE\n"
    assert call("resume", "--all").exit_code == 0
    replaced = call("create", "above", "--query", "SELECT min(total) AS most FROM base", "--or-replace")
    assert (replaced.exit_code, replaced.stdout) == (0, "replaced public.above\n"), replaced.output
    refreshed = json.loads(call("refresh", "--all", "--json").stdout)
    assert [each["table"] for each in refreshed] == ["public.base", "public.above"]
    assert call("verify").exit_code == 0
