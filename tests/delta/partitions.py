"""Window functions, for the interpreter: what a call makes of each row of its partition, in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from pgtrickle.query.operators import Ties, Window, WindowCall
from pgtrickle.query.syntax import dialect
from tests.delta.expressions import evaluate as evaluate_expression
from tests.delta.expressions import parse, value_of
from tests.delta.subselects import sorted_rows

Row = tuple[Any, ...]
Named = dict[str, Any]
Aggregated = Callable[[WindowCall, list[Named]], Any]
"""What an aggregate makes of the rows of a frame."""

_PLACE = "place in the partition"


def windowed(op: Window, rows: Counter[Row], aggregated: Aggregated) -> Counter[Row]:
    """The rows, of whole partitions, each with what the calls make of it."""
    partitions: dict[Row, list[Row]] = {}
    for row in rows.elements():
        partitions.setdefault(key_of(op, row), []).append(row)
    return Counter(found for partition in partitions.values() for found in _beside(op, partition, aggregated))


def key_of(op: Window, row: Row) -> Row:
    """The partition that a row is in."""
    return tuple(row[op.input.names.index(key)] for key in op.keys)


def _beside(op: Window, partition: list[Row], aggregated: Aggregated) -> Iterator[Row]:
    named = [
        {**dict(zip(op.input.names, row, strict=True)), _PLACE: place}
        for place, row in enumerate(sorted(partition, key=repr))
    ]
    made = [_values(call, op.input.names, named, aggregated) for call in op.calls]
    for row in named:
        yield (*(row[name] for name in op.input.names), *(values[row[_PLACE]] for values in made))


def _values(call: WindowCall, names: Sequence[str], rows: list[Named], aggregated: Aggregated) -> dict[int, Any]:
    """What a call gives each row, by its place."""
    order = [] if call.order is None else parse(f"array_agg(1 ORDER BY {call.order.sql})").this.expressions
    ties = parse(f"array_agg(1 ORDER BY {', '.join(names)})").this.expressions if names else []
    ordered = sorted_rows([*order, *ties], rows)
    if call.ties is Ties.ORDERED:
        order = [*order, *ties]
    function = _Function(call, _Partition(ordered, order), aggregated)
    return {row[_PLACE]: function.at(place) for place, row in enumerate(ordered)}


@dataclass(frozen=True)
class _Partition:
    """Rows in the order of a window."""

    rows: list[Named]
    order: list[exp.Expr]

    def by(self, place: int) -> Row:
        return tuple(value_of(part.this, self.rows[place]) for part in self.order)

    def peers(self, place: int) -> list[int]:
        """The places of the rows that tie with one, and its own."""
        return [other for other in range(len(self.rows)) if self.by(other) == self.by(place)]

    def group(self, place: int) -> int:
        """The number of its peer group."""
        return len({self.by(other) for other in range(self.peers(place)[0])})


@dataclass(frozen=True)
class _Function:
    call: WindowCall
    partition: _Partition
    aggregated: Aggregated

    def at(self, place: int) -> Any:
        whole = dialect.parse_expression(self.call.call.sql)
        node = whole.this if isinstance(whole, exp.Filter) else whole
        name, rows, peers = node.name, self.partition.rows, self.partition.peers(place)
        given = [dialect.text(argument) for argument in node.expressions]
        arguments: list[Any] = [None if text == "*" else evaluate_expression(text, rows[place]) for text in given]
        size = len(rows)
        match name:
            case "row_number":
                return place + 1
            case "rank":
                return peers[0] + 1
            case "dense_rank":
                return self.partition.group(place) + 1
            case "percent_rank":
                return peers[0] / (size - 1) if size > 1 else 0.0
            case "cume_dist":
                return (peers[-1] + 1) / size
            case "ntile":
                return _bucket(place, size, arguments[0])
            case "lag" | "lead":
                by = 1 if len(arguments) < 2 else arguments[1]
                other = place + (by if name == "lead" else -by)
                if 0 <= other < size:
                    return evaluate_expression(given[0], rows[other])
                return arguments[2] if len(arguments) > 2 else None
        frame = [rows[other] for other in self._frame(place)]
        if name not in ("first_value", "last_value", "nth_value"):
            return self.aggregated(self.call, frame)
        number = {"first_value": 0, "last_value": len(frame) - 1}.get(name, (arguments[-1] or 1) - 1)
        return evaluate_expression(given[0], frame[number]) if 0 <= number < len(frame) else None

    def _frame(self, place: int) -> list[int]:
        spec = None
        if self.call.frame:
            spec = dialect.parse_expression(f"sum(1) OVER (ORDER BY 1 {self.call.frame})").args["spec"]
        kind = "RANGE" if spec is None else spec.args["kind"]
        start, end = _bound(spec, "start", "UNBOUNDED PRECEDING"), _bound(spec, "end", "CURRENT ROW")
        inside = [other for other in range(len(self.partition.rows)) if self._is_within(kind, place, other, start, end)]
        exclude = "" if spec is None or spec.args.get("exclude") is None else spec.args["exclude"].name
        peers = set(self.partition.peers(place))
        left_out = {
            "CURRENT ROW": {place},
            "GROUP": peers,
            "TIES": peers - {place},
        }.get(exclude, set())
        return [other for other in inside if other not in left_out]

    def _is_within(self, kind: str, place: int, other: int, start: tuple[str, Any], end: tuple[str, Any]) -> bool:
        return self._distance(kind, place, other, *start) >= 0 and self._distance(kind, place, other, *end) <= 0

    def _distance(self, kind: str, place: int, other: int, side: str, offset: Any) -> int:
        """How far a row is behind a bound of another's frame; negative before it."""
        if offset == "UNBOUNDED":
            return 1 if side == "PRECEDING" else -1
        moved = 0 if offset == "CURRENT ROW" else (-offset if side == "PRECEDING" else offset)
        if kind == "ROWS":
            return other - place - moved
        if kind == "GROUPS" or offset == "CURRENT ROW":
            return self.partition.group(other) - self.partition.group(place) - moved
        (mine,), (theirs,) = self.partition.by(place), self.partition.by(other)
        if mine is None or theirs is None:
            return self.partition.group(other) - self.partition.group(place)
        ahead: int = mine - theirs if self.partition.order[0].args.get("desc") else theirs - mine
        return (ahead > moved) - (ahead < moved)


def _bound(spec: exp.WindowSpec | None, which: str, otherwise: str) -> tuple[str, Any]:
    """PRECEDING or FOLLOWING, and by how much."""
    found = None if spec is None else spec.args.get(which)
    if found is None:
        return ("PRECEDING", "UNBOUNDED") if otherwise.startswith("UNBOUNDED") else ("PRECEDING", "CURRENT ROW")
    side = str(spec.args.get(f"{which}_side") or "PRECEDING") if spec is not None else ""
    if isinstance(found, str):
        return side, found
    return side, evaluate_expression(dialect.text(found), {})


def _bucket(place: int, size: int, buckets: int) -> int:
    """ntile: the first buckets have one row more."""
    small, more = divmod(size, buckets)
    wide = more * (small + 1)
    return place // (small + 1) + 1 if place < wide else more + (place - wide) // max(small, 1) + 1
