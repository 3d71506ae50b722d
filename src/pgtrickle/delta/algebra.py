"""The vocabulary of delta plans: operators over weighted rows, plus what only a delta plan has.

A delta plan is an operator tree whose leaves are `Changes` (the window of one source) and `After`/`Before`
(an operator's rows at one end of the window). Every row carries a weight; `InnerJoin` multiplies weights. `LeftJoin`
and `Match` may have a delta on their left: they look at each of its rows by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pgtrickle.query.operators import LeftJoin, Match, Operator, RowWise, Scan, Stateful, WorkingTable, require


@dataclass(frozen=True, slots=True)
class Changes(Operator):
    """ΔT: the window's changes of one source, an update being −old +new."""

    scan: Scan


@dataclass(frozen=True, slots=True)
class After(Operator):
    """R′: the rows of an operator at the end of the window, each of weight one."""

    operator: Operator


@dataclass(frozen=True, slots=True)
class Before(Operator):
    """R: the rows of an operator at the start of the window, each of weight one."""

    operator: Operator


@dataclass(frozen=True, slots=True)
class Plus(Operator):
    """Sum of Z-sets with the same columns."""

    terms: tuple[Operator, ...]

    INPUTS: ClassVar[tuple[str, ...]] = ("terms",)

    def __post_init__(self) -> None:
        for term in self.terms:
            require(term.names == self.names, "terms of a sum have the same columns")


@dataclass(frozen=True, slots=True)
class StatefulDelta(Operator):
    """−old +new of the rows of `kept` that `delta`, of its input, may change: of touched groups, or all first rows."""

    delta: Operator
    kept: Stateful

    INPUTS: ClassVar[tuple[str, ...]] = ("delta",)


@dataclass(frozen=True, slots=True)
class Rematch(Operator):
    """What `delta`, of the right side R of `join`, changes for the rows of `left`: join(left, R′) − join(left, R).

    `left` is the join's left side at one end of the window. Only rows that the delta matches are looked at.
    """

    join: LeftJoin | Match
    left: After | Before
    delta: Operator

    INPUTS: ClassVar[tuple[str, ...]] = ("left", "delta")


@dataclass(frozen=True, slots=True)
class Turned(Operator):
    """What the clock changes of the rows of `operator`: f(X) − f₀(X), X the rows of its input at one end of the window.

    f₀ is the operator with the clock as it was before the window. Only rows that the clock can matter to are looked at.
    """

    operator: RowWise
    rows: After | Before


def empty(operator: Operator) -> Plus:
    """∅ with the operator's columns: the delta of what did not change."""
    return Plus(operator.columns, ())


def is_empty(operator: Operator) -> bool:
    """True for ∅ as written by `empty`; says nothing of plans that merely turn out to have no rows."""
    return isinstance(operator, Plus) and not operator.terms


def plus(*terms: Operator) -> Operator:
    """The sum of at least one term, with nested sums flattened, ∅ dropped and a sum of one term being that term."""
    require(len(terms) >= 1, "a sum needs a term to know its columns")
    flat = tuple(part for term in terms for part in (term.terms if isinstance(term, Plus) else (term,)))
    return flat[0] if len(flat) == 1 else Plus(terms[0].columns, flat)


def after(operator: Operator) -> After:
    """R′ of an operator."""
    return After(operator.columns, operator)


def before(operator: Operator) -> Before:
    """R of an operator."""
    return Before(operator.columns, operator)


def keeps_state(operator: Operator) -> bool:
    """True if the operator's rows can be read off state tables alone: of aggregates and first rows, and joined ones.

    State tables hold the rows of the start of the window, so such an operator is cheap to read at `Before`.
    """
    if isinstance(operator, Stateful | WorkingTable):
        return True
    return bool(operator.inputs) and all(map(keeps_state, operator.inputs))
