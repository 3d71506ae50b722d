"""How one aggregate call is kept, in general: state columns, what a delta contributes to them, and the output. Pure SQL
over a group's state (`s`) and contributions (`d`); the calls themselves are in `call_states.py`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from pgtrickle.model import BIGINT, Column, PgType, quote
from pgtrickle.postgres.wire import WEIGHT

NEVER = "false"
NUMERIC = PgType(1700, "numeric")


@dataclass(frozen=True, slots=True)
class Partial:
    """One state column of a call.

    `whole` computes it from rows of weight one; `merged` combines `s` (the state; NULL for a new group) with `d` (the
    contributions).
    """

    column: Column
    whole: str
    merged: str


@dataclass(frozen=True, slots=True)
class Contribution:
    """What weighted rows add to a group: `sql` over these rows, and `combine` over several contributions, or none."""

    column: Column
    sql: str
    combine: str


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


Totals: TypeAlias = dict[str, tuple[PgType, str]]
"""State columns: the type of each, and its sum over weighted rows."""


def summed(totals: Totals, finish: str) -> CallState:
    """A call whose state columns are weighted sums: new = old + contribution."""
    partials, contributions = [], []
    for name, (type_, weighted_sum) in totals.items():
        column, value = Column(name, type_), f"coalesce({weighted_sum}, 0)::{type_.name}"
        partials.append(Partial(column, value, f"coalesce(s.{quote(name)}, 0) + d.{quote(name)}"))
        contributions.append(Contribution(column, value, f"coalesce(sum({quote(name)}), 0)"))
    return CallState(tuple(partials), tuple(contributions), finish)


def present(argument: Column) -> tuple[PgType, str]:
    return BIGINT, f"sum({WEIGHT}) FILTER (WHERE {quote(argument.name)} IS NOT NULL)"


def scale_of(argument: Column, prefix: str) -> tuple[Totals, str]:
    """The largest scale of a numeric's finite values: what is kept to know it, unless it is declared; and its SQL."""
    declared = _declared_scale(argument.type)
    if declared is not None:
        return {}, str(declared)
    value = quote(argument.name)
    finite = f"{value} NOT IN ('NaN', 'Infinity', '-Infinity')"
    scales = f"sum({WEIGHT} * 10::numeric ^ (18 * scale({value}))) FILTER (WHERE {finite})"
    return {f"{prefix}_scales": (NUMERIC, scales)}, f"(length(trunc({prefix}_scales)::text) - 1) / 18"


def _declared_scale(type_: PgType) -> int | None:
    declared = re.fullmatch(r"numeric\(\d+,(-?\d+)\)", type_.name)
    return max(int(declared.group(1)), 0) if declared else None
