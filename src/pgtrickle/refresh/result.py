"""What a refresh answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pgtrickle.record import Record
from pgtrickle.refresh.decide import Action


@dataclass(frozen=True, slots=True)
class RefreshResult(Record):
    """One refresh as the caller and the history see it; `phases` are milliseconds by name."""

    action: Action
    reason: str
    rows_inserted: int = 0
    rows_deleted: int = 0
    changes_read: int = 0
    duration_ms: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
