"""Settings, connections and failpoints: level 0."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest
from psycopg import sql

from pgtrickle import config, db
from pgtrickle.config import Settings, Value, describe
from pgtrickle.errors import IgnoredSetting, ServerError, UsageError

# The table of CONTRACT.md, and what was added to it.
CONTRACT: dict[str, Value] = {
    "enabled": True,
    "scheduler_interval_ms": 1000,
    "min_schedule_seconds": 1,
    "max_consecutive_errors": 3,
    "max_concurrent_refreshes": 4,
    "parallel_refresh_mode": "on",
    "differential_max_change_ratio": 0.15,
    "block_source_ddl": False,
    "allow_circular": False,
    "max_fixpoint_iterations": 100,
    "user_triggers": "auto",
    "cleanup_use_truncate": True,
    "cdc_mode": "auto",
    "cdc_trigger_mode": "statement",
    "wal_transition_timeout": 300,
    "decoder_wait_timeout": 10,
    "auto_replica_identity": False,
    "slot_lag_warning_threshold_mb": 100,
    "slot_lag_critical_threshold_mb": 1024,
    "buffer_growth_warning_rows": 1_000_000,
    "ivm_recursive_max_depth": 100,
    "audit_interval": 0,
    "trust_stable_functions": False,
    "compare_interval": 0,
    "audit_sample": 16,
    "audit_timeout": 60,
    "enforce_backpressure": True,
    "wal_backpressure_critical_bytes": 1024**3,
    "wal_backpressure_resume_bytes": 512 * 1024**2,
    "diamond_consistency": "atomic",
    "diamond_schedule_policy": "fastest",
    "lease_timeout_ms": 15_000,
    "spark_master": "local[*]",
    "spark_conf": "",
    "spark_archive": "",
    "spark_connections": 0,
    "postgres_rows": 10_000_000,
    "learn_costs": True,
    "spare_source": False,
    "log_level": "info",
}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in fields(Settings):
        monkeypatch.delenv(f"PGTRICKLE_{each.name.upper()}", raising=False)


def test_names_and_defaults_are_the_contracts() -> None:
    assert {row.name: row.default for row in describe()} == CONTRACT
    assert Settings.load() == Settings(**CONTRACT)  # type: ignore[arg-type]


def test_every_setting_is_explained() -> None:
    for row in describe():
        assert row.help.endswith("."), row.name
        assert row.type in ("bool", "int", "float", "str")
        assert (row.value, row.source) == (row.default, "default")


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().enabled = False  # type: ignore[misc]


def test_the_later_source_wins(database18: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with db.connect(database18) as conn:
        name = sql.Identifier(conn.info.dbname)
        for setting, value in (("scheduler_interval_ms", "500"), ("cdc_mode", "wal"), ("enabled", "off")):
            conn.execute(
                sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                    name, sql.SQL(f"pg_trickle.{setting}"), sql.Literal(value)
                )
            )
    monkeypatch.setenv("PGTRICKLE_CDC_MODE", "trigger")
    monkeypatch.setenv("PGTRICKLE_ENABLED", "")
    with db.connect(database18) as conn:
        found = Settings.load(conn, {"scheduler_interval_ms": 250, "max_consecutive_errors": None})
        assert (found.scheduler_interval_ms, found.cdc_mode, found.enabled) == (250, "trigger", False)
        sources = {row.name: row.source for row in describe(conn, {"scheduler_interval_ms": 250})}
    assert sources["scheduler_interval_ms"] == "flag"
    assert sources["cdc_mode"] == "environment"
    assert sources["enabled"] == "database"
    assert sources["spark_master"] == "default"


@pytest.mark.parametrize(
    ("text", "size"), [("512 MB", 512 << 20), ("2gb", 2 << 30), ("1048576", 1 << 20), ("64kB", 64 << 10)]
)
def test_sizes(text: str, size: int) -> None:
    assert Settings.load(
        flags={"wal_backpressure_resume_bytes": text, "wal_backpressure_critical_bytes": "4TB"}
    ) == Settings(wal_backpressure_resume_bytes=size, wal_backpressure_critical_bytes=4 << 40)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("enabled", "perhaps", "true or false"),
        ("max_consecutive_errors", "0", "at least 1"),
        ("max_consecutive_errors", "1.5", "a whole number"),
        ("differential_max_change_ratio", "1.2", "between 0.0 and 1.0"),
        ("differential_max_change_ratio", "nan", "a number"),
        ("cdc_mode", "magic", "one of auto, trigger, wal"),
        ("wal_backpressure_critical_bytes", "1 parsec", "a size"),
        ("wal_backpressure_resume_bytes", "2GB", "larger than wal_backpressure_critical_bytes"),
        ("slot_lag_warning_threshold_mb", "5000", "larger than slot_lag_critical_threshold_mb"),
        ("change_buffer_schema", "elsewhere", "no setting 'change_buffer_schema': change buffers are always in"),
        ("colour", "red", "no setting 'colour'"),
    ],
)
def test_wrong_values_are_named(name: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        Settings.load(flags={name: value})
    assert error.value.hint


def test_a_setting_that_was_removed_is_told_of(database18: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing ever read it: what was set goes on to have no effect, and that is said."""
    monkeypatch.setenv("PGTRICKLE_CHANGE_BUFFER_SCHEMA", "mine")
    with db.connect(database18) as conn, pytest.warns(IgnoredSetting) as told:
        assert Settings.load(conn) == Settings()
    assert [str(each.message).split(":")[0] for each in told] == [
        "the setting change_buffer_schema has no effect any more",
    ]


