"""Hears the alerts of pgtrickle, and hands each to a command as JSON on its standard input.

    python examples/alerts.py --event refresh_failed --event auto_suspended -- /usr/local/bin/page-somebody

Without a command each alert is a line on the terminal; without `--event` it hears them all. PostgreSQL keeps no
notification for whoever is away: so each time it has connected, it first tells what `pgtrickle.health_check()` finds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Sequence

import psycopg

CHANNEL = "pg_trickle_alert"
PAUSE_S = 5.0


def hear(dsn: str, wanted: Collection[str], command: Sequence[str]) -> None:
    """Until the connection is lost. It listens before it asks for what is wrong, so nothing falls in between."""
    with psycopg.connect(dsn, autocommit=True, application_name="pgtrickle alerts") as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        problems = connection.execute("SELECT * FROM pgtrickle.health_check() WHERE severity <> 'OK'").fetchall()
        for check, severity, detail, hint in problems:
            tell({"event": "health", "check": check, "severity": severity, "detail": detail, "hint": hint}, command)
        for notification in connection.notifies():
            alert = json.loads(notification.payload)
            if not wanted or alert["event"] in wanted:
                tell(alert, command)


def tell(alert: dict[str, object], command: Sequence[str]) -> None:
    line = json.dumps(alert)
    if command:
        subprocess.run(command, input=line, text=True, check=False)
    else:
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--event", action="append", default=[])
    parser.add_argument("command", nargs="*")
    given = parser.parse_args()
    while True:
        try:
            hear(os.environ["PGTRICKLE_DSN"], given.event, given.command)
        except psycopg.OperationalError as error:
            print(f"lost the connection: {error}", file=sys.stderr, flush=True)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
