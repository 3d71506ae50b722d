"""Which way a refresh takes (`ways.py`), and why. Pure; asked by `table_refresh.py`, which puts it into the history,
and by `explain`.

A mode that was asked for by name is what it says, on Spark. AUTO takes the way that is expected to be the cheapest
(`learned.py`), within bounds: PostgreSQL alone only up to `postgres_rows` rows, by changes only for small windows; in
full only if that gains enough. Now and then it tries another, whose figures may be old: if it is not expected to take
several times as long, and costs but a small part of the time that refreshes took since the last try.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pgtrickle.physical.table_facts import SMALL_CHANGES
from pgtrickle.refresh.learned import Learned
from pgtrickle.refresh.ways import Size, Way

_MANY_CHANGES: Final = 1000
"""On Spark, with fewer the differential way costs what starting it costs."""
_MARGIN: Final = 1.3
_LEAST_GAIN_MS: Final = 10.0
"""What a full refresh must gain to be taken where changes would do: times vary, and it writes all of its state."""
_MOST_TIMES: Final = 3.0
"""A way that is expected to take longer than so many times the best is never tried."""
_SHARE: Final = 0.05
"""Of the time that refreshes took, what tries may cost."""
_START_MS: Final = 4000.0
"""Of Spark."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the choice is bounded by: `learn_costs`, `postgres_rows` and `spare_source` are settings; `may_full`: a full
    refresh is possible where changes would do; `spark_is_warm`: this process has refreshed on Spark before."""

    learn_costs: bool = True
    postgres_rows: int = 0
    spare_source: bool = False
    may_full: bool = True
    spark_is_warm: bool = True


@dataclass(frozen=True, slots=True)
class Choice:
    """The way, what the history is told of it, and the milliseconds expected of each way that there was. `tried`: it is
    not the one that was expected to be the cheapest."""

    way: Way
    reason: str | None = None
    expected: Mapping[Way, float] = field(default_factory=dict)
    tried: bool = False

    @property
    def reasons(self) -> tuple[str, ...]:
        return () if self.reason is None else (self.reason,)


def choose(refresh_mode: str, size: Size, learned: Learned, bounds: Bounds, *, whole: bool) -> Choice:
    """`whole`: changes cannot tell, or are too many."""
    if refresh_mode != "AUTO":
        return Choice(Way.of(whole=whole, on_postgres=False))
    ways = list(_open(size, bounds, whole=whole))
    if not bounds.learn_costs:
        usual = next(way for way in ways if way.whole == whole)
        reason = f"evaluated by PostgreSQL alone: its tables have about {size.rows:.0f} rows"
        return Choice(usual, reason if usual.on_postgres else None)
    expected = {way: learned.expected_ms(way, size) for way in ways}
    priced = {way: ms + _cold(way, bounds) for way, ms in expected.items()}
    best = _cheapest(priced, whole=whole)
    other = _worth_a_try(best, expected, priced, learned, size)
    way = other or best
    return Choice(way, _reason(way, priced, tried=other is not None), expected, tried=other is not None)


def on_spark_after_all(choice: Choice, why: str) -> Choice:
    """If PostgreSQL was chosen to apply changes, and the plan turns out to be too large for it."""
    return Choice(choice.way.sibling, f"on Spark: {why}", choice.expected)


def _open(size: Size, bounds: Bounds, *, whole: bool) -> Iterator[Way]:
    """The ways that there are, what is usual first."""
    by_postgresql = not bounds.spare_source and bounds.postgres_rows > 0 and size.rows <= bounds.postgres_rows
    if not whole:
        if by_postgresql and size.changes <= SMALL_CHANGES:
            yield Way.CHANGES_BY_POSTGRESQL
        yield Way.CHANGES_ON_SPARK
    if whole or (bounds.may_full and bounds.learn_costs):
        if by_postgresql:
            yield Way.FULL_BY_POSTGRESQL
        if whole or size.changes >= _MANY_CHANGES:
            yield Way.FULL_ON_SPARK


def _cold(way: Way, bounds: Bounds) -> float:
    return 0.0 if way.on_postgres or bounds.spark_is_warm else _START_MS


def _cheapest(priced: Mapping[Way, float], *, whole: bool) -> Way:
    best = min((way for way in priced if way.whole == whole), key=priced.__getitem__)
    if whole:
        return best
    full = min((way for way in priced if way.whole), key=priced.__getitem__, default=best)
    gains = priced[best] > priced[full] * _MARGIN and priced[best] > priced[full] + _LEAST_GAIN_MS
    return full if gains else best


def _worth_a_try(
    best: Way, expected: Mapping[Way, float], priced: Mapping[Way, float], learned: Learned, size: Size
) -> Way | None:
    """Another way, of which least is known."""
    others = [
        way
        for way in expected
        if way is not best
        and expected[way] <= expected[best] * _MOST_TIMES
        and priced[way] - expected[best] <= learned.since_try_ms * _SHARE
        and learned.since_try_ms >= expected[best] / _SHARE
    ]
    return min(others, key=lambda way: (learned.known(way, size), expected[way]), default=None)


def _reason(way: Way, priced: Mapping[Way, float], *, tried: bool) -> str | None:
    where = "evaluated by PostgreSQL alone" if way.on_postgres else "on Spark"
    others = ", ".join(f"{each} {ms:.0f}" for each, ms in priced.items() if each is not way)
    if not others and not way.on_postgres:
        return None
    told = f"{where}{', to try it' if tried else ''}: about {priced[way]:.0f} ms expected"
    return f"{told} ({others})" if others else told
