"""The one warm SparkSession of this process. `api` and the tests open it here; the rest of `spark/` is handed it.

Local by default; any master or a Spark Connect address (`sc://…`) by configuration. Quiet: the terminal belongs to the
user, Spark's own log goes to a file.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from socketserver import BaseServer

from py4j.protocol import Py4JError
from pyspark import SparkContext, accumulators
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from pgtrickle.config import Settings, spark_settings, without_token
from pgtrickle.directories import spark_log
from pgtrickle.errors import EnvironmentProblem, UsageError
from pgtrickle.physical.table_facts import LOOKUP_BATCH
from pgtrickle.spark import archive, connect, dependencies, java, parallelism
from pgtrickle.spark.executors import is_connect, require_workers, send_code
from pgtrickle.spark.java_errors import in_one_line, text_of

SQL_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.adaptive.enabled": "false",  # re-planning costs more than it saves on small deltas
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(LOOKUP_BATCH),
    "spark.sql.leafNodeDefaultParallelism": "1",  # what the driver hands over is small: one task
}

OF_SPEED = {
    "spark.sql.adaptive.enabled",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.leafNodeDefaultParallelism",
}
"""Those of them that results do not depend on."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_CRASHED = "A fatal error has been detected by the Java Runtime Environment"

# pyspark prints each SQL error to stderr besides raising it.
ECHOES = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@dataclass(frozen=True, slots=True)
class _Open:
    session: SparkSession
    master: str
    settings: Mapping[str, str]


_lock = threading.Lock()
_open: _Open | None = None


def configured(settings: Settings) -> SparkSession:
    """The session of this process, as the settings have it."""
    return session(settings.spark_master, {**dependencies.of(settings), **spark_settings(settings.spark_conf)})


