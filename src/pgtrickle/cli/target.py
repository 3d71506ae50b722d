"""The database a command works on (`destination.py` chooses it), opened the way its verb needs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgtrickle import db, destination
from pgtrickle.cli.outcome import reported
from pgtrickle.cli.progress import progress
from pgtrickle.directories import spark_log
from pgtrickle.errors import UsageError

if TYPE_CHECKING:
    from pgtrickle.api import Trickle
    from pgtrickle.cli.handing import Worker

AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


@dataclass(frozen=True, slots=True)
class Target:
    """What `--dsn` said, if anything, and whether a password stands there for all to see."""

    given: tuple[str, ...]
    exposed: bool = False
    spark_conf: str | None = None
    """Spark's own settings that --spark-conf gave."""

    def dsns(self) -> tuple[str, ...]:
        """All databases and logins that were named, or the one that is meant."""
        return self.given if len(self.given) > 1 else (self.dsn(),)

    def and_of(self, file: Path | None) -> Target:
        """Also the databases of a file, one a line; those of several owners are in no process list then."""
        if file is None:
            return self
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"cannot read {file}: {error}", code="PT039", hint="give a file with a connection string a line"
            ) from error
        found = tuple(line for line in lines if line and not line.startswith("#"))
        if not found:
            raise UsageError(f"{file} names no database", code="PT039", hint="write a connection string a line")
        return replace(self, given=(*self.given, *found))

    def dsn(self) -> str:
        """The database; which one that is, is said on stderr where no one named it for us."""
        if len(self.given) > 1:
            raise UsageError("--dsn is given several times", code="PT034", hint="only `pgtrickle run` takes several")
        chosen = destination.choose(self.given[0] if self.given else None)
        if not chosen.was_named:
            typer.echo(f"using {db.mask(chosen.dsn)} (named by {chosen.named_by})", err=True)
        return chosen.dsn

    @contextmanager
    def trickle(self, doing: str, *, install_catalog: bool = False) -> Iterator[Trickle]:
        """The database with its catalog; errors inside end the command, `doing` is shown while it lasts.

        Only a verb that makes something installs or upgrades the catalog: looking at a database must not change it.
        """
        with reported(), progress(doing), self._connect(self.dsn(), install_catalog=install_catalog) as trickle:
            yield trickle

    @contextmanager
    def worker(self, doing: str, *, here: bool, install_catalog: bool = False) -> Iterator[Trickle | Worker]:
        """What carries out verbs that may need Spark: the running service if it serves us, or, if there is none or
        `here` or Spark's own settings say so, this process."""
        if here or self.spark_conf is not None:
            with self.trickle(doing, install_catalog=install_catalog) as trickle:
                yield trickle
            return
        with reported(), progress(doing) as line:
            from pgtrickle.cli.handing import Worker

            dsn = self.dsn()

            def here_instead() -> Trickle:
                return self._connect(dsn, install_catalog=install_catalog)

            with db.connect(dsn) as connection, closing(Worker(connection, here_instead, line)) as worker:
                yield worker

    def _connect(self, dsn: str, *, install_catalog: bool) -> Trickle:
        return _connect(dsn, self.spark_conf, install_catalog=install_catalog)

    @contextmanager
    def connection(self, doing: str) -> Iterator[db.Connection]:
        """A bare connection, for verbs that must not install the catalog."""
        with reported(), progress(doing), db.connect(self.dsn()) as connection:
            yield connection


def _connect(dsn: str, spark_conf: str | None, *, install_catalog: bool) -> Trickle:
    """The Python interface in this process, whose Java serves one command."""
    from pgtrickle.api import connect  # here: the verbs that need none of it start without
    from pgtrickle.config import spark_settings
    from pgtrickle.spark import java

    os.environ.setdefault("SPARK_SUBMIT_OPTS", java.QUICK)  # Spark's own variable; for this process only
    _keep_from_terminal()
    given = None if spark_conf is None else spark_settings(spark_conf)
    return connect(dsn, spark_conf=given, install_catalog=install_catalog)


def _keep_from_terminal() -> None:
    """What libraries log goes to Spark's log: py4j tells with a traceback that Java has ended, and we tell it too."""
    root = logging.getLogger()
    if root.handlers:
        return
    with suppress(OSError):
        spark_log().parent.mkdir(parents=True, exist_ok=True)
        root.addHandler(logging.FileHandler(spark_log(), delay=True))


EXPOSED = (
    "the password in --dsn can be read by everyone who sees this machine's process list;"
    " use PGTRICKLE_DSN, a service file (service=NAME) or a passfile instead"
)


def has_password(dsn: str) -> bool:
    """Whether a connection string holds a secret."""
    return db.mask(dsn) != dsn


def target(context: typer.Context) -> Target:
    """The target that the options before the verb named."""
    found = context.obj
    if not isinstance(found, Target):
        raise TypeError("the verb was called without its application")
    return found


def query_text(given: str) -> str:
    """The SQL of `--query`: itself, or the content of the file after `@` (`@-` is stdin)."""
    if not given.startswith("@"):
        return given
    name = given[1:]
    try:
        return typer.get_text_stream("stdin").read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(
            f"cannot read the query from {name}: {reason}", code="PT030", hint="give SQL, or @ and a readable file"
        ) from error
