"""The service's log: one event a line, as JSON on stderr. All parts of the service speak through `say`.

A line has the time, the level, the event and its facts: `{"at": …, "level": "info", "event": "lease_taken", …}`.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, TextIO

from pgtrickle.scheduler.stderr import taken_over
from pgtrickle.spark.java_errors import text_of

_LOG: Final = logging.getLogger("pgtrickle.service")
_LOG.addHandler(logging.NullHandler())  # nothing is printed unless the process asks for it


database: ContextVar[str | None] = ContextVar("database", default=None)
"""The database that this thread works on, where the process serves several: threads pass it on to those they start."""


def say(event: str, level: int = logging.INFO, *, error: BaseException | None = None, **facts: object) -> None:
    """Log one event; an error is told by its class and message."""
    _LOG.log(level, event, extra={"facts": _of_database(facts if error is None else {**facts, "error": _told(error)})})


def trouble(event: str, error: BaseException, **facts: object) -> None:
    """Something failed by a fault of ours that no one foresaw: the whole story goes into the log."""
    _LOG.error(event, extra={"facts": _of_database({**facts, "error": _told(error)})}, exc_info=error)


def _of_database(facts: dict[str, object]) -> dict[str, object]:
    name = database.get()
    return facts if name is None or "database" in facts else {"database": name, **facts}


def to_stderr(level: str = "info") -> None:
    """Have events written to stderr, and nothing else: what libraries, Python or Java have to say becomes events, as do
    errors that no one caught. For the process that is the service."""
    handler = _Log(taken_over(lambda line: say("output", logging.WARNING, line=line)))
    handler.setFormatter(JsonLines())
    logging.getLogger().addHandler(handler)
    set_level(level)
    logging.captureWarnings(True)
    sys.excepthook = lambda kind, error, traceback: trouble("service_broken", error)
    threading.excepthook = _thread_broken


def _thread_broken(given: threading.ExceptHookArgs) -> None:
    error = given.exc_value or SystemError(f"{given.exc_type.__name__} without a value")
    trouble("thread_broken", error, thread=None if given.thread is None else given.thread.name)


class _Log(logging.StreamHandler[TextIO]):
    """The log. Where no one reads it any more, nothing could be said of that either: it would be said to the log."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name of the method it replaces
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def set_level(level: str) -> None:
    """Have only events of this level and above logged: `debug`, `info`, `warning` or `error`."""
    _LOG.setLevel(level.upper())


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **_content(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def _content(record: logging.LogRecord) -> dict[str, object]:
    if record.name == _LOG.name:
        return {"event": record.getMessage(), **getattr(record, "facts", {})}
    return {"event": "library", "library": record.name, "message": record.getMessage()}


def _told(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {text_of(error)}".split())
