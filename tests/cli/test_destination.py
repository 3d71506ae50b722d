"""Which database a command works on, and that looking at one does not change it."""

from __future__ import annotations

import json

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner, Result

import pgtrickle
from pgtrickle import db, destination
from pgtrickle.catalog import install
from pgtrickle.cli.main import app

LOOKING = (
    ["status"],
    ["status", "t"],
    ["health"],
    ["cdc"],
    ["verify"],
    ["history", "t"],
    ["explain", "--query", "SELECT 1 AS one"],
    ["refresh", "t"],
    ["alter", "t", "--schedule", "5s"],
    ["drop", "t"],
)
ENVIRONMENT = {"PGHOST": "host", "PGPORT": "port", "PGDATABASE": "dbname", "PGUSER": "user", "PGPASSWORD": "password"}


def call(arguments: list[str], **env: str | None) -> Result:
    nothing: dict[str, str | None] = dict.fromkeys((destination.VARIABLE, *destination.NAMING))
    return CliRunner().invoke(app, arguments, env=nothing | env)


def variables(dsn: str) -> dict[str, str | None]:
    """libpq's variables that lead to a database."""
    parts = conninfo_to_dict(dsn)
    return {name: str(parts[key]) for name, key in ENVIRONMENT.items() if key in parts}


def schemas(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'pgtrickle%'").fetchall()
    return sorted(str(row[0]) for row in rows)


def test_looking_installs_nothing(database18: str) -> None:
    for verb in LOOKING:
        result = call(verb, PGTRICKLE_DSN=database18)
        assert (result.exit_code, "PT364" in result.stderr) == (1, True), (verb, result.output)
    assert schemas(database18) == []


def test_looking_does_not_migrate(database18: str) -> None:
    with db.connect(database18) as connection:
        install.install(connection)
        connection.execute(
            "DELETE FROM pgtrickle.pgt_migrations WHERE version = (SELECT max(version) FROM pgtrickle.pgt_migrations)"
        )
        with pytest.raises(pgtrickle.StateError) as caught:
            install.require(connection)
        assert caught.value.code == "PT365"
    assert call(["status"], PGTRICKLE_DSN=database18).exit_code == 1


def test_libpq_names_the_database(database18: str) -> None:
    assert call(["install"], **variables(database18)).exit_code == 0
    assert schemas(database18) == ["pgtrickle", "pgtrickle_changes", "pgtrickle_internal", "pgtrickle_state"]
    result = call(["status", "--json"], **variables(database18))
    assert json.loads(result.stdout) == []
    assert "PGHOST, PGPORT, PGDATABASE, PGUSER" in result.stderr
    assert "password" not in result.stderr or "***" in result.stderr


def test_our_variable_comes_before_those_of_libpq(database18: str) -> None:
    elsewhere = variables(database18) | {"PGDATABASE": "nowhere"}
    assert call(["install"], PGTRICKLE_DSN=database18, **elsewhere).exit_code == 0
    assert call(["--dsn", database18, "status"], PGTRICKLE_DSN="dbname=nowhere", **elsewhere).exit_code == 0
    assert call(["status"], **elsewhere).exit_code == 3


def test_an_unknown_service_is_an_error() -> None:
    result = call(["status"], PGSERVICE="no_such_service")
    assert result.exit_code == 3
    assert "no_such_service" in result.stderr


def test_python_takes_the_same_order(database18: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(destination.VARIABLE, raising=False)
    for name, value in variables(database18).items():
        assert value is not None
        monkeypatch.setenv(name, value)
    with pgtrickle.connect() as trickle:
        assert trickle.connection.info.dbname == conninfo_to_dict(database18)["dbname"]
