"""Named places where a test makes this process die as if by `kill -9`, or hang. Called by the refresh at each of its
steps, and by tasks of Spark."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def reach(name: str) -> None:
    """Kill this process if PGTRICKLE_FAILPOINT is `name`, or `@` and a file that says so; stop it for `stop:name`. What
    stands in a file after `once:` happens to the first process that comes by, and to no other.

    Exactly-once holds only if a crash at any step leaves the old state or the new one. SIGKILL runs no
    `finally`, no rollback and no atexit hook, so the server alone must put things right, as after a real crash. A
    process that is stopped goes on from here when a test lets it (SIGCONT): by then another may have taken over.
    """
    armed = os.environ.get("PGTRICKLE_FAILPOINT", "")
    if armed.startswith("@"):  # a test of a running service arms it when it is ready
        armed = _armed_by(Path(armed[1:]), name)
    if armed == name:
        os.kill(os.getpid(), signal.SIGKILL)
    if armed == f"stop:{name}":
        os.kill(os.getpid(), signal.SIGSTOP)


def _armed_by(file: Path, name: str) -> str:
    """What a file says; what it says once, the first that comes by is told."""
    said = file.read_text()
    once = said.removeprefix("once:")
    if once == said or once.removeprefix("stop:") != name:
        return said
    try:
        file.with_name(f"{file.name}.claimed").touch(exist_ok=False)
    except FileExistsError:
        return ""
    return once
