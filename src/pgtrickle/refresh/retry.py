"""What a failed refresh means: to try again by itself, to count against the table, or to define it anew. Pure.

Called by `table_refresh.py`, which records a failure, and by the service, which tries again. What PostgreSQL said is
looked for behind our own errors, since a SQLSTATE tells a lock that was not to be had from a value that cannot be cast,
and our code may be one for both.
"""

from __future__ import annotations

import enum
import re
import traceback
from collections.abc import Iterator
from typing import Final

import psycopg

from pgtrickle.errors import EnvironmentProblem, Error
from pgtrickle.spark.java_errors import text_of


class Kind(enum.Enum):
    """What to do about a failure."""

    RETRY = "retry"
    """It passes by itself and is not the table's fault: try again after a pause, however often."""
    SCHEMA = "schema"
    """The table, or what it is built on, is not as it was: counted, and the next try defines and computes it anew."""
    PERMANENT = "permanent"
    """The query, its data or the table is at fault: counted, and suspended after too many in a row."""


_PASSING: Final = (
    "08",  # the connection
    "40",  # serialization failure, deadlock
    "53",  # disk full, out of memory, too many connections
    "55006",  # object in use
    "55P03",  # a lock that was not to be had
    "57",  # statement timeout, shutdown, crash of another session
    "58",  # input and output of the server's machine
    "72",  # snapshot too old
    "25P03",  # timeouts of a session
    "25P04",
)
_SCHEMA: Final = (
    "3F000",  # no such schema
    "42701",  # names that are taken, missing or not clear
    "42702",
    "42703",
    "42704",
    "42725",
    "42883",
    "42P01",
    "42804",  # types that do not fit
    "42846",
    "0A000",  # "cached plan must not change result type"
)
_PASSING_CODES: Final = frozenset({f"PT{number}" for number in (312, 327, 341, 342, 345, 400, 403, 406, 411, 414, 430)})
"""Our own codes for what passes: a refresh or DDL under way, Spark, rows that did not land, the connection."""
_ANEW_CODES: Final = frozenset({f"PT{number}" for number in (330, 331, 610)})
"""Our own codes for a table, or its state, that is not as we left it: someone changed it, or 1.0 was taken for 1.00."""
_TOLD_A_TASK: Final = re.compile(r"ERROR:.*?SQLSTATE: (\w{5})", re.DOTALL)  # by PostgreSQL; Spark has states of its own


def classify(error: BaseException) -> Kind:
    """What the failure of a refresh means."""
    state = _sqlstate(error)
    if state is not None:
        if state.startswith(_PASSING):
            return Kind.RETRY
        return Kind.SCHEMA if state.startswith(_SCHEMA) else Kind.PERMANENT
    if isinstance(error, Error) and error.code in _ANEW_CODES:
        return Kind.SCHEMA
    return Kind.RETRY if any(_passes(each) for each in _causes(error)) else Kind.PERMANENT


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and those it was raised from, the outermost first; one that was raised from itself is told once."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__


def _sqlstate(error: BaseException) -> str | None:
    """What PostgreSQL called it, wherever it said so: to us, or to a task of Spark."""
    for each in _causes(error):
        if isinstance(each, psycopg.Error):
            return each.sqlstate
        told = None if isinstance(each, Error) else _TOLD_A_TASK.search(text_of(each))
        if told is not None:
            return told.group(1)
    return None


def _passes(error: BaseException) -> bool:
    """Whether an error that PostgreSQL has no state for is one of the machine, the network or Spark."""
    if isinstance(error, Error):
        return isinstance(error, EnvironmentProblem) or error.code in _PASSING_CODES
    if _is_of_spark(type(error).__module__) or of_lost_java(error):
        return True
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError)


def of_lost_java(error: BaseException) -> bool:
    """A connection that is refused or ends, or an object that is no longer there, raised by the libraries that talk to
    Java: what exactly depends on the moment at which it ended."""
    if not isinstance(error, OSError | EOFError | AttributeError):
        return False
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and _is_of_spark(str(frames[-1][0].f_globals.get("__name__")))


def _is_of_spark(module: str) -> bool:
    """Told by name: asking must not load Spark."""
    return module.partition(".")[0] in {"pyspark", "py4j"}
