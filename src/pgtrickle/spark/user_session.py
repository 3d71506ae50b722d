"""A SparkSession that the user hands over: whether it can run our tasks, and a session on it with our settings.

Called by `api` when it connects, so that what is missing is said there and not in the first refresh. The user's own
session is left as it is: if its SQL settings differ from ours, we work in a new session on the same Spark.
"""

from __future__ import annotations

from typing import Final, cast
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark import __version__ as of_python
from pyspark.sql import SparkSession

from pgtrickle.config import Settings
from pgtrickle.errors import EnvironmentProblem, UsageError
from pgtrickle.spark import connect, dependencies, parallelism
from pgtrickle.spark.executors import is_connect, require_workers, send_code
from pgtrickle.spark.session import SQL_SETTINGS

_fit: Final[WeakKeyDictionary[SparkSession, SparkSession]] = WeakKeyDictionary()
"""Sessions that were found fit, each with the one that we work in."""


def taken_over(session: object) -> SparkSession:
    """The session to work in. An error says what the given one lacks."""
    given = _session(session)
    require_running(given)
    if given not in _fit:
        _require_same_version(given)
        own = _with_our_settings(given)
        archive = dependencies.archive_of(Settings.load())
        if archive and is_connect(own):
            connect.send_archive(own, archive)
        if is_connect(own) or not str(own.sparkContext.master).startswith("local"):
            send_code(own)
        require_workers(own)
        if is_connect(own):
            parallelism.fit(own)
        _fit[given] = own
    return _fit[given]


def require_running(session: SparkSession) -> None:
    """An error if its Spark has stopped or died."""
    if not _runs(session):
        raise EnvironmentProblem(
            "the SparkSession that was handed over has stopped",
            code="PT483",
            hint="start another one and call pgtrickle.connect(spark=…) again",
        )


def _runs(session: SparkSession) -> bool:
    if is_connect(session):
        return connect.answers(session)
    context = session.sparkContext
    try:
        return context._jsc is not None and not context._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


def _session(session: object) -> SparkSession:
    if isinstance(session, SparkSession):
        return session
    if is_connect(session):
        return cast("SparkSession", session)
    raise UsageError(
        f"spark must be a SparkSession, not {type(session).__name__}",
        code="PT483",
        hint="hand over SparkSession.builder.getOrCreate(), or name a master: pgtrickle.connect(master='local[2]')",
    )


def _require_same_version(session: SparkSession) -> None:
    """What pickles tasks and what runs them must be of one minor version, and of the one that we were tested with."""
    if _minor(session.version) != _minor(of_python):
        raise EnvironmentProblem(
            f"the SparkSession runs Spark {session.version}, and this Python has pyspark {of_python}",
            code="PT486",
            hint=f"use Spark {_minor(of_python)} on both sides; unset SPARK_HOME to use the one that pyspark brings",
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _with_our_settings(session: SparkSession) -> SparkSession:
    """The session itself if it has the settings that results depend on, else a new one beside it."""
    left_out = connect.ALWAYS if is_connect(session) else frozenset[str]()
    wanted = {name: value for name, value in SQL_SETTINGS.items() if name not in left_out}
    if all(session.conf.get(name, None) == value for name, value in wanted.items()):
        return session
    if not hasattr(session, "newSession"):  # Spark Connect before 4.3
        raise EnvironmentProblem(
            "a session of Spark Connect that is handed over must have the settings that results depend on",
            code="PT487",
            hint="give its address instead: pgtrickle.connect(master='sc://host:port')",
        )
    own = session.newSession()
    for name, value in wanted.items():
        own.conf.set(name, value)
    return own
