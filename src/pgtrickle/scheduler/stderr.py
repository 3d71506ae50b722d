"""The service's stderr belongs to its log: what others write there becomes events, one a line. Called by `events.py`.

Java, the libraries of this process and Python itself write to file descriptor 2 as they like, above all when something
is wrong. It is replaced by a pipe, which a thread reads; the log is written to what it was before.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import IO, Final, TextIO

_STDERR: Final = 2
_DRAINED_WITHIN_S: Final = 1.0
_LONGEST_LINE: Final = 10_000
"""Of a longer one, the rest is another event."""


def taken_over(tell: Callable[[str], None]) -> TextIO:
    """What stderr was, to write the log to; from now on `tell` is called with each line that is written to stderr."""
    sys.stderr.flush()
    log = os.fdopen(os.dup(_STDERR), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    reading, writing = os.pipe()
    os.dup2(writing, _STDERR)  # inheritable: Java writes there too
    os.close(writing)
    source = os.fdopen(reading, "r", encoding="utf-8", errors="backslashreplace")
    reader = threading.Thread(target=_pass_on, args=(source, tell), name="stderr", daemon=True)
    reader.start()
    atexit.register(_give_back, log, reader)
    return log


def _pass_on(source: IO[str], tell: Callable[[str], None]) -> None:
    while line := source.readline(_LONGEST_LINE):
        if line.strip():
            tell(line.rstrip("\n"))


def _give_back(log: TextIO, reader: threading.Thread) -> None:
    """What was written last is told too, unless someone else still holds the other end of the pipe."""
    sys.stderr.flush()
    log.flush()
    os.dup2(log.fileno(), _STDERR)
    reader.join(_DRAINED_WITHIN_S)
