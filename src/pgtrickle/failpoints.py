"""Named places where a test makes this process die as if by `kill -9`, or hang. Called by the refresh at each of its
steps."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def reach(name: str) -> None:
    """Kill this process if PGTRICKLE_FAILPOINT is `name`, or `@` and a file that says so; stop it for `stop:name`.

    Exactly-once holds only if a crash at any step leaves the old state or the new one. SIGKILL runs no
    `finally`, no rollback and no atexit hook, so the server alone must put things right, as after a real crash. A
    process that is stopped goes on from here when a test lets it (SIGCONT): by then another may have taken over.
    """
    armed = os.environ.get("PGTRICKLE_FAILPOINT", "")
    if armed.startswith("@"):  # a test of a running service arms it when it is ready
        armed = Path(armed[1:]).read_text()
    if armed == name:
        os.kill(os.getpid(), signal.SIGKILL)
    if armed == f"stop:{name}":
        os.kill(os.getpid(), signal.SIGSTOP)