def test_every_setting_is_read_by_something() -> None:
    """A setting that nobody reads is a lie. SQL reads some by pgtrickle_internal.setting('name', …)."""
    source = Path(config.__file__).parent
    texts = [path.read_text() for path in source.rglob("*.py") if path.name != "config.py"]
    texts += [path.read_text() for path in source.rglob("*.sql")]
    for each in fields(Settings):
        used = re.compile(rf"settings\.{each.name}\b|Settings\.load\(.*\)\.{each.name}\b|setting\('{each.name}'")
        assert any(used.search(text) for text in texts), each.name


def test_the_hint_says_where_the_wrong_value_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGTRICKLE_CDC_MODE", "x")
    with pytest.raises(UsageError) as error:
        Settings.load()
    assert error.value.hint == "Correct PGTRICKLE_CDC_MODE."


def test_text_forms_do_not_depend_on_the_role(database18: str) -> None:
    with db.connect(database18) as conn:
        name = sql.Identifier(conn.info.dbname)
        for setting, value in (
            ("DateStyle", "German"),
            ("IntervalStyle", "iso_8601"),
            ("extra_float_digits", "-5"),
            ("bytea_output", "escape"),
            ("statement_timeout", "1h"),
        ):
            conn.execute(
                sql.SQL("ALTER DATABASE {} SET {} = {}").format(name, sql.Identifier(setting), sql.Literal(value))
            )
    with db.connect(database18, application_name="test", autocommit=False) as conn:
        row = conn.execute(
            "SELECT date '2024-02-01'::text, interval '1 mon 2 days'::text, (0.1::float8 + 0.2)::text,"
            " '\\x01'::bytea::text, current_setting('statement_timeout'), current_setting('application_name')"
        ).fetchone()
        assert row == ("2024-02-01", "1 mon 2 days", "0.30000000000000004", "\\x01", "0", "test")
        assert not conn.autocommit


def test_an_unreachable_server_is_said_without_the_password() -> None:
    with pytest.raises(ServerError) as error:
        db.connect("postgresql://someone:se%20cret@127.0.0.1:1/nowhere", connect_timeout=2)
    assert error.value.code == "PT400"
    assert error.value.hint
    assert "cret" not in str(error.value)
    assert "127.0.0.1" in str(error.value)


def test_a_wrong_database_is_a_server_error(database18: str) -> None:
    with pytest.raises(ServerError, match="does not exist"):
        db.connect(f"{database18} dbname=nowhere")


def test_a_broken_dsn_is_a_usage_error_without_the_password() -> None:
    with pytest.raises(UsageError) as error:
        db.connect("host=h password='my secret' oops")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:hidden@h/d",
        "postgresql://u@h/d?password=hidden&sslmode=require",
        "host=h password=hidden dbname=d",
        "host=h password='hidden hidden' dbname=d",
        "host=h sslpassword=hidden",
        "postgresql://u:hidden@h:port/d",
        "password=hidden broken",
    ],
)
def test_mask(dsn: str) -> None:
    assert "hidden" not in db.mask(dsn)
    assert "***" in db.mask(dsn)


def test_mask_leaves_a_dsn_without_password_alone() -> None:
    assert db.mask("postgresql://u@h:5/d") == "postgresql://u@h:5/d"


def test_failpoint_kills_at_its_name_only() -> None:
    script = (
        "from pgtrickle.failpoints import reach\n"
        "reach('other'); print('passed', flush=True); reach('here'); print('not reached')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PGTRICKLE_FAILPOINT": "here", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == "passed\n"
