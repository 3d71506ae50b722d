"""`pgtrickle postgres start|stop|status`: the embedded server. `cli.main` adds this app."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pgtrickle import embedded
from pgtrickle.cli.outcome import NO, reported

app = typer.Typer(help="Start, stop and look at the embedded PostgreSQL.", no_args_is_help=True)


class PgVersion(StrEnum):
    """The versions that the wheel carries."""

    V18 = "18"
    V16 = "16"


DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Where its data are; a directory of its own by default.")
]
Port = Annotated[
    int | None, typer.Option("--port", help="Port on 127.0.0.1; by default the last one, else a free one.")
]
Version = Annotated[PgVersion, typer.Option("--pg-version", help="Version of PostgreSQL.")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


@app.command()
def start(
    data_dir: DataDir = None, port: Port = None, pg_version: Version = PgVersion.V18, as_json: AsJson = False
) -> None:
    """Start the server and print its DSN; data stay between starts."""
    with reported():
        _show(embedded.start(data_dir, port, int(pg_version)), as_json)


@app.command()
def stop(data_dir: DataDir = None, pg_version: Version = PgVersion.V18, as_json: AsJson = False) -> None:
    """Stop the server; nothing happens if it is not running."""
    directory = _directory(data_dir, pg_version)
    with reported():
        stopped = embedded.stop(directory)
    if as_json:
        typer.echo(json.dumps({"stopped": stopped, "data_dir": str(directory)}))
    else:
        typer.echo("stopped" if stopped else f"not running: {directory}")


@app.command()
def status(data_dir: DataDir = None, pg_version: Version = PgVersion.V18, as_json: AsJson = False) -> None:
    """Say whether the server runs, and where; exit 1 if it does not."""
    directory = _directory(data_dir, pg_version)
    with reported():
        server = embedded.status(directory)
    if server is not None:
        _show(server, as_json)
        return
    typer.echo(json.dumps({"running": False, "data_dir": str(directory)}) if as_json else f"not running: {directory}")
    raise typer.Exit(NO)


def _directory(data_dir: Path | None, version: PgVersion) -> Path:
    return data_dir.absolute() if data_dir is not None else embedded.default_data_dir(int(version))


def _show(server: embedded.Server, as_json: bool) -> None:
    if as_json:
        facts = {"dsn": server.dsn, "port": server.port, "version": server.version, "pid": server.pid}
        typer.echo(json.dumps({"running": True, **facts, "data_dir": str(server.data_dir)}))
    else:
        typer.echo(f"PostgreSQL {server.version} runs on {server.host}:{server.port} (pid {server.pid})")
        typer.echo(f"data: {server.data_dir}")
        typer.echo(f"dsn:  {server.dsn}")
