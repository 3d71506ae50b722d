"""`pgtrickle package FILE`: what Spark's executors need, as one archive. `cli.main` adds this verb."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pgtrickle.cli.outcome import reported
from pgtrickle.cli.progress import progress
from pgtrickle.cli.target import AsJson


def package(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write; its name ends in .tar.gz.")],
    as_json: AsJson = False,
) -> None:
    """Write what Spark's executors need into one archive.

    It fits executors that have the same version of Python on the same platform. Set PGTRICKLE_SPARK_ARCHIVE to it, and
    nothing has to be installed on the machines of a cluster. Write it again after each upgrade.
    """
    from pgtrickle.spark import dependencies  # here: the other verbs start without

    with reported(), progress("writing"):
        found = dependencies.write(file)
        size = file.stat().st_size
    if as_json:
        typer.echo(json.dumps({"file": str(file), "bytes": size, "packages": found}))
    else:
        typer.echo(f"{file}: {size / 1e6:.0f} MB: {', '.join(found)}")
