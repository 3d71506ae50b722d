"""A SparkSession that the user hands over: whether it can run our tasks, and a session on it with our settings.

Called by `api` when it connects, so that what is missing is said there and not in the first refresh. The user's own
session is left as it is: if its SQL settings differ from ours, we work in a new session on the same Spark.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark import __version__ as of_python
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pgtrickle.errors import EnvironmentProblem, UsageError
from pgtrickle.spark.daemon import OF_EVERY_TASK
from pgtrickle.spark.java_errors import text_of
from pgtrickle.spark.session import SQL_SETTINGS

if TYPE_CHECKING:
    import pyarrow as pa

_fit: Final[WeakKeyDictionary[SparkSession, SparkSession]] = WeakKeyDictionary()
"""Sessions that were found fit, each with the one that we work in."""


def taken_over(session: object) -> SparkSession:
    """The session to work in. An error says what the given one lacks."""
    given = _classic(session)
    require_running(given)
    if given not in _fit:
        _require_same_version(given)
        own = _with_our_settings(given)
        _require_workers(own)
        _fit[given] = own
    return _fit[given]


def require_running(session: SparkSession) -> None:
    """An error if its Spark has stopped or died."""
    context = session.sparkContext
    try:
        runs = context._jsc is not None and not context._jsc.sc().isStopped()
    except (Py4JError, OSError):
        runs = False
    if not runs:
        raise EnvironmentProblem(
            "the SparkSession that was handed over has stopped",
            code="PT483",
            hint="start another one and call pgtrickle.connect(spark=…) again",
        )


def _classic(session: object) -> SparkSession:
    if isinstance(session, SparkSession):
        return session
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise EnvironmentProblem(
            "a session of Spark Connect cannot be handed over",
            code="PT487",
            hint="give its address instead: pgtrickle.connect(master='sc://host:port')",
        )
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
    if all(session.conf.get(name, None) == value for name, value in SQL_SETTINGS.items()):
        return session
    own = session.newSession()
    for name, value in SQL_SETTINGS.items():
        own.conf.set(name, value)
    return own


def _require_workers(session: SparkSession) -> None:
    """Has one Python worker import what every task of ours imports."""
    try:
        session.range(1).mapInArrow(_imported, "name string").collect()
    except (PySparkException, Py4JError) as error:
        raise _of_workers(text_of(error)) from error


def _imported(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run by the worker."""
    import pyarrow

    for _ in batches:
        names = [import_module(name).__name__ for name in OF_EVERY_TASK]
        yield pyarrow.RecordBatch.from_pydict({"name": names})


def _of_workers(said: str) -> EnvironmentProblem:
    hint = f"set PYSPARK_PYTHON={sys.executable} (or the like on each worker) before the SparkSession is started"
    if missing := re.search(r"No module named '([^']+)'", said):
        return EnvironmentProblem(
            f"the Python workers of the SparkSession have no {missing.group(1)}",
            code="PT485",
            hint=f"{hint}, or install pgtrickle with what it needs there",
        )
    other = re.search(r"PYTHON_VERSION_MISMATCH[^\n]*", said)
    unknown = re.search(r'Cannot run program "([^"]+)"', said)
    if other or unknown:
        which = f"cannot be started ({unknown.group(1)})" if unknown else "are of another version than this one"
        return EnvironmentProblem(f"the Python workers of the SparkSession {which}", code="PT484", hint=hint)
    lines = [
        line.strip() for line in said.splitlines() if line.strip() and not line.strip().startswith(("at ", "File"))
    ]
    return EnvironmentProblem(
        f"the Python workers of the SparkSession cannot run our tasks: {lines[-1] if lines else 'no reason given'}",
        code="PT484",
        hint=hint,
    )
