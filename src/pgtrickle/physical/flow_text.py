"""The physical plan as text. Pure; called by `refresh/explain.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType

from pgtrickle.physical.flow import (
    Computed,
    Concat,
    Flow,
    HashJoin,
    HashMatch,
    JointLookup,
    KeepFirst,
    KeepRecursion,
    LandAggregate,
    LandResult,
    LandWindow,
    Lookup,
    Merged,
    Native,
    Net,
    Physical,
    Read,
    ReadResult,
    SparkSql,
)
from pgtrickle.query.continued_windows import Extent
from pgtrickle.query.operators import FirstPlaces, MatchKind


@dataclass(frozen=True, slots=True)
class Measured:
    """How many rows there really were, and how long that took, where it was measured."""

    rows: int
    ms: float | None = None

    def __str__(self) -> str:
        return f"really {self.rows}" if self.ms is None else f"really {self.rows} in {self.ms:.1f} ms"


Actual = Mapping[Flow, Measured]


def physical_text(
    physical: Physical,
    flows: Actual = MappingProxyType({}),
    stages: Sequence[Measured] = (),
    *,
    estimated: bool = True,
) -> str:
    """Stages in order, each with its flow, then how each table is read and why; with what was measured of them."""
    return "\n".join([*_stages(physical, flows, stages), *_choices(physical, estimated=estimated)])


def _stages(physical: Physical, actual: Actual, measured: Sequence[Measured]) -> Iterator[str]:
    told: set[Flow] = set()
    for (position, step), took in zip_longest(enumerate(physical.stages, start=1), measured):
        done = "" if took is None else f" ({took})"
        match step:
            case LandAggregate(number=number, input=flow):
                yield f"{position}. land contributions to the groups of aggregate {number}{done}"
                yield from _flow(flow, 1, actual, told)
            case LandWindow(number=number, input=flow):
                yield f"{position}. land rows, and compute {_extent(step)}{done}"
                yield from _flow(flow, 1, actual, told)
            case KeepFirst(number=number):
                yield f"{position}. read the first rows {number}, and compare them with those kept{done}"
            case KeepRecursion(number=number, changed=None, why=None):
                yield f"{position}. evaluate recursion {number}{done}"
            case KeepRecursion(number=number, changed=None):
                yield f"{position}. evaluate recursion {number}, and compare it with the rows kept{done}"
            case KeepRecursion(number=number):
                yield f"{position}. bring recursion {number} up to date, round by round{done}"
            case LandResult(input=flow):
                yield f"{position}. land the result{done}"
                yield from _flow(flow, 1, actual, told)
            case ReadResult(aggregate=number):
                yield f"{position}. take the result from aggregate {number}{done}"


def _extent(stage: LandWindow) -> str:
    """What of a window is computed again."""
    window, number = stage.window, stage.number
    match stage.extent, window.first:
        case Extent.FIRST_PLACES, FirstPlaces(last=last):
            whose = "each partition" if window.keys else "all rows"
            return f"the first {last} places of {whose} of window {number} again"
        case Extent.FROM_CHANGE, _:
            on = "in each partition from the first changed row on" if window.keys else "from the first changed row on"
            return f"window {number} again, {on}"
    which = "the partitions" if window.keys else "all rows, which are one partition,"
    return f"{which} of window {number} again"


def _flow(flow: Flow, depth: int, actual: Actual, told: set[Flow]) -> Iterator[str]:
    """A flow and those below it; of one that is `told` already only that it is asked for once."""
    pad = "   " * depth
    if flow in told and isinstance(flow, JointLookup | Lookup):
        yield f"{pad}the same rows as above"
        return
    told.add(flow)
    counted = actual.get(flow)
    rows = f"about {flow.rows:.0f} rows" if counted is None else f"about {flow.rows:.0f} rows, {counted}"
    match flow:
        case Read(what=what):
            yield f"{pad}read {what} ({rows})"
        case Merged(aggregate=number):
            yield f"{pad}read the changes of aggregate {number}{'' if counted is None else f' ({counted})'}"
        case Lookup(input=source, what=what):
            yield f"{pad}lookup {what} ({rows})"
            yield from _flow(source, depth + 1, actual, told)
        case Native(by_spark=made):
            yield from _flow(made, depth, actual if counted is None else {**actual, made: counted}, told)
        case Computed(input=source, sql=sql):
            yield f"{pad}{_by_spark(sql)} on Spark ({rows})"
            yield from _flow(source, depth + 1, actual, told)
        case HashMatch(left=left, right=right, kind=kind):
            yield f"{pad}{_MATCHES[kind]} on Spark ({rows})"
            yield from _flow(left, depth + 1, actual, told)
            yield from _flow(right, depth + 1, actual, told)
        case Net(terms=terms):
            yield f"{pad}the sum on Spark ({rows}) of"
            for sign, part in terms:
                if sign < 0:
                    yield f"{pad}   less"
                yield from _flow(part, depth + 1, actual, told)
        case JointLookup(flows=flows):
            yield f"{pad}send in one query ({rows})"
            for part in flows:
                yield from _flow(part, depth + 1, actual, told)
        case HashJoin(left=left, right=right):
            yield f"{pad}hash join on Spark ({rows})"
            yield from _flow(left, depth + 1, actual, told)
            yield from _flow(right, depth + 1, actual, told)
        case Concat(flows=flows):
            yield f"{pad}all of ({rows})"
            for part in flows:
                yield from _flow(part, depth + 1, actual, told)


_MATCHES = {
    None: "left join",
    MatchKind.SEMI: "semi-join",
    MatchKind.ANTI: "anti-join",
    MatchKind.MARK: "mark of matches",
}


def _by_spark(sql: SparkSql) -> str:
    return " and ".join(["filter"] * bool(sql.where) + ["expressions" if sql.keys is None else "groups"])


def _choices(physical: Physical, *, estimated: bool) -> Iterator[str]:
    for choice in physical.choices:
        estimate = f"; {choice.estimate}" if choice.estimate and estimated else ""
        yield f"{choice.method} {', '.join(map(str, choice.tables))}: {choice.reason}{estimate}"
