"""Verbs that define and describe: they need no Spark, and every answer is also there as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from tests.cli.conftest import Call

BIG = "SELECT id, amount FROM orders WHERE amount > 100"


def test_create_without_populating_then_alter_and_drop(call: Call) -> None:
    made = call("create", "big", "--query", BIG, "--no-initialize", "--schedule", "5m", "--json")
    assert made.exit_code == 0, made.output
    facts = json.loads(made.stdout)
    assert facts["table"] == "public.big"
    assert (facts["is_populated"], facts["refresh"], facts["effective_mode"]) == (False, None, "DIFFERENTIAL")
    assert facts["query"] == BIG

    altered = call("alter", "big", "--schedule", "2h", "--refresh-mode", "full", "--status", "suspended", "--json")
    facts = json.loads(altered.stdout)
    assert (facts["schedule"], facts["refresh_mode"], facts["status"]) == ("2h", "FULL", "SUSPENDED")
    assert json.loads(call("alter", "big", "--schedule", "calculated", "--json").stdout)["schedule"] is None

    skipped = call("refresh", "big", "--json")
    assert skipped.exit_code == 1
    assert json.loads(skipped.stdout)["action"] == "SKIP"
    assert [row["status"] for row in json.loads(call("history", "big", "--json").stdout)] == ["SKIPPED"]

    assert json.loads(call("drop", "big", "--json").stdout) == {"dropped": ["public.big"]}
    assert json.loads(call("status", "--json").stdout) == []


def test_the_query_comes_from_a_file_or_from_stdin(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "query.sql"
    file.write_text(BIG)
    assert call("create", "a", "--query", f"@{file}", "--no-initialize").exit_code == 0
    assert call("create", "b", "--query", "@-", "--no-initialize", stdin=BIG).exit_code == 0
    told = json.loads(call("status", "--json").stdout)
    assert [(each["table"], each["query"]) for each in told] == [("public.a", BIG), ("public.b", BIG)]
    missing = call("create", "c", "--query", f"@{tmp_path / 'none.sql'}", "--no-initialize")
    assert missing.exit_code == 2
    assert "PT030" in missing.stderr


def test_a_fallback_to_full_is_said_when_the_table_is_made(call: Call) -> None:
    query = "SELECT id, tableoid::bigint AS relation FROM orders"
    told = call("create", "ranked", "--query", query, "--no-initialize")
    assert told.exit_code == 0
    assert "maintained by FULL refreshes" in told.stdout
    assert "PT234" in told.stdout


def test_status_and_history_as_plain_text(call: Call) -> None:
    call("install")
    assert "no stream tables" in call("status").stdout
    call("create", "big", "--query", BIG, "--no-initialize", "--refresh-mode", "DIFFERENTIAL")
    heading, line = call("status").stdout.splitlines()
    assert heading.split()[:4] == ["table", "status", "mode", "schedule"]
    assert line.split()[:4] == ["public.big", "INITIALIZING", "DIFFERENTIAL", "1m"]
    assert call("history", "big").stdout.split()[0] == "started"


def test_verify_says_no_when_rows_are_missing(call: Call, shop: str) -> None:
    call("create", "big", "--query", BIG, "--no-initialize")
    with psycopg.connect(shop) as connection:
        row = connection.execute(f"SELECT count(*) FROM ({BIG}) AS q").fetchone()
    assert row is not None
    told = call("verify", "big", "--json")
    assert told.exit_code == 1
    (found,) = json.loads(told.stdout)
    assert (found["table"], found["equal"], found["missing"], found["extra"]) == ("public.big", False, row[0], 0)
    assert "DIFFERENT" in call("verify").stdout


def test_explain_of_a_query_and_of_a_table(call: Call) -> None:
    call("create", "big", "--query", BIG, "--no-initialize")
    by_name = json.loads(call("explain", "big", "--json").stdout)
    assert by_name["table"] == "public.big"
    assert "Scan public.orders" in by_name["text"]
    by_query = call("explain", "--query", BIG)
    assert by_query.exit_code == 0
    assert "Scan public.orders" in by_query.stdout
    assert "PT234" in call("explain", "--query", "SELECT tableoid::bigint AS r FROM orders").stdout
    assert "(one partition)" in call("explain", "--query", "SELECT rank() OVER (ORDER BY id) FROM orders").stdout
    assert call("explain").exit_code == 2


def test_install_is_idempotent_and_uninstall_says_what_goes(call: Call, shop: str) -> None:
    first, second = (json.loads(call("install", "--json").stdout) for _ in range(2))
    assert first["applied"]
    assert (second["version"], second["applied"]) == (first["version"], [])
    call("create", "big", "--query", BIG, "--no-initialize")

    dry = json.loads(call("uninstall", "--dry-run", "--json").stdout)
    assert dry["dry_run"]
    assert {"kind": "table", "name": "public.big", "kept": True} in dry["objects"]
    assert json.loads(call("status", "--json").stdout), "a dry run removes nothing"

    gone = call("uninstall", "--drop-tables", "--yes")
    assert gone.exit_code == 0
    assert "drop table public.big" in gone.stdout
    assert "drop schema pgtrickle" in gone.stdout
    with psycopg.connect(shop) as connection:
        left = connection.execute("SELECT to_regclass('public.big'), to_regnamespace('pgtrickle')").fetchone()
    assert left == (None, None)
    assert "nothing of pgtrickle" in call("uninstall", "--yes").stdout


def test_config_shows_every_setting_and_where_it_comes_from(
    call: Call, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTRICKLE_MIN_SCHEDULE_SECONDS", "7")
    with psycopg.connect(shop, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET pg_trickle.differential_max_change_ratio = 0.5')
    rows = {row["name"]: row for row in json.loads(call("config", "--json").stdout)}
    assert (rows["min_schedule_seconds"]["value"], rows["min_schedule_seconds"]["source"]) == (7, "environment")
    assert rows["differential_max_change_ratio"]["value"] == 0.5
    assert rows["differential_max_change_ratio"]["source"] == "database"
    assert rows["spark_master"]["source"] == "default"
    with psycopg.connect(shop) as connection:
        found = connection.execute("SELECT to_regnamespace('pgtrickle')").fetchone()
    assert found == (None,), "config only reads"
    assert "min_schedule_seconds" in call("config").stdout
