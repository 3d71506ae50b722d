"""How many of the random queries are maintained incrementally, and why the others are not: counted in a run, told at
its end (`suite.py`)."""

from __future__ import annotations

from collections import Counter

from pgtrickle.errors import Unsupported

MAINTAINED = "DIFFERENTIAL"
found: Counter[str] = Counter()
"""By the code of the refusal, or `MAINTAINED`."""


def count(refusal: Unsupported | None, counted: Counter[str] = found) -> None:
    counted[MAINTAINED if refusal is None else refusal.code] += 1


def share(counted: Counter[str]) -> float:
    return counted[MAINTAINED] / counted.total()


def summary(counted: Counter[str]) -> str:
    others = "".join(f"; {code}: {number}" for code, number in counted.most_common() if code != MAINTAINED)
    return f"{counted[MAINTAINED]} of {counted.total()} random queries maintained in DIFFERENTIAL{others}"