def session(master: str = "local[*]", settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process, started if need be. `settings` are Spark's own names and win over ours.

    A second call returns the same session; with another master or other settings it is an error, since one process
    has one Spark.
    """
    global _open
    with _lock:
        if _open is not None and not _alive(_open):
            _let_go(_open)
            _open = None
        if _open is None:
            _quiet()
            asked = dict(settings or {})
            _require_ours(asked)
            _open = _Open(_connect(master, asked) if _is_remote(master) else _start(master, asked), master, asked)
        elif _open.master != master or (settings is not None and dict(settings) != _open.settings):
            raise EnvironmentProblem(
                f"Spark already runs in this process, with master {without_token(_open.master)}",
                code="PT512",
                hint="use the same master and settings, or call pgtrickle.spark.session.stop() first",
            )
        return _open.session


def _require_ours(settings: Mapping[str, str]) -> None:
    """An error for a setting that would change results."""
    for name in sorted(settings.keys() & SQL_SETTINGS.keys() - OF_SPEED):
        if settings[name] != SQL_SETTINGS[name]:
            raise UsageError(
                f"{name} is {SQL_SETTINGS[name]} in pgtrickle: what it computes depends on it",
                code="PT523",
                hint="leave it out",
            )


def _quiet() -> None:
    """Has pyspark write nothing to stderr by itself, which may be a terminal, or a log of one JSON object a line."""
    for name in ECHOES:
        PySparkLogger.getLogger(name).disabled = True
    for server in vars(accumulators).values():  # which of them there are depends on the version
        if isinstance(server, type) and issubclass(server, BaseServer) and server.__module__ == accumulators.__name__:
            server.handle_error = _log_request_error  # type: ignore[assignment, method-assign]


def _log_request_error(_server: BaseServer, request: object, client_address: object) -> None:
    """In the place of a traceback on stderr: Java has ended while it told of its accumulators."""
    logging.getLogger(__name__).warning("a message of Java's could not be read", exc_info=True)


def stop() -> None:
    """Stop the session, if there is one. The next `session()` starts anew."""
    global _open
    with _lock:
        if _open is not None:
            _let_go(_open)
            _open = None


def end(within_s: float) -> None:
    """Stop the session and wait until its Java has ended by itself."""
    process = _java()
    stop()
    if process is not None and process.stdin is not None:
        process.stdin.close()  # by this Java knows that no one needs it any more
        process.wait(within_s)


def use_pool(session: SparkSession, name: str) -> None:
    """What this thread has Spark do shares its cores fairly with what other threads do. (Spark Connect has no such.)"""
    if not is_connect(session):
        session.sparkContext.setLocalProperty("spark.scheduler.pool", name)


def _is_remote(master: str) -> bool:
    return master.startswith(connect.ADDRESS)


def _alive(opened: _Open) -> bool:
    if _is_remote(opened.master):
        return connect.answers(opened.session, opened.master)
    context = SparkContext._active_spark_context
    if context is None or not _java_runs():
        return False
    try:
        return not context._jsc.sc().isStopped()
    except (Py4JError, AttributeError):  # it is just dying; AttributeError: pyspark has begun to clean up
        return False


def _let_go(opened: _Open) -> None:
    if _is_remote(opened.master):
        connect.close(opened.session)
    elif _alive(opened):
        opened.session.stop()
    else:
        _discard()


def _java() -> subprocess.Popen[bytes] | None:
    """The process of Java that pyspark talks to; None if there is none, or someone else started it."""
    found = getattr(SparkContext._gateway, "proc", None)
    assert found is None or isinstance(found, subprocess.Popen)
    return found


def _java_runs() -> bool:
    process = _java()
    return process is None or process.poll() is None


def _discard() -> None:
    """Lets pyspark start Java anew, whatever state it is in: dead (of a full memory, say), with a stopped context, or
    half started. It keeps what was, and would go on to talk to it."""
    process = _java()
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()
    context = SparkContext._active_spark_context
    if context is not None and getattr(context, "_accumulatorServer", None) is not None:
        context._accumulatorServer.shutdown()
    for name in ("_active_spark_context", "_gateway", "_jvm"):
        setattr(SparkContext, name, None)
    for name in ("_instantiatedSession", "_activeSession"):
        setattr(SparkSession, name, None)


def _connect(master: str, settings: Mapping[str, str]) -> SparkSession:
    opened = connect.session_at(master, SQL_SETTINGS, settings)
    try:
        _make_ready(opened)
    except BaseException:
        connect.close(opened)
        raise
    return opened


def _start(master: str, settings: Mapping[str, str]) -> SparkSession:
    if not _java_runs():
        _discard()
    if SparkContext._active_spark_context is not None:
        raise EnvironmentProblem(
            "this process has a Spark session of its own already",
            code="PT512",
            hint="hand it over: pgtrickle.connect(spark=your_session)",
        )
    local = master.startswith("local")
    asked_python = settings.get("spark.pyspark.python")
    found = java.find()
    environment = {"JAVA_HOME": str(java.shim_home(found)), java.LOG: str(spark_log())}
    if local:
        environment |= {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
    if asked_python is not None:  # which pyspark reads of its own launcher's settings only
        environment["PYSPARK_PYTHON"] = asked_python
    written = _size_of_log()
    environment.setdefault("SPARK_LAUNCHER_OPTS", os.environ.get("SPARK_LAUNCHER_OPTS", java.QUICK))
    shared = archive.options(found) if local else []
    with as_file(files("pgtrickle.spark") / "log4j2.properties") as log_config, _environment(environment):
        ours = _settings(master, found, log_config, shared)
        options = [each[_JAVA_OPTIONS] for each in (ours, settings) if _JAVA_OPTIONS in each]
        chosen = {**ours, **settings, _JAVA_OPTIONS: " ".join(options)}
        try:
            started = _built(master, chosen)
        except Exception as error:  # whatever pyspark says when Java dies under it: nothing of it may stay
            if shared and _CRASHED in _logged_since(written):
                _discard()
                archive.discard(found)
                return _start(master, settings)
            reason = _reason(error, written)  # now: an exception of Java's is asked for its text, as long as it runs
            _discard()
            raise EnvironmentProblem(
                f"Spark does not start with master {master} on {found.executable} (Java {found.version}): {reason}",
                code="PT511",
                hint=f"see {spark_log()}",
            ) from error
    if local:
        archive.make_later(found)
        return started
    try:
        _make_ready(started)
    except BaseException:
        started.stop()
        raise
    return started


def _make_ready(opened: SparkSession) -> None:
    """Has executors elsewhere get our code, and show that they can run it."""
    send_code(opened)
    require_workers(opened)
    parallelism.fit(opened)


def _built(master: str, settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _size_of_log() -> int:
    """How much the log holds, before Spark is started; its directory is made if need be."""
    spark_log().parent.mkdir(parents=True, exist_ok=True)
    return spark_log().stat().st_size if spark_log().exists() else 0


def _logged_since(written: int) -> str:
    """What the log has got since it held so much."""
    try:
        with spark_log().open(errors="replace") as log:
            log.seek(written)
            return log.read()
    except OSError:
        return ""


def _reason(error: Exception, written: int) -> str:
    """Why Spark did not start, in one line: what Java said last of an exception, else what pyspark says of it."""
    if "JAVA_GATEWAY_EXITED" in text_of(error):
        found = re.findall(
            r"^(?:.*? |Error: )?[\w.$]*?(?:Exception|Error): (.+)$", _logged_since(written), re.MULTILINE
        )
        if found:
            return str(found[-1])
    return in_one_line(error)


def _settings(master: str, found: java.Java, log_config: Path, shared: Sequence[str]) -> dict[str, str]:
    options = [*shared, f"-Dlog4j2.configurationFile={log_config.as_uri()}", f"-Dpgtrickle.spark.log={spark_log()}"]
    options.append(f"-XX:ErrorFile={spark_log().with_name('java-crash-%p.log')}")  # not in the user's directory
    if found.version >= 23:
        options.append("--sun-misc-unsafe-memory-access=allow")  # else Java warns of what Spark uses
    if found.version >= 22:
        options.append("--enable-native-access=ALL-UNNAMED")
    chosen = {
        **SQL_SETTINGS,
        "spark.app.name": "pgtrickle",
        "spark.driver.memory": "2g",
        _JAVA_OPTIONS: " ".join(f'"{option}"' for option in options),
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",  # stated, so that Spark does not announce its default
        "spark.sql.warehouse.dir": (Path(tempfile.gettempdir()) / "pgtrickle-warehouse").as_uri(),  # unused, not in cwd
    }
    if master.startswith("local"):
        chosen |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.python.daemon.module": dependencies.DAEMON,
            parallelism.SHUFFLE: str(os.cpu_count() or 1),
        }
    return chosen


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables while Spark starts: it copies what it needs, and the user's environment stays the user's."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
