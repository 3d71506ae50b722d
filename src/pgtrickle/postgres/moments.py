"""Variance and standard deviation of integers and numerics, from sums that rows can be taken out of. Pure; called by
`call_states.py`.

    N = count(x)    S = Σ x    S₂ = Σ x²            of the finite values
    variance  =  (N·S₂ − S²) / N(N−1)               of a sample; N² of the population
    stddev    =  √ variance, to as many digits

PostgreSQL evaluates the same formula over the same sums, which are exact, so the digits are its own. The sums have the
scale that its have: that of the value with most digits, and twice that.
"""

from __future__ import annotations

from pgtrickle.model import Column, quote
from pgtrickle.postgres.call_state import (
    NUMERIC,
    CallState,
    Tally,
    Total,
    Totals,
    What,
    counted,
    finite,
    finite_sum,
    not_finite,
    present,
    scale_of,
    summed,
)
from pgtrickle.postgres.wire import WEIGHT

_OF_A_SAMPLE = frozenset({"variance", "var_samp", "stddev", "stddev_samp"})
_ROOTS = frozenset({"stddev", "stddev_samp", "stddev_pop"})
MOMENTS = _OF_A_SAMPLE | _ROOTS | {"var_pop"}


def moment(function: str, prefix: str, argument: Column, scale: int | None) -> CallState:
    """How a call of one of `MOMENTS` is kept, of an integer or a numeric; `scale` is that of a numeric, if known."""
    value = quote(argument.name)
    n, first, second, special = (f"{prefix}_{name}" for name in ("n", "s", "s2", "special"))
    totals: Totals = {n: present(argument)}
    if argument.type.oid == NUMERIC.oid:
        scales, digits = scale_of(argument, scale, prefix)
        totals |= {special: counted(not_finite(value, scale), plain="0"), **scales, first: finite_sum(argument, scale)}
        where = f"FILTER (WHERE {finite(value, scale)})"
    else:
        digits, where = "0", ""
        totals |= {first: integer_sum(argument)}
    square = f"{value}::numeric * {value}"
    totals[second] = Total(NUMERIC, f"sum({square} * {WEIGHT}) {where}", f"sum({square}) {where}", f"sum({square})")
    least, others = (1, f"({n} - 1)") if function in _OF_A_SAMPLE else (0, n)
    sums = f"SELECT {n}::numeric AS n, round({first}, {digits}) AS s, round({second}, 2 * ({digits})) AS s2"
    spread = f"SELECT sums.n * sums.s2 - sums.s * sums.s AS spread FROM ({sums}) AS sums"
    variance = f"SELECT spread / ({n}::numeric * {others}) AS v FROM ({spread}) AS squares WHERE spread > 0"
    found = root(variance) if function in _ROOTS else variance
    result = f"coalesce(({found}), 0)"  # there is no row where all values are equal
    if special in totals:
        result = f"CASE WHEN {special} > 0 THEN 'NaN'::numeric ELSE {result} END"
    return summed(totals, f"CASE WHEN {n} > {least} THEN {result} END")


def integer_sum(argument: Column) -> Total:
    """The sum of an integer's values, as a numeric."""
    value, tally = quote(argument.name), Tally(What.SUM, argument.name)
    return Total(NUMERIC, f"sum({value}::numeric * {WEIGHT})", f"sum({value})", tally=tally)


def root(variance: str) -> str:
    """The root with the digits of the variance. `sqrt` may have more of them: what it rounded up to a half must not be
    rounded up again."""
    rounded = f"SELECT v, scale(v) AS digits, round(sqrt(v), scale(v)) AS r FROM ({variance}) AS variance"
    half = "(r - ('5e-' || digits + 1)::numeric)"
    return (
        f"SELECT CASE WHEN {half} * {half} > v THEN r - ('1e-' || digits)::numeric ELSE r END FROM ({rounded}) AS root"
    )
