"""A database dumped by pg_dump and restored by pg_restore into another one."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from pgtrickle import embedded
from pgtrickle.programs import binaries


def dump_and_restore(server: embedded.Server, source: str, target: str, *options: str) -> None:
    """`options` are pg_dump's. Whatever pg_restore complains about is an error."""
    programs = binaries(server.version, None)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "dump"
        _run(programs / "pg_dump", "-Fc", "-f", str(file), *options, dsn=source)
        _run(programs / "pg_restore", "--exit-on-error", str(file), dsn=target)


def _run(program: Path, *arguments: str, dsn: str) -> None:
    given = conninfo_to_dict(dsn)
    environment = {"PGPASSWORD": str(given.pop("password")), "PATH": "/usr/bin:/bin"}
    address = " ".join(f"{name}={value}" for name, value in given.items())
    done = subprocess.run(
        [str(program), f"--dbname={address}", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
