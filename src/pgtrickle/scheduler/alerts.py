"""When an alert is due: once when a measure passes its mark, and again only after it was well below. Pure.

`capture_loop.py` measures and tells; what was told before lives in `Levels`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pgtrickle.config import Settings

CALM: Final = 0.8
"""The part of a mark below which it counts as left: a measure that stays about the mark is told once."""

Alert = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Levels:
    """The marks that are passed: of the slot's lag, by the event that tells it; of the buffers, by their source."""

    lag: frozenset[str] = frozenset()
    grown: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Measures:
    """What was measured: what the slot holds back (None: there is none), and the rows in each source's buffer."""

    slot_name: str
    held_bytes: int | None
    buffer_rows: Mapping[str, int]


def past(before: bool, value: float, mark: float) -> bool:
    """Whether the mark counts as passed, given whether it did before."""
    return value > (mark * CALM if before else mark)


def alerts(before: Levels, now: Measures, settings: Settings) -> tuple[Levels, tuple[Alert, ...]]:
    """The levels now, and the alerts for marks that were not passed before."""
    marks = {
        "slot_lag_warning": settings.slot_lag_warning_threshold_mb << 20,
        "slot_lag_critical": settings.slot_lag_critical_threshold_mb << 20,
    }
    lag = now.held_bytes or 0
    levels = Levels(
        frozenset(event for event, mark in marks.items() if past(event in before.lag, lag, mark)),
        frozenset(
            source
            for source, rows in now.buffer_rows.items()
            if past(source in before.grown, rows, settings.buffer_growth_warning_rows)
        ),
    )
    told: list[Alert] = [
        {"event": event, "slot_name": now.slot_name, "lag_bytes": lag, "threshold_bytes": mark}
        for event, mark in marks.items()
        if event in levels.lag - before.lag
    ]
    told += [
        {
            "event": "buffer_growth_warning",
            "source_table": source,
            "rows": now.buffer_rows[source],
            "threshold_rows": settings.buffer_growth_warning_rows,
        }
        for source in sorted(levels.grown - before.grown)
    ]
    return levels, tuple(told)
