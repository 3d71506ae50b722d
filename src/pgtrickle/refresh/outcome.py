"""Why an attempt to refresh stops before it is done, as a value: by it the loop (`loop.py`) decides what comes next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Skip:
    """It cannot be done now: nothing is, and the history says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Again:
    """It may be done in another attempt: at a snapshot of now, unless it can still be had at the tick's."""

    reason: str
    at_tick: bool = False


@dataclass(frozen=True, slots=True)
class Redefine:
    """These tables must be defined anew on their sources, each for its reason; then it may be done."""

    outdated: Mapping[int, str]

    @property
    def reason(self) -> str:
        return next(iter(self.outdated.values()))


Outcome: TypeAlias = Skip | Again | Redefine


class Stop(Exception):
    """Ends an attempt, and the transactions that it has open, from wherever it is."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome
