"""How one aggregate call is kept, in general: state columns, what a delta contributes to them, and the output. Pure SQL
over a group's state (`s`) and contributions (`d`); the calls themselves are in `call_states.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from pgtrickle.model import BIGINT, Column, PgType, quote
from pgtrickle.postgres.wire import WEIGHT

NEVER, ALWAYS = "false", "true"
NUMERIC = PgType(1700, "numeric")
_USUAL_SCALES = range(9)


@dataclass(frozen=True, slots=True)
class Partial:
    """One state column of a call.

    `whole` computes it from rows of weight one; `merged` combines `s` (the state; NULL for a new group) with `d` (the
    contributions).
    """

    column: Column
    whole: str
    merged: str


class What(Enum):
    """What is told of the weighted values of a column, none of which is NaN or infinite, without SQL."""

    PRESENT = "how many are not NULL"
    SUM = "their sum"
    NONE = "nothing: how many are not finite numbers"
    LEAST_CAME = "the least that came"
    LEAST_LEFT = "the least that left"
    MOST_CAME = "the greatest that came"
    MOST_LEFT = "the greatest that left"


@dataclass(frozen=True, slots=True)
class Tally:
    """What of which column."""

    what: What
    argument: str


@dataclass(frozen=True, slots=True)
class Contribution:
    """What weighted rows add to a group: `sql` over these rows, and `combine` over several contributions, or none.

    `plain` is the same over rows that all have weight one, for less. If it is `checked`, it is right unless it is not a
    finite number: then a value of the group is none. `tally`: the same for whoever knows no SQL of PostgreSQL's.
    """

    column: Column
    sql: str
    combine: str
    plain: str
    checked: bool = False
    tally: Tally | None = None


@dataclass(frozen=True, slots=True)
class CallState:
    """How one call is kept: its state columns, what a delta contributes, the output, and when to recompute.

    `additive`: the contributions of all rows are the state.
    """

    partials: tuple[Partial, ...]
    contributions: tuple[Contribution, ...]
    finish: str
    recompute: str = NEVER
    additive: bool = True


@dataclass(frozen=True, slots=True)
class Total:
    """A state column that is a sum: of `weighted` rows; of rows of weight one (`whole`); and of these if all values are
    finite numbers (`plain`; `checked` and `tally` as of a contribution)."""

    type: PgType
    weighted: str
    whole: str
    plain: str | None = None
    checked: bool = False
    tally: Tally | None = None


Totals: TypeAlias = dict[str, Total]
"""State columns that are sums, by name."""


def summed(totals: Totals, finish: str) -> CallState:
    """A call whose state columns are weighted sums: new = old + contribution."""
    partials, contributions = [], []
    for name, total in totals.items():
        column = Column(name, total.type)
        weighted, whole, plain = (
            f"coalesce({found}, 0)::{total.type.name}"
            for found in (total.weighted, total.whole, total.plain or total.whole)
        )
        partials.append(Partial(column, whole, f"coalesce(s.{quote(name)}, 0) + d.{quote(name)}"))
        combine = f"coalesce(sum({quote(name)}), 0)"
        contributions.append(Contribution(column, weighted, combine, plain, total.checked, total.tally))
    return CallState(tuple(partials), tuple(contributions), finish)


def present(argument: Column) -> Total:
    value = quote(argument.name)
    tally = Tally(What.PRESENT, argument.name)
    return Total(BIGINT, f"sum({WEIGHT}) FILTER (WHERE {value} IS NOT NULL)", f"count({value})", tally=tally)


def counted(condition: str, plain: str | None = None) -> Total:
    """The rows that meet a condition."""
    where = f"FILTER (WHERE {condition})"
    return Total(BIGINT, f"sum({WEIGHT}) {where}", f"count(*) {where}", plain)


def not_finite(value: str, scale: int | None) -> str:
    """SQL of the numeric values that are not finite numbers: one with a known scale is no infinity."""
    return f"{value} = 'NaN'" if scale is not None else f"{value} IN ('NaN', 'Infinity', '-Infinity')"


def finite(value: str, scale: int | None) -> str:
    return f"{value} <> 'NaN'" if scale is not None else f"{value} NOT IN ('NaN', 'Infinity', '-Infinity')"


def not_a_number(argument: Column) -> Total:
    """How many of a numeric's values are NaN."""
    return replace(counted(f"{quote(argument.name)} = 'NaN'", plain="0"), tally=Tally(What.NONE, argument.name))


def finite_sum(argument: Column, scale: int | None) -> Total:
    """The sum of the finite values of a numeric."""
    value, tally = quote(argument.name), Tally(What.SUM, argument.name)
    where = f"FILTER (WHERE {finite(value, scale)})"
    weighted = f"sum({value}::numeric * {WEIGHT}) {where}"
    return Total(NUMERIC, weighted, f"sum({value}) {where}", f"sum({value})", checked=True, tally=tally)


def scale_of(argument: Column, scale: int | None, prefix: str) -> tuple[Totals, str]:
    """The largest scale of a numeric's finite values: what is kept to know it, unless types tell; and its SQL."""
    if scale is not None:
        return {}, str(scale)
    value = quote(argument.name)
    where = f"FILTER (WHERE {finite(value, None)})"
    usual = " ".join(f"WHEN {digits} THEN '1e{18 * digits}'::numeric" for digits in _USUAL_SCALES)
    power = f"CASE scale({value}) {usual} ELSE 10::numeric ^ (18 * scale({value})) END"  # a power is dear
    total = Total(NUMERIC, f"sum({WEIGHT} * {power}) {where}", f"sum({power}) {where}", f"sum({power})")
    return {f"{prefix}_scales": total}, f"(length(trunc({prefix}_scales)::text) - 1) / 18"
