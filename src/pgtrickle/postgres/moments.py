"""Variance and standard deviation of integers and numerics, from sums that rows can be taken out of. Pure; called by
`call_states.py`.

    N = count(x)    S = Σ x    S₂ = Σ x²            of the finite values
    variance  =  (N·S₂ − S²) / N(N−1)               of a sample; N² of the population
    stddev    =  √ variance, to as many digits

PostgreSQL evaluates the same formula over the same sums, which are exact, so the digits are its own. The sums have the
scale that its have: that of the value with most digits, and twice that.
"""

from __future__ import annotations

from pgtrickle.model import BIGINT, Column, quote
from pgtrickle.postgres.call_state import NUMERIC, CallState, Totals, present, scale_of, summed
from pgtrickle.postgres.wire import WEIGHT

_OF_A_SAMPLE = frozenset({"variance", "var_samp", "stddev", "stddev_samp"})
_ROOTS = frozenset({"stddev", "stddev_samp", "stddev_pop"})
MOMENTS = _OF_A_SAMPLE | _ROOTS | {"var_pop"}


def moment(function: str, prefix: str, argument: Column) -> CallState:
    """How a call of one of `MOMENTS` is kept, of an integer or a numeric."""
    value = f"{quote(argument.name)}::numeric"
    n, first, second, special = (f"{prefix}_{name}" for name in ("n", "s", "s2", "special"))
    totals: Totals = {n: present(argument)}
    if argument.type.oid == NUMERIC.oid:
        finite = f"FILTER (WHERE {value} NOT IN ('NaN', 'Infinity', '-Infinity'))"
        unusual = f"sum({WEIGHT}) FILTER (WHERE {value} IN ('NaN', 'Infinity', '-Infinity'))"
        scales, scale = scale_of(argument, prefix)
        totals |= {special: (BIGINT, unusual), **scales}
    else:
        finite, scale = "", "0"
    totals |= {
        first: (NUMERIC, f"sum({value} * {WEIGHT}) {finite}"),
        second: (NUMERIC, f"sum({value} * {value} * {WEIGHT}) {finite}"),
    }
    least, others = (1, f"({n} - 1)") if function in _OF_A_SAMPLE else (0, n)
    sums = f"SELECT {n}::numeric AS n, round({first}, {scale}) AS s, round({second}, 2 * ({scale})) AS s2"
    spread = f"SELECT sums.n * sums.s2 - sums.s * sums.s AS spread FROM ({sums}) AS sums"
    variance = f"SELECT spread / ({n}::numeric * {others}) AS v FROM ({spread}) AS squares WHERE spread > 0"
    found = root(variance) if function in _ROOTS else variance
    result = f"coalesce(({found}), 0)"  # there is no row where all values are equal
    if special in totals:
        result = f"CASE WHEN {special} > 0 THEN 'NaN'::numeric ELSE {result} END"
    return summed(totals, f"CASE WHEN {n} > {least} THEN {result} END")


def root(variance: str) -> str:
    """The root with the digits of the variance. `sqrt` may have more of them: what it rounded up to a half must not be
    rounded up again."""
    rounded = f"SELECT v, scale(v) AS digits, round(sqrt(v), scale(v)) AS r FROM ({variance}) AS variance"
    half = "(r - ('5e-' || digits + 1)::numeric)"
    return (
        f"SELECT CASE WHEN {half} * {half} > v THEN r - ('1e-' || digits)::numeric ELSE r END FROM ({rounded}) AS root"
    )
