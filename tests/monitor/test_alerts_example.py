"""The consumer of docs/operations.md: it hears what it asked for, hands it on, and after a loss says what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.service.running import until

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.db import statement
from pgtrickle.errors import Error

EXAMPLE = Path(__file__).parents[2] / "examples" / "alerts.py"


@contextmanager
def hearing(dsn: str, *arguments: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, str(EXAMPLE), *arguments], env={**os.environ, "PGTRICKLE_DSN": dsn})
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_alerts_are_handed_on(database18: str, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    heard.touch()

    def alerts() -> list[dict[str, object]]:
        return [json.loads(line) for line in heard.read_text().splitlines()]

    append = f"import sys; open({str(heard)!r}, 'a').write(sys.stdin.read() + chr(10))"
    with db.open_session(database18) as conn, Trickle(database18) as trickle:
        trickle._refresher.without_spark = True
        conn.execute("CREATE TABLE t (id int)")
        trickle.create_stream_table("s", "SELECT 10 / id AS q FROM t", refresh_mode="DIFFERENTIAL")
        with hearing(database18, "--event", "refresh_failed", "--", sys.executable, "-c", append):
            until(lambda: [each for each in alerts() if each["event"] == "health"], alerts)
            assert "service" in {each["check"] for each in alerts()}, "none runs here"
            conn.execute("INSERT INTO t VALUES (5)")
            trickle.refresh_stream_table("s")
            conn.execute("INSERT INTO t VALUES (0)")
            with pytest.raises(Error, match="PT343"):
                trickle.refresh_stream_table("s")
            until(lambda: [each for each in alerts() if each["event"] == "refresh_failed"], alerts)
            assert "refresh_completed" not in {each["event"] for each in alerts()}, "that was not asked for"
            (failed,) = (each for each in alerts() if each["event"] == "refresh_failed")
            assert (failed["table"], failed["error_code"]) == ("public.s", "PT343")
            before = len(alerts())
            conn.execute(
                statement(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'pgtrickle alerts' AND datname = current_database()"
                )
            )
            until(lambda: "stream_tables" in {each.get("check") for each in alerts()[before:]}, alerts)
