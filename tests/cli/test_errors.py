"""How commands end: the exit codes of the contract, one line of what and one of what to do, no tracebacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.cli.conftest import Call

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-c", "from pgtrickle.cli.main import main; main()"]
ORDERS = "SELECT id FROM orders"


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["create", "t", "--query", "SELEC 1"], 2, "PT1"),
        (["create", "t", "--query", "SELECT nothing FROM orders"], 2, "PT1"),
        (["create", "t", "--query", ORDERS, "--schedule", "often"], 2, "PT010"),
        (["create", "t", "--query", ORDERS, "--schedule", "* * * *  99"], 2, "PT012"),
        (["create", "t", "--query", ORDERS, "--if-not-exists", "--or-replace"], 2, "PT033"),
        (["refresh"], 2, "PT032"),
        (["refresh", "t", "--all"], 2, "PT032"),
        (["create", "nowhere.t", "--query", ORDERS], 2, "PT005"),
        (
            ["create", "t", "--query", "SELECT ctid FROM orders", "--refresh-mode", "DIFFERENTIAL"],
            2,
            "PT234",
        ),
        (["alter", "t"], 2, "PT031"),
        (["alter", "nothing", "--schedule", "1h"], 1, "PT301"),
        (["refresh", "nothing"], 1, "PT301"),
        (["drop", "nothing"], 1, "PT301"),
        (["history", "nothing"], 1, "PT301"),
        (["verify", "nothing"], 1, "PT301"),
        (["create", "orders", "--query", ORDERS], 1, "PT302"),
    ],
)
def test_an_error_is_two_lines_and_a_code(call: Call, arguments: list[str], code: int, error: str) -> None:
    call("install")
    told = call(*arguments)
    assert told.exit_code == code, told.output
    assert told.stdout == ""
    what, hint = told.stderr.splitlines()
    assert what.startswith(f"error: {error}")
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    "arguments",
    [[], ["create", "t"], ["refresh"], ["status", "--nonsense"], ["history", "t", "--limit", "0"], ["fly"]],
)
def test_wrong_usage_is_two(call: Call, arguments: list[str]) -> None:
    assert call(*arguments).exit_code == 2


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)


def test_an_unreachable_server_is_three_and_the_password_stays_secret() -> None:
    told = run("--dsn", "postgresql://someone:hush-hush@127.0.0.1:1/nowhere", "status")
    assert told.returncode == 3
    assert told.stdout == ""
    warning, what, hint = told.stderr.splitlines()
    assert warning.startswith("warning: the password in --dsn")
    assert what.startswith("error: PT400: cannot connect")
    assert hint.startswith("hint: ")
    assert "hush" not in told.stderr


def test_a_wrong_choice_lists_the_right_ones(call: Call) -> None:
    told = call("create", "t", "--query", ORDERS, "--refresh-mode", "SOMETIMES")
    assert told.exit_code == 2
    assert all(mode in told.stderr.upper() for mode in ("AUTO", "DIFFERENTIAL", "FULL", "IMMEDIATE"))


def test_under_json_an_error_is_an_object(call: Call) -> None:
    call("install")
    for arguments in (["--json", "drop", "nothing"], ["drop", "--json", "nothing"], ["drop", "nothing", "--json"]):
        told = call(*arguments)
        assert (told.exit_code, told.stdout) == (1, "")
        error = json.loads(told.stderr)["error"]
        assert error["code"] == "PT301"
        assert error["hint"]


def test_a_role_without_rights_is_three(shop: str) -> None:
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS cli_guest")
        connection.execute("CREATE ROLE cli_guest LOGIN PASSWORD 'guest'")
    try:
        told = run("--dsn", make_conninfo(shop, user="cli_guest", password="guest"), "install")
    finally:
        with psycopg.connect(shop, autocommit=True) as connection:
            connection.execute("DROP ROLE cli_guest")
    assert told.returncode == 3
    assert "\nerror: PT402" in told.stderr, "after the warning of the password"
    assert "Traceback" not in told.stderr


def test_what_postgresql_refuses_is_no_traceback(call: Call, shop: str) -> None:
    """A source column of the wrong kind: the query fails only when it runs."""
    made = call("create", "ratio", "--query", "SELECT id, 1 / (id - id) AS r FROM orders", "--no-initialize")
    assert made.exit_code == 0
    told = call("verify", "ratio")
    assert told.exit_code == 1
    assert told.stderr.startswith("error: public.ratio: PT343: PostgreSQL refused: division by zero")


def test_a_password_on_the_command_line_is_warned_of(shop: str) -> None:
    """On stderr, so that JSON stays JSON; a password from the environment is no one else's to see."""
    for arguments, environment, warned in (
        (["--dsn", shop, "config", "--json"], {}, True),
        (["config", "--json"], {"PGTRICKLE_DSN": shop}, False),
    ):
        done = subprocess.run(
            [*PROGRAM, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout)
        assert ("process list" in done.stderr and "PGTRICKLE_DSN" in done.stderr) == warned
        assert "password=" not in done.stderr
