"""Conditions above a grouping that depend on how a key looks: 1.0 and 1.00 are one group. Pure; called by `compile.py`.

    SELECT k, count(*) FROM t GROUP BY k HAVING k::text = '1.0'

Of equal values that look different, a group has one, and which is not definite. PostgreSQL may even evaluate the
condition on the rows, before it groups them: then it counts those of this look only. So does it with a condition on
DISTINCT, UNION, INTERSECT and EXCEPT. The rule: a condition may do with such a key whatever gives equal values for
equal values (compare it, calculate with it, round it, make an integer of it); a condition on its look is refused. What
is only shown is not: there, any of the looks is right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum

from sqlglot import exp

from pgtrickle.model import Column, Expr, PgType
from pgtrickle.query.expression import conjuncts, node_of
from pgtrickle.query.operators import (
    Aggregate,
    AggregateCall,
    Expand,
    Filter,
    InnerJoin,
    LeftJoin,
    Match,
    Operator,
    Project,
    Recursive,
    UnionAll,
    Window,
    WorkingTable,
    walk,
)
from pgtrickle.query.syntax.special_calls import SpecialCall


class Representation(Enum):
    """What a column, or an expression, has of a key with looks: its value, by type; or what shows how it looks."""

    NUMBER = "number"
    INTERVAL = "interval"
    TEXT = "text"  # of a collation, or a type, for which different strings are equal
    PADDED = "padded"  # char without a length: equal whatever blanks it ends with
    JSON = "json"
    OTHER = "other"
    IMAGE = "image"  # a key that is the look of another one
    SHOWN = "shown"


_KINDS = {
    1700: Representation.NUMBER,
    700: Representation.NUMBER,
    701: Representation.NUMBER,
    1186: Representation.INTERVAL,
    3802: Representation.JSON,
}
_STRINGS = frozenset({18, 19, 25, 1042, 1043})
_BPCHAR = 1042

_TEXTS = (exp.DType.TEXT, exp.DType.VARCHAR, exp.DType.CHAR, exp.DType.BPCHAR, exp.DType.NAME)
_EXACT = (
    exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT, exp.DType.BOOLEAN, exp.DType.DATE, exp.DType.TIME,
    exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.UUID, exp.DType.TIMETZ,
)  # fmt: skip
#: What all shows how its argument looks: its text, its scale, the parts of an interval.
_SHOWING = frozenset(
    {
        "to_char", "format", "concat", "concat_ws", "quote_literal", "quote_nullable", "scale", "to_json", "to_jsonb",
        "row_to_json", "array_to_json", "array_to_string", "json_build_array", "json_build_object",
        "jsonb_build_array", "jsonb_build_object", "json_object", "jsonb_object", "jsonb_extract_path_text",
        "jsonb_array_elements_text", "jsonb_each_text", "jsonb_pretty", "octet_length", "pg_column_size",
        "justify_days", "justify_hours", "justify_interval", "date_part", "date_trunc", "date_add", "date_subtract",
        "atan2", "atan2d", "numeric_send", "float8send", "float4send", "interval_send", "textin", "numeric_out",
        "float8out", "float4out", "interval_out", "xmlelement", "xmlforest",
    }
)  # fmt: skip
#: What gives identical results for equal arguments.
_EVEN = frozenset({"round", "trunc", "floor", "ceil", "ceiling", "sign", "min_scale", "trim_scale", "width_bucket"})
_PASSING = frozenset({"coalesce", "nullif", "greatest", "least"})
_OF_TEXT = frozenset({"NORMALIZE", "SUBSTRING", "TRIM"})
_MATCHING = (exp.Like, exp.ILike, exp.RegexpLike, exp.RegexpILike, exp.SimilarTo)


def first_condition(tree: Operator, prone: Collection[int]) -> Expr | None:
    """A condition of the tree that depends on the look of a key, if there is one; `prone` are the types, by oid, whose
    equal values may look different."""
    columns = _Columns(prone)
    columns.learn_recursions(tree)
    for node in walk(tree):
        if isinstance(node, Filter | InnerJoin | LeftJoin | Match) and node.condition is not None:
            known = columns.read_by(node)
            for part in conjuncts(node.condition):
                images = any(known.get(name) is Representation.IMAGE for name in part.columns)
                if not images and look_of(node_of(part), known) is Representation.SHOWN:
                    return part
    return None


def key_types(tree: Operator) -> set[int]:
    """The types of all keys that may have looks."""
    grouped = (node for node in walk(tree) if isinstance(node, Aggregate | Recursive))
    return {column.type.oid for node in grouped for column in node.columns if not column.type.has_one_look}


class _Columns:
    """What the columns of operators have of keys with looks."""

    def __init__(self, prone: Collection[int]) -> None:
        self._prone = prone
        self._known: dict[int, tuple[Operator, dict[str, Representation]]] = {}
        self._working: dict[tuple[str, ...], list[Representation | None]] = {}

    def learn_recursions(self, tree: Operator) -> None:
        """What the rows of a round have, in each recursion: what the first rows have, or those made of them."""
        for node in reversed([node for node in walk(tree) if isinstance(node, Recursive)]):  # what is within, first
            for _ in node.inputs:
                self._working[node.working.names] = self._of_terms(node)
                self._known.clear()

    def _of_terms(self, node: Recursive) -> list[Representation | None]:
        terms = ([self.of(term).get(name) for name in term.names] for term in node.inputs)
        found = [_worst(given) for given in zip(*terms, strict=True)]
        if not node.distinct:
            return found
        own = (_kind(column.type) if self._is_prone(column.type) else None for column in node.columns)
        return [_worst(both) for both in zip(found, own, strict=True)]

    def read_by(self, node: Operator) -> dict[str, Representation]:
        """Of the columns that a condition of the node reads."""
        return {name: look for below in node.inputs for name, look in self.of(below).items()}

    def of(self, operator: Operator) -> dict[str, Representation]:
        if id(operator) not in self._known:
            self._known[id(operator)] = (operator, self._find(operator))
        return self._known[id(operator)][1]

    def _find(self, operator: Operator) -> dict[str, Representation]:
        below = self.read_by(operator)
        match operator:
            case Project():
                pairs = zip(operator.columns, operator.expressions, strict=True)
                return _present((column, self._made(column, made, below)) for column, made in pairs)
            case Expand():
                made = look_of(node_of_call(operator.call), below)
                return {**below, **_present((column, made) for column in operator.made if self._is_prone(column.type))}
            case UnionAll():
                branches = [[self.of(branch).get(name) for name in branch.names] for branch in operator.branches]
                return _present(
                    (column, _worst(given))
                    for column, given in zip(operator.columns, zip(*branches, strict=True), strict=True)
                )
            case Recursive():
                return _present(zip(operator.columns, self._of_terms(operator), strict=True))
            case WorkingTable():
                known = self._working.get(operator.names) or [None] * len(operator.columns)
                return _present(zip(operator.columns, known, strict=True))
            case Aggregate():
                return self._grouped(operator, below)
            case Match():
                return self.of(operator.left)
            case Window():
                calls = operator.calls
                return {**below, **_present((each.output, self._made(each.output, each.call, below)) for each in calls)}
        return below

    def _made(self, column: Column, made: Expr, below: Mapping[str, Representation]) -> Representation | None:
        if not any(name in below for name in made.columns):
            return None
        look = look_of(node_of(made), below)
        return (
            look
            if look is Representation.SHOWN or look is Representation.IMAGE or self._is_prone(column.type)
            else None
        )

    def _grouped(self, node: Aggregate, below: Mapping[str, Representation]) -> dict[str, Representation]:
        images = _images(node)
        found: dict[str, Representation] = {}
        prone = {column.name for column in node.columns if column.name in node.keys and self._is_prone(column.type)}
        chosen = {call.output for call in node.calls if _is_choice(call, prone)}
        for column in node.columns:
            is_key = column.name in node.keys
            known = below.get(column.name) if is_key else None
            if column.name in images:
                found[column.name] = Representation.IMAGE
            elif known is Representation.SHOWN or known is Representation.IMAGE:
                found[column.name] = known
            elif (is_key or column in chosen) and column.name not in images.values() and self._is_prone(column.type):
                found[column.name] = _kind(column.type)
        return found

    def _is_prone(self, type_: PgType) -> bool:
        return not type_.has_one_look and (type_.oid in self._prone or not type_.deterministic)


def _is_choice(call: AggregateCall, keys: Collection[str]) -> bool:
    """Whether an aggregate takes one of several equal values: an extreme, or (DISTINCT ON) a key of the first row."""
    if call.function in ("count", "sum", "avg"):
        return False
    return call.function in ("min", "max") or not set(keys).isdisjoint(call.call.columns)


def _kind(type_: PgType) -> Representation:
    if type_.oid in _STRINGS or not type_.deterministic:
        return Representation.PADDED if type_.oid == _BPCHAR and type_.deterministic else Representation.TEXT
    return _KINDS.get(type_.oid, Representation.OTHER)


def _images(node: Aggregate) -> dict[str, str]:
    """The keys that are the text of another key: with these, a group has one look of that. (See `keyed.domain`.)"""
    if not isinstance(node.input, Project):
        return {}
    made = dict(zip(node.input.names, node.input.expressions, strict=True))
    keys = {made[name].sql: name for name in node.keys if name in made}
    found: dict[str, str] = {}
    for name in node.keys:
        text = node_of(made[name]) if name in made else exp.Null()
        while isinstance(text, exp.Collate | exp.Paren):
            text = text.this
        if isinstance(text, exp.Cast) and text.to.this in _TEXTS:
            of = keys.get(text.this.unnest().sql(dialect="postgres"))
            if of is not None:
                found[name] = of
    return found


def _present(pairs: Iterable[tuple[Column, Representation | None]]) -> dict[str, Representation]:
    return {column.name: look for column, look in pairs if look is not None}


def _worst(looks: Iterable[Representation | None]) -> Representation | None:
    found = [look for look in looks if look is not None]
    return Representation.SHOWN if Representation.SHOWN in found else found[0] if found else None


def node_of_call(call: Expr) -> exp.Expr:
    """A call in FROM as an expression; ROWS FROM (…) is none, and read as its columns."""
    is_list = call.sql.upper().startswith(("ROWS FROM", "LATERAL", "(", "UNNEST"))
    names = [exp.column(exp.to_identifier(name, quoted=True)) for name in call.columns]
    return exp.Array(expressions=names) if is_list else node_of(call)


def look_of(node: exp.Expr, known: Mapping[str, Representation]) -> Representation | None:
    """What an expression has of keys with looks, given what its columns have."""
    if isinstance(node, exp.Column):
        return known.get(node.name)
    look = _worst(look_of(part, known) for part in node.iter_expressions())
    if look is None or look is Representation.SHOWN:
        return look
    match node:
        case exp.Cast():
            return _cast(node, look)
        case SpecialCall():
            return look if node.name in _OF_TEXT else Representation.SHOWN
        case exp.Extract():
            shows = look is Representation.INTERVAL and node.this.name.upper() != "EPOCH"
            return Representation.SHOWN if shows else None
        case exp.JSONExtractScalar() | exp.JSONBExtractScalar():
            return Representation.SHOWN
        case exp.DPipe():
            return Representation.SHOWN if look in (Representation.NUMBER, Representation.INTERVAL) else look
        case exp.Add() | exp.Sub():
            return (
                Representation.SHOWN if look is Representation.INTERVAL else look
            )  # a month and 30 days later is not the same day
        case exp.Collate():
            return Representation.SHOWN if look is Representation.TEXT else look
        case exp.Anonymous():
            return _called(node.name.lower(), look)
        case exp.Dot():
            return (
                Representation.SHOWN if isinstance(node.expression, exp.Anonymous) else look
            )  # of a user: it may do anything
    if isinstance(node, _MATCHING) or (isinstance(node, exp.Is) and isinstance(node.expression, exp.Var | exp.JSON)):
        return Representation.SHOWN if look is Representation.TEXT else None
    is_truth = isinstance(node, exp.Predicate | exp.Connector | exp.Not | exp.Is)
    return None if is_truth else look


def _cast(node: exp.Cast, look: Representation) -> Representation | None:
    to = node.to.this
    if to in _TEXTS:
        return {Representation.PADDED: None, Representation.TEXT: Representation.TEXT}.get(look, Representation.SHOWN)
    if to in _EXACT or (to is exp.DType.DECIMAL and node.to.expressions):
        return None
    numbers = (exp.DType.DECIMAL, exp.DType.FLOAT, exp.DType.DOUBLE)
    same = to in numbers or to in (exp.DType.INTERVAL, exp.DType.JSONB, exp.DType.ARRAY)
    return look if same and (to is not exp.DType.JSONB or look is Representation.JSON) else Representation.SHOWN


def _called(name: str, look: Representation) -> Representation | None:
    if name in _SHOWING:
        return None if look is Representation.PADDED and name != "octet_length" else Representation.SHOWN
    if name in _EVEN:
        return None
    return Representation.SHOWN if look is Representation.TEXT and name not in _PASSING else look
