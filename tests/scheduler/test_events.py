"""The service's log: levels, from the flag, the environment and the database, the first of these winning."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from typer.testing import CliRunner

from pgtrickle import db
from pgtrickle.cli.main import app
from pgtrickle.fence import Fence
from pgtrickle.scheduler import events
from pgtrickle.scheduler.service import Controls, Service


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(events.JsonLines())
    logger = logging.getLogger("pgtrickle.service")
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("level", "seen"),
    [("debug", "abcd"), ("info", "bcd"), ("warning", "cd"), ("error", "d")],
)
def test_what_a_level_lets_through(log: io.StringIO, level: str, seen: str) -> None:
    events.set_level(level)
    for event, each in zip("abcd", (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR), strict=True):
        events.say(event, each)
    assert "".join(json.loads(line)["event"] for line in log.getvalue().splitlines()) == seen


def test_the_level_is_a_setting_and_a_flag_wins(
    log: io.StringIO, database18: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "_instance", None)  # what a service names this process by is put back afterwards

    def level(**flags: str) -> int:
        def never(_fence: Fence) -> None:
            raise AssertionError

        service = Service(database18, never, never, Controls(), flags)  # type: ignore[arg-type]
        service._load()
        return logging.getLogger("pgtrickle.service").level

    with psycopg.connect(database18, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET pg_trickle.log_level = 'error'").format(name))
    assert level() == logging.ERROR
    monkeypatch.setenv("PGTRICKLE_LOG_LEVEL", "Warning")
    assert level() == logging.WARNING
    assert level(log_level="debug") == logging.DEBUG


def test_the_flag_lists_its_choices() -> None:
    told = CliRunner().invoke(app, ["run", "--log-level", "loud"])
    assert told.exit_code == 2
    assert all(each in told.stderr for each in ("debug", "info", "warning", "error"))
