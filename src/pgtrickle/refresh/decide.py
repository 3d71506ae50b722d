"""What a refresh will do, and why. Pure: `table_refresh.py` gathers the circumstances and records the decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pgtrickle.errors import Refused


class Action(StrEnum):
    """What a refresh did; the contract's values."""

    NO_DATA = "NO_DATA"
    FULL = "FULL"
    DIFFERENTIAL = "DIFFERENTIAL"
    REINITIALIZE = "REINITIALIZE"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True)
class SourceChanges:
    """One source in the window: its name, rows (an estimate), changes, and whether it was truncated."""

    name: str
    rows: float
    changes: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class Circumstances:
    """All a decision depends on; `full` is the reason for a full refresh that was asked for."""

    table: str
    refresh_mode: str
    effective_mode: str
    mode_reason: str | None
    suspended: bool
    populated: bool
    reinitialize: str | None
    initial: bool
    full: str | None
    max_change_ratio: float
    sources: Mapping[int, SourceChanges]
    unfilled: tuple[str, ...] = ()
    """The stream tables that it reads and that were never filled."""
    by_service: bool = False
    clock: str | None = None
    """What is to be said of values of the clock that moved, if any did."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The action and its reason, as the history shows them."""

    action: Action
    reason: str

    def noting(self, notes: Sequence[str]) -> Decision:
        """The same, with what the plan adds to the reason."""
        return Decision(self.action, "; ".join([self.reason, *notes]))


def decide(given: Circumstances) -> Decision:
    """The first rule that applies; a DIFFERENTIAL table never runs FULL without saying so."""
    if given.suspended:
        return Decision(Action.SKIP, "the stream table is suspended: resume it with status ACTIVE")
    if given.unfilled:
        return too_early(given.table, given.unfilled, by_service=given.by_service)
    if given.initial:
        return Decision(Action.FULL, "first population")
    if given.full:
        return Decision(Action.FULL, given.full)
    if given.effective_mode == "FULL":
        return Decision(Action.FULL, given.mode_reason or "refresh mode is FULL")
    if not given.populated:
        return _first_time(given)
    if given.reinitialize:
        return Decision(Action.REINITIALIZE, given.reinitialize)
    truncated = [source.name for source in given.sources.values() if source.truncated]
    if truncated:
        return Decision(Action.REINITIALIZE, f"{', '.join(truncated)} was truncated")
    return _by_changes(given)


def too_early(table: str, unfilled: Sequence[str], *, by_service: bool) -> Decision:
    """For a table that reads others which were never filled: they are not empty, but unknown, and nothing can be
    computed from them. The service comes back to it; to who asks by hand it is an error."""
    names = ", ".join(unfilled)
    if by_service:
        return Decision(Action.SKIP, f"{names}, which it reads, was never filled")
    raise Refused(
        f"{table} cannot be computed: {names}, which it reads, was never filled",
        code="PT453",
        hint=f"fill that first (`pgtrickle refresh {unfilled[0]} --full`), or leave both to the service:"
        " with initialize => false it fills them when they are due",
    )


def _first_time(given: Circumstances) -> Decision:
    if given.refresh_mode == "DIFFERENTIAL":
        raise Refused(
            f"{given.table} has no baseline to apply changes to",
            code="PT310",
            hint="populate it once with a full refresh (refresh --full, in SQL refresh_stream_table(…, full => true));"
            " a service does when it is first due",
        )
    return Decision(Action.FULL, "not populated yet")


def _by_changes(given: Circumstances) -> Decision:
    total = sum(source.changes for source in given.sources.values())
    if total == 0 and given.clock:
        return Decision(Action.DIFFERENTIAL, given.clock)
    if total == 0:
        return Decision(Action.NO_DATA, "no changes since the last refresh")
    if given.refresh_mode == "AUTO":
        for source in given.sources.values():
            ratio = source.changes / max(source.rows, 1.0)
            if ratio > given.max_change_ratio:
                share = f"{counted(source.changes)} for about {source.rows:.0f} rows of {source.name}"
                return Decision(Action.FULL, f"{share}: above the ratio {given.max_change_ratio:g}")
    reasons = [counted(total), *filter(None, (given.clock,))]
    return Decision(Action.DIFFERENTIAL, "; ".join(reasons))


def counted(changes: int) -> str:
    """In words."""
    return f"{changes} change{'' if changes == 1 else 's'}"
