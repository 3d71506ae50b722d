"""The fixture for users' own tests: a database for each test, on a given or an embedded server. Others pay nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import psycopg

from pgtrickle import embedded

USERS_TESTS = """
import psycopg

SEEN = []


def test_a_stream_table(pgtrickle_db):
    with psycopg.connect(pgtrickle_db.dsn, autocommit=True) as shop:
        shop.execute("CREATE TABLE orders (id int PRIMARY KEY, region text, amount int)")
        shop.execute("INSERT INTO orders VALUES (1, 'north', 5), (2, 'north', 7)")
        pgtrickle_db.create_stream_table("totals", "SELECT region, sum(amount) AS total FROM orders GROUP BY region")
        shop.execute("UPDATE orders SET amount = 8 WHERE id = 2")
        assert pgtrickle_db.refresh_stream_table("totals").rows_inserted == 1
        assert shop.execute("SELECT * FROM totals").fetchall() == [("north", 13)]
    SEEN.append(pgtrickle_db.dsn)


def test_the_next_one_has_another_database(pgtrickle_db):
    assert SEEN and pgtrickle_db.dsn not in SEEN
    assert pgtrickle_db.status() == ()
    psycopg.connect(pgtrickle_db.dsn)  # left open: it does not keep the database
"""
OTHERS_TESTS = """
import sys


def test_of_somebody_else():
    assert {"psycopg", "pyspark", "sqlglot", "pyarrow"} & set(sys.modules) == set()
    ours = {name for name in sys.modules if name.startswith("pgtrickle.")}
    assert ours == {"pgtrickle.errors", "pgtrickle.pytest_plugin"}
"""


def run(directory: Path, tests: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """pytest in a project of its own, as strict as ours."""
    (directory / "test_theirs.py").write_text(tests)
    (directory / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers --strict-config\n")
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PGTRICKLE_", "SPARK_"))
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    return subprocess.run(
        command, cwd=directory, env={**own, **variables}, capture_output=True, text=True, timeout=180, check=False
    )


def databases(server: embedded.Server) -> set[str]:
    with psycopg.connect(server.dsn) as admin:
        found = admin.execute("SELECT datname FROM pg_database WHERE datname LIKE 'pgtrickle_test_%'").fetchall()
    return {name for (name,) in found}


def test_pytest_finds_it() -> None:
    (found,) = entry_points(group="pytest11", name="pgtrickle")
    assert found.value == "pgtrickle.pytest_plugin"


def test_databases_on_a_server_that_an_option_names(server18: embedded.Server, tmp_path: Path) -> None:
    done = run(tmp_path, USERS_TESTS, "--pgtrickle-dsn", server18.dsn)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert databases(server18) == set()


def test_a_failing_test_on_a_server_that_a_variable_names_leaves_no_database(
    server18: embedded.Server, tmp_path: Path
) -> None:
    failing = "def test_it(pgtrickle_db):\n    assert pgtrickle_db.status() == 'nothing'\n"
    done = run(tmp_path, failing, PGTRICKLE_TEST_DSN=server18.dsn)
    assert "1 failed" in done.stdout, done.stdout + done.stderr
    assert databases(server18) == set()


def test_an_embedded_server_where_none_was_named(tmp_path: Path, open_directory: Path) -> None:
    done = run(tmp_path, USERS_TESTS, TMPDIR=str(open_directory), PGTRICKLE_TEST_DSN="")
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert list(open_directory.glob("pgtrickle-pytest-*")) == [], "it is gone"


def test_who_does_not_use_it_does_not_load_it(tmp_path: Path) -> None:
    done = run(tmp_path, OTHERS_TESTS)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
