"""What a check of `pgtrickle doctor` has found. Made by `readiness.py` and the checks that it calls."""

from __future__ import annotations

from dataclasses import dataclass

from pgtrickle.record import Record


@dataclass(frozen=True, slots=True)
class Finding(Record):
    """What was looked at: `severity` is OK, WARN or ERROR, `mend` the statement or command that puts it right, if there
    is one."""

    check_name: str
    severity: str
    detail: str
    mend: str | None = None
