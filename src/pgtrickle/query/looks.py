"""Which of several equal values that look different is shown: 1.0 or 1.00, '1 month' or '30 days', 0 or −0. Pure.

    GROUP BY k     of the looks that are in a group: the least by its text
    min(x)         of the rows with the least value: the one that looks least

PostgreSQL may show any of them. Here it is a function of the rows alone, the same wherever they are read: so what a
delta takes away is what another one brought. Where several keys have looks, those shown are of one row. Called by
`render.py`, `postgres/aggregate.py` and what the builder orders (`tie_breaks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgtrickle.model import Column, PgType, quote
from pgtrickle.query.operators import Aggregate, AggregateCall
from pgtrickle.query.whole_numbers import is_whole_number

_NUMERIC = 1700
_FLOATS = frozenset({700, 701})
_BPCHAR = 1042
_OBJECTS = frozenset({24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191})  # regproc, regclass and the like
_LEAST_TIME = ("-2562047788:00:54.775808", "-9223372036854775808 microseconds")
"""Of an interval: as PostgreSQL writes it, and as it can read it."""


def text_form(expression: str, type_: PgType) -> str:
    """SQL of a value's lossless text."""
    if type_.oid == _BPCHAR:  # its cast to text would strip the padding
        return f"textin(bpcharout({expression}))"
    if type_.oid in _OBJECTS:
        return f"({expression})::oid::text"
    if type_.intervals == "all":
        written, readable = _LEAST_TIME
        return f"replace(({expression})::text, '{written}', '{readable}')"
    return f"({expression})::text"


def from_text(expression: str, type_: PgType) -> str:
    """SQL that reads a value's text again, with its collation."""
    through = "oid::" if type_.oid in _OBJECTS else ""
    value = f"({expression})::{through}{type_.name}"
    return f"{value} COLLATE {type_.collation}" if type_.collation else value


def restored(expression: str, type_: PgType) -> str:
    """The same of a text that has the collation of looks."""
    value, collation = from_text(expression, type_), type_.usual
    return f"{value} COLLATE {collation}" if collation and not type_.collation else value


def look(expression: str, type_: PgType) -> str:
    """SQL of what tells apart values that are equal, as text."""
    return f'{text_form(expression, type_)} COLLATE "C"'


def tie_breaks(columns: Iterable[Column]) -> list[str]:
    """What to order rows by that are equal in all of these columns, so that only identical ones tie."""
    return [look(quote(column.name), column.type) for column in columns if not column.type.has_one_look]


def keys_with_looks(aggregate: Aggregate) -> tuple[Column, ...]:
    """The keys of which equal values may look different."""
    keys = (column for column in aggregate.columns if column.name in aggregate.keys)
    return tuple(key for key in keys if not key.type.has_one_look and not is_whole_number(aggregate.input, key.name))


def looks_of(keys: Sequence[Column], alias: str = "") -> str:
    """SQL of the looks of a row's keys, as an array of text."""
    return f"ARRAY[{', '.join(look(alias + quote(key.name), key.type) for key in keys)}]"


def shown(keys: Sequence[Column], looks: str) -> dict[str, str]:
    """SQL of the keys, by name, that have these looks."""
    return {key.name: restored(f"({looks})[{place}]", key.type) for place, key in enumerate(keys, start=1)}


def shown_keys(aggregate: Aggregate) -> list[str]:
    """The keys in the output list of a GROUP BY, each under its own name."""
    varying = keys_with_looks(aggregate)
    chosen = shown(varying, f"min({looks_of(varying)})") if varying else {}
    return [f"{chosen[key]} AS {quote(key)}" if key in chosen else quote(key) for key in aggregate.keys]


def call_sql(call: AggregateCall) -> str:
    """The call over rows that are there."""
    return extreme(call) if is_extreme(call) else call.call.sql


def is_extreme(call: AggregateCall) -> bool:
    """Whether it is PostgreSQL's min or max, of one argument."""
    return call.plain and call.function in {"min", "max"} and call.argument is not None


def extreme(call: AggregateCall, condition: str | None = None, argument: str | None = None) -> str:
    """SQL of min or max; of `argument` instead of its own, if given, and of the rows that meet a condition."""
    assert call.argument is not None
    function, value, type_ = call.function, argument or quote(call.argument.name), call.output.type
    where = "" if condition is None else f" FILTER (WHERE {condition})"
    if _has_one_look(call):
        return f"{function}({value}){where}"
    if type_.oid in _FLOATS:
        zero = f"bool_or({value} = 0 AND {look(value, type_)} = '-0'){where}"
        return f"CASE WHEN {function}({value}){where} = 0 AND {zero} THEN '-0' ELSE {function}({value}){where} END"
    present = f"{value} IS NOT NULL" if condition is None else f"{value} IS NOT NULL AND ({condition})"
    if type_.oid == _NUMERIC:  # the fewer digits are shown, the less is the text
        sign = "" if function == "min" else "-"
        found = f"{function}(ARRAY[{value}::numeric, {sign}scale({value})]) FILTER (WHERE {present})"
        return f"({found})[1]::{type_.name}"
    element = text_form(value, type_) if type_.is_array else value
    order = f"{value}{'' if function == 'min' else ' DESC'}, {look(value, type_)}"
    first = f"(array_agg({element} ORDER BY {order}) FILTER (WHERE {present}))[1]"
    return restored(first, type_)


def _has_one_look(call: AggregateCall) -> bool:
    assert call.argument is not None
    return call.argument.type.has_one_look or call.output.type.has_one_look


def beats(call: AggregateCall, one: str, other: str) -> str:
    """SQL that says whether a value is shown rather than another."""
    assert call.argument is not None
    better = "<" if call.function == "min" else ">"
    type_ = call.output.type
    if _has_one_look(call):
        return f"{one} {better}= {other}"
    return f"({one} {better} {other} OR ({one} = {other} AND {look(one, type_)} <= {look(other, type_)}))"
