"""Runs a step file on a backend: after each step the view equals its query; then all is undone again.

run(read(path), backend)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, Protocol

from tests.steps.parser import Step, StepFile

ROOT = Path(__file__).parent
ZSet = Counter[tuple[Any, ...]]


class Backend(Protocol):
    """Something that keeps a view up to date, and a PostgreSQL that answers its query."""

    def setup(self, file: StepFile) -> None:
        """Make the (empty) tables, whatever else is given, and the view."""

    def apply(self, step: Step) -> ZSet:
        """Make the step's changes, bring the view up to date, and say by which weighted rows it changed."""

    def contents(self) -> ZSet:
        """The view as it is kept."""

    def answer(self) -> ZSet:
        """PostgreSQL's own answer to the view's query, now."""

    def close(self) -> None:
        """Remove everything `setup` made."""


def paths() -> list[Path]:
    """All step files, sorted."""
    return sorted(ROOT.glob("*/*.steps"))


def interpreted() -> list[Path]:
    """Those whose expressions the interpreter knows; in `special/` are some that only PostgreSQL evaluates."""
    return [path for path in paths() if path.parent.name != "special"]


def name(path: Path) -> str:
    """A short name for a test id: `joins/self_join`."""
    return f"{path.parent.name}/{path.stem}"


def run(file: StepFile, backend: Backend, *, undo_at_once: bool = False) -> None:
    """Every step forward, then every step undone, each by itself or all in one window; raises AssertionError with the
    step's place and what differs."""
    try:
        backend.setup(file)
        at_first = backend.contents()
        _equal(f"{file.path}: at first", backend.answer(), at_first)
        for step in file.steps:
            _play(f"{file.path}:{step.line}", step, backend)
        back = [step.undone() for step in reversed(file.steps)]
        for step in [reduce(Step.then, back)] if undo_at_once else back:
            _play(f"{file.path}:{step.line} (undone)", step, backend)
        _equal(f"{file.path}: all undone", at_first, backend.contents())
    finally:
        backend.close()


def run_at_once(file: StepFile, backend: Backend, *, between: Callable[[], None]) -> None:
    """All steps forward in one window, then `between`, which changes nothing, then all of them undone in one window."""
    try:
        backend.setup(file)
        there, back = reduce(Step.then, file.steps), reduce(Step.then, [step.undone() for step in reversed(file.steps)])
        at_first = backend.contents()
        _play(f"{file.path}: all steps", there, backend)
        between()
        _equal(f"{file.path}: between", backend.answer(), backend.contents())
        _play(f"{file.path}: all undone", back, backend)
        _equal(f"{file.path}: all undone", at_first, backend.contents())
    finally:
        backend.close()


def _play(place: str, step: Step, backend: Backend) -> None:
    _equal(f"{place}: delta", step.expect, backend.apply(step))
    _equal(f"{place}: contents", backend.answer(), backend.contents())


def _equal(what: str, expected: ZSet, actual: ZSet) -> None:
    expected, actual = _consolidated(expected), _consolidated(actual)
    if expected != actual:
        raise AssertionError(f"{what}\n  expected {_listed(expected)}\n  got      {_listed(actual)}")


def _consolidated(zset: ZSet) -> ZSet:
    return Counter({row: weight for row, weight in zset.items() if weight})


def _listed(zset: ZSet) -> str:
    return "  ".join(sorted(f"{weight:+d} {row}" for row, weight in zset.items())) or "nothing"
