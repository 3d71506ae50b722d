"""What a table's refreshes took, kept in the catalog (`pgt_refresh_costs`), and what the next one can be expected to
take by each way. Pure; for `choice.py`.

A refresh leaves the ratio of the time it took to the one that statistics alone tell (`ways.py`). The median of the last
ones of the same way, with about as many changes, corrects the next prediction: one that was slow by chance does not
count. Where there is none, those with more or fewer changes tell. Of a way that was never taken the other evaluator's
tell something: what is expected is halfway, in orders of magnitude, between statistics and these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from statistics import median
from typing import Final, TypeAlias

from pgtrickle.refresh.ways import Size, Way, expected_ms

_KEPT: Final = 5
Ratios: TypeAlias = Mapping[Way, Mapping[int, tuple[float, ...]]]


@dataclass(frozen=True, slots=True)
class Learned:
    """The last ratios of each way, by magnitude of the window, the newest last; and the time that refreshes took since
    another way than the cheapest was tried."""

    ratios: Ratios = field(default_factory=dict)
    since_try_ms: float = 0.0

    @classmethod
    def stored(cls, ways: Mapping[str, Mapping[str, list[float]]], since_try_ms: float) -> Learned:
        """As the catalog has it; a way that this version does not know tells it nothing."""
        ratios = {
            Way(name): {int(magnitude): tuple(found) for magnitude, found in sizes.items()}
            for name, sizes in ways.items()
            if name in {way.value for way in Way}
        }
        return cls(ratios, since_try_ms)

    def to_store(self) -> dict[str, dict[str, list[float]]]:
        return {
            way.value: {str(magnitude): list(found) for magnitude, found in sizes.items()}
            for way, sizes in self.ratios.items()
        }

    def expected_ms(self, way: Way, size: Size) -> float:
        told = expected_ms(way, size)
        ratio = self._ratio(way, size)
        if ratio is not None:
            return told * ratio
        ratio = self._ratio(way.sibling, size)
        if ratio is None:
            return told
        missed = expected_ms(way.sibling, size) * (ratio - 1)  # by the other evaluator, which asks PostgreSQL the same
        return sqrt(told * max(told + missed, told / 4))

    def known(self, way: Way, size: Size) -> int:
        """How many refreshes of this way and magnitude tell."""
        return len(self.ratios.get(way, {}).get(size.magnitude(way), ()))

    def after(self, way: Way, size: Size, took_ms: float, *, tried: bool) -> Learned:
        """With one refresh more."""
        ratio, magnitude = took_ms / expected_ms(way, size), size.magnitude(way)
        sizes = self.ratios.get(way, {})
        last = (*sizes.get(magnitude, ()), round(ratio, 4))[-_KEPT:]
        ratios = {**self.ratios, way: {**sizes, magnitude: last}}
        return Learned(ratios, 0.0 if tried else self.since_try_ms + took_ms)

    def _ratio(self, way: Way, size: Size) -> float | None:
        found = self.ratios.get(way)
        if not found:
            return None
        nearest = min(found, key=lambda known: (abs(known - size.magnitude(way)), -known))
        return median(found[nearest])
