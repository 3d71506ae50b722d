"""A session of Spark Connect: our process has no Java, and says all it wants over gRPC. Called by `session.py`.

What a cluster's driver is told by settings when it starts, a session here is sent: our code, and the archive of what
tasks import. The server's own settings are its own; one that only it can have is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pgtrickle.config import without_token
from pgtrickle.errors import EnvironmentProblem, UsageError
from pgtrickle.spark.java_errors import in_one_line

ADDRESS: Final = "sc://"
ARCHIVES: Final = "spark.archives"
"""What Spark calls it elsewhere; here it is sent."""
ALWAYS: Final = frozenset(
    {"spark.sql.execution.arrow.pyspark.enabled", "spark.sql.execution.arrow.pyspark.fallback.enabled"}
)
"""Spark Connect speaks Arrow in any case, and warns who tells it to."""
_OPENS_WITHIN_S: Final = 10
_RETRIES: Final = 6
"""Of a call to a server that has gone: about a minute. Spark's own are ten."""


def session_at(address: str, ours: Mapping[str, str], given: Mapping[str, str]) -> SparkSession:
    """A new session there, with these settings. `given` are the user's."""
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")  # it is told besides being raised
    try:
        if find_spec("grpc") is None:  # pyspark would end the process
            raise ImportError("the package grpcio is not installed")
        _require_server(address)
        opened = SparkSession.builder.remote(address).create()
    except (ImportError, PySparkException, TimeoutError) as error:
        raise EnvironmentProblem(
            f"cannot use Spark Connect at {without_token(address)}: {in_one_line(error)}",
            code="PT513",
            hint="check the address, and that pip install 'pgtrickle[connect]' was done",
        ) from error
    try:
        _give_up_soon(opened)
        for name in ours.keys() - ALWAYS:
            opened.conf.set(name, ours[name])
        for name in given.keys() - {ARCHIVES}:
            _set(opened, name, given[name])
        if ARCHIVES in given:
            send_archive(opened, given[ARCHIVES])
        return opened
    except BaseException:
        close(opened)
        raise


def answers(session: SparkSession, address: str | None = None) -> bool:
    """Whether the server still has this session: it forgets those that were idle for an hour, and all at a restart."""
    if session.is_stopped:  # type: ignore[attr-defined]  # sessions of Spark Connect only
        return False
    try:
        if address is not None:
            _require_server(address)
        session.conf.get("spark.sql.ansi.enabled")
    except (PySparkException, TimeoutError, AssertionError):  # that it is another server is told by the last
        return False
    return True


def close(session: SparkSession) -> None:
    """Ends a session, also one that its server has forgotten."""
    with suppress(PySparkException, AssertionError):
        session.stop()


def _require_server(address: str) -> None:
    """An error if no server is to be had there now: pyspark would try for ten minutes."""
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder

    with DefaultChannelBuilder(address).toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_OPENS_WITHIN_S)
        except grpc.FutureTimeoutError as error:
            raise TimeoutError(f"no server answers within {_OPENS_WITHIN_S} s") from error


def _give_up_soon(session: SparkSession) -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])


def _set(session: SparkSession, name: str, value: str) -> None:
    try:
        session.conf.set(name, value)
    except PySparkException as error:
        raise UsageError(
            f"setting spark_conf: a session of Spark Connect cannot have {name}",
            code="PT550",
            hint="Leave it out, and start the server with it.",
        ) from error


def send_archive(session: SparkSession, archive: str) -> None:
    """Sends the archive, and has workers run by what is in it."""
    file, _, place = archive.partition("#")
    if "://" in file:
        raise UsageError(
            f"setting spark_archive: {file} is an address, and Spark Connect takes files of this machine only",
            code="PT551",
            hint="Copy it here and name the file.",
        )
    session.addArtifacts(archive, archive=True)
    session.conf.set("spark.sql.execution.pyspark.python", f"{place}/python")
