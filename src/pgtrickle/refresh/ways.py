"""The ways to refresh a stream table, and what each can be expected to take by statistics alone. Pure; for `learned.py`
and `choice.py`.

    by changes, on Spark               a job a stage, each of about a tenth of a second whatever it does
    by changes, by PostgreSQL alone    a query a stage
    in full, on Spark                  a job a stage; tasks share the rows
    in full, by PostgreSQL alone       a query a stage; one session reads all rows

The figures were measured on two cores. They only have to tell orders of magnitude: what refreshes really take corrects
them, for each table by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Way(StrEnum):
    """Under the names that the history shows."""

    CHANGES_ON_SPARK = "DIFFERENTIAL on Spark"
    CHANGES_BY_POSTGRESQL = "DIFFERENTIAL by PostgreSQL"
    FULL_ON_SPARK = "FULL on Spark"
    FULL_BY_POSTGRESQL = "FULL by PostgreSQL"

    @classmethod
    def of(cls, *, whole: bool, on_postgres: bool) -> Way:
        if whole:
            return cls.FULL_BY_POSTGRESQL if on_postgres else cls.FULL_ON_SPARK
        return cls.CHANGES_BY_POSTGRESQL if on_postgres else cls.CHANGES_ON_SPARK

    @property
    def whole(self) -> bool:
        return self in {Way.FULL_ON_SPARK, Way.FULL_BY_POSTGRESQL}

    @property
    def on_postgres(self) -> bool:
        return self in {Way.CHANGES_BY_POSTGRESQL, Way.FULL_BY_POSTGRESQL}

    @property
    def sibling(self) -> Way:
        """The same work by the other evaluator."""
        return Way.of(whole=self.whole, on_postgres=not self.on_postgres)


@dataclass(frozen=True, slots=True)
class Size:
    """What a refresh has to do: changes in its window, rows in all tables of the query, stages (states, and one)."""

    changes: int
    rows: float
    stages: int

    def magnitude(self, way: Way) -> int:
        """Refreshes by changes are alike if their windows are: by the number of digits. Those in full all are."""
        return 0 if way.whole else len(str(self.changes))


@dataclass(frozen=True, slots=True)
class _Figures:
    """Milliseconds of a refresh, of each stage, and of each row that a stage takes."""

    refresh: float
    stage: float
    row: float


_FIGURES: Final = {
    Way.CHANGES_ON_SPARK: _Figures(40, 100, 0.02),
    Way.CHANGES_BY_POSTGRESQL: _Figures(10, 5, 0.02),
    Way.FULL_ON_SPARK: _Figures(60, 100, 0.0015),
    Way.FULL_BY_POSTGRESQL: _Figures(20, 5, 0.001),
}


def expected_ms(way: Way, size: Size) -> float:
    """By statistics alone."""
    figures = _FIGURES[way]
    rows = size.rows if way.whole else size.changes
    return figures.refresh + size.stages * figures.stage + rows * figures.row * (1 if way.whole else size.stages)
