"""Which failures pass by themselves, and which count."""

from __future__ import annotations

import io
from functools import partial

import psycopg
import pytest
from py4j.clientserver import ClientServerConnection, JavaParameters, PythonParameters
from py4j.java_gateway import GatewayProperty
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PythonException
from pyspark.serializers import read_int

from pgtrickle.errors import EnvironmentProblem, Error, QueryError, ServerError, StateError, Unsupported
from pgtrickle.refresh.failure import as_ours, is_known
from pgtrickle.refresh.retry import Kind, classify


def as_raised(error: Exception) -> Error:
    """The failure as a refresh raises it: ours, from what it was."""
    ours = as_ours(error)
    if ours is not error:
        ours.__cause__ = error
    return ours


def in_a_task(said: str) -> PythonException:
    return PythonException(f"Job aborted.\nTraceback …\nadbc.ProgrammingError: ERROR: {said}\n[SQLSTATE: 38000]")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), Kind.RETRY),
        (psycopg.InterfaceError("the connection is closed"), Kind.RETRY),
        (psycopg.errors.LockNotAvailable(), Kind.RETRY),
        (psycopg.errors.DeadlockDetected(), Kind.RETRY),
        (psycopg.errors.SerializationFailure(), Kind.RETRY),
        (psycopg.errors.QueryCanceled(), Kind.RETRY),
        (psycopg.errors.AdminShutdown(), Kind.RETRY),
        (psycopg.errors.DiskFull(), Kind.RETRY),
        (psycopg.errors.TooManyConnections(), Kind.RETRY),
        (psycopg.errors.IoError(), Kind.RETRY),
        (psycopg.errors.UndefinedColumn(), Kind.SCHEMA),
        (psycopg.errors.UndefinedTable(), Kind.SCHEMA),
        (psycopg.errors.UndefinedFunction(), Kind.SCHEMA),
        (psycopg.errors.DatatypeMismatch(), Kind.SCHEMA),
        (psycopg.errors.DivisionByZero(), Kind.PERMANENT),
        (psycopg.errors.InvalidTextRepresentation(), Kind.PERMANENT),
        (psycopg.errors.InsufficientPrivilege(), Kind.PERMANENT),
        (psycopg.errors.CheckViolation(), Kind.PERMANENT),
        (psycopg.errors.InternalError_(), Kind.PERMANENT),
        (PythonException("Job aborted: Lost executor 1"), Kind.RETRY),
        (in_a_task("canceling statement due to lock timeout SQLSTATE: 55P03"), Kind.RETRY),
        (in_a_task("division by zero SQLSTATE: 22012"), Kind.PERMANENT),
        (in_a_task('column "x" does not exist SQLSTATE: 42703'), Kind.SCHEMA),
        (ServerError("cannot connect"), Kind.RETRY),
        (ServerError("this role may not", code="PT402"), Kind.PERMANENT),
        (EnvironmentProblem("no Java", code="PT510"), Kind.RETRY),
        (StateError("a refresh is under way", code="PT327"), Kind.RETRY),
        (StateError("rows were changed by hand", code="PT330"), Kind.SCHEMA),
        (StateError("rows of the state were", code="PT331"), Kind.SCHEMA),
        (QueryError("column x does not exist", code="PT106"), Kind.PERMANENT),
        (Unsupported("not incremental"), Kind.PERMANENT),
    ],
    ids=lambda value: value.name if isinstance(value, Kind) else f"{type(value).__name__}",
)
def test_kinds(error: Exception, kind: Kind) -> None:
    assert classify(as_raised(error)) is kind
    if not isinstance(error, PythonException):
        assert classify(error) is kind, "as it came, too"


def test_what_is_not_known_is_not_tried_for_ever() -> None:
    assert classify(ZeroDivisionError()) is Kind.PERMANENT
    assert classify(AssertionError("a bug of ours")) is Kind.PERMANENT


def test_the_machine_and_a_dead_spark() -> None:
    for error in (OSError(28, "No space left on device"), ConnectionRefusedError(), TimeoutError()):
        assert classify(error) is Kind.RETRY
    assert classify(Py4JNetworkError("the JVM is gone")) is Kind.RETRY


def test_what_is_raised_when_java_has_ended() -> None:
    """Not only by errors of py4j's own: the connection is refused, or a read ends early."""

    def nothing_there() -> None:
        java = ClientServerConnection(
            JavaParameters(port=1), PythonParameters(), GatewayProperty(None, None), None, None
        )
        java.connect_to_java_server()

    for fails in (nothing_there, partial(read_int, io.BytesIO())):
        with pytest.raises((OSError, EOFError)) as caught:
            fails()
        assert is_known(caught.value)
        assert classify(caught.value) is Kind.RETRY
        assert as_ours(caught.value).code == "PT341"
    with pytest.raises(AttributeError) as bug:
        raise AttributeError("a bug of ours")
    assert not is_known(bug.value)


def test_an_error_raised_from_itself() -> None:
    error = StateError("the stream table was dropped", code="PT301")
    error.__cause__ = error
    assert classify(error) is Kind.PERMANENT


def test_the_state_is_found_behind_our_own_errors() -> None:
    """A query that PostgreSQL refuses for want of a lock is QueryError, but no fault of the query."""
    error = QueryError("canceling statement due to lock timeout")
    error.__cause__ = psycopg.errors.LockNotAvailable()
    assert classify(error) is Kind.RETRY
