"""The CPU time that PostgreSQL has spent on sessions of ours, as the kernel of its machine counts it.

On that machine the kernel tells everybody. From elsewhere the server can be asked to read the same file, which takes
the rights of `pg_read_server_files` and to call `pg_read_file`. Otherwise it is not known. Parallel workers are
processes of their own that end with their query: they are never counted. Called by refreshes and by Spark's tasks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

_KERNEL: Final = Path("/proc")
_MOST_APART_S: Final = 1.0
"""Between the start of a process and that of its session; by two clocks."""
_STARTED: Final = 19
"""The place of the start among what `stat` tells after the command."""
_MAY_READ: Final = (
    "pg_catalog.pg_has_role('pg_read_server_files', 'USAGE') AND coalesce(pg_catalog.has_function_privilege("
    "pg_catalog.to_regprocedure('pg_catalog.pg_read_file(text, bigint, bigint, boolean)')::pg_catalog.oid,"
    " 'EXECUTE'), false)"
)
UNKNOWN: Final = "NULL::pg_catalog.float8"


class Told(Enum):
    """Who tells."""

    BY_KERNEL = "the kernel of this machine"
    BY_SERVER = "the server, asked to read a file"
    BY_NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Backends:
    """Server processes of sessions that are open."""

    pids: tuple[int, ...]
    told: Told

    @classmethod
    def of(cls, found: Sequence[Sequence[object]]) -> Backends:
        """Those of the rows that `question` gave."""
        pids = tuple(int(str(pid)) for pid, _, _ in found)
        if pids and all(_runs_here(int(str(pid)), float(str(started))) for pid, started, _ in found):
            return cls(pids, Told.BY_KERNEL)
        return cls(pids, Told.BY_SERVER if pids and all(may_read for _, _, may_read in found) else Told.BY_NOBODY)

    def here_ms(self) -> float | None:
        """Milliseconds by the kernel, if it is the one that tells."""
        if self.told is not Told.BY_KERNEL:
            return None
        with suppress(OSError, ValueError):
            return sum(_nanoseconds(pid) for pid in self.pids) / 1e6
        return None

    @property
    def sql(self) -> str:
        """SQL of the same by the server, if it is the one that tells; or else of NULL."""
        if self.told is not Told.BY_SERVER:
            return UNKNOWN
        read = "pg_catalog.pg_read_file('/proc/' || pid || '/schedstat', 0, 100, true)"
        return (
            f"(SELECT CASE WHEN pg_catalog.bool_and({read} ~ '^[0-9]+ ') THEN"
            f" pg_catalog.sum(pg_catalog.split_part({read}, ' ', 1)::pg_catalog.float8) / 1e6 END"
            f" FROM pg_catalog.unnest('{{{', '.join(map(str, self.pids))}}}'::pg_catalog.int4[]) AS pid)"
        )


def question(which: str = "pg_catalog.pg_backend_pid()") -> str:
    """What to ask the server: of sessions of this login, or of the one that asks."""
    return (
        f"SELECT pid, extract(epoch FROM backend_start)::pg_catalog.float8, {_MAY_READ}"
        f" FROM pg_catalog.pg_stat_activity WHERE pid OPERATOR(pg_catalog.=) {which}"
    )


def _runs_here(pid: int, started: float) -> bool:
    """Whether the process of that number on this machine is the server's: another machine, or another container, has
    numbers of its own."""
    with suppress(OSError, ValueError, IndexError):
        command, _, rest = (_KERNEL / str(pid) / "stat").read_text().partition("(")[2].rpartition(")")
        since_boot = int(rest.split()[_STARTED]) / os.sysconf("SC_CLK_TCK")
        began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot
        return command.startswith("postgres") and abs(began - started) < _MOST_APART_S and _nanoseconds(pid) > 0
    return False


def _nanoseconds(pid: int) -> int:
    return int((_KERNEL / str(pid) / "schedstat").read_text().split()[0])
