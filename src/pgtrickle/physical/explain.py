"""The physical plan as text. Pure; called by `refresh/explain.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pgtrickle.physical.flow import (
    Concat,
    Flow,
    HashJoin,
    KeepFirst,
    LandAggregate,
    LandResult,
    Lookup,
    Merged,
    Physical,
    Read,
    ReadResult,
    Together,
)

Count = Callable[[Flow], int | None]


def _unknown(_: Flow) -> int | None:
    return None


def physical_text(physical: Physical, actual: Count = _unknown) -> str:
    """Stages in order, each with its flow, then how each table is read and why; `actual` counts a flow's rows."""
    return "\n".join([*_stages(physical, actual), *_choices(physical)])


def _stages(physical: Physical, actual: Count) -> Iterator[str]:
    told: set[Flow] = set()
    for position, step in enumerate(physical.stages, start=1):
        match step:
            case LandAggregate(number=number, input=flow):
                yield f"{position}. land contributions to the groups of aggregate {number}"
                yield from _flow(flow, 1, actual, told)
            case KeepFirst(number=number):
                yield f"{position}. read the first rows {number}, and compare them with those kept"
            case LandResult(input=flow):
                yield f"{position}. land the result"
                yield from _flow(flow, 1, actual, told)
            case ReadResult(aggregate=number):
                yield f"{position}. take the result from aggregate {number}"


def _flow(flow: Flow, depth: int, actual: Count, told: set[Flow]) -> Iterator[str]:
    """A flow and those below it; of one that is `told` already only that it is asked for once."""
    pad = "   " * depth
    if flow in told and isinstance(flow, Together | Lookup):
        yield f"{pad}the same rows as above"
        return
    told.add(flow)
    counted = actual(flow)
    rows = f"about {flow.rows:.0f} rows" if counted is None else f"about {flow.rows:.0f} rows, really {counted}"
    match flow:
        case Read(what=what):
            yield f"{pad}read {what} ({rows})"
        case Merged(aggregate=number):
            yield f"{pad}read the changes of aggregate {number}"
        case Lookup(input=source, what=what):
            yield f"{pad}lookup {what} ({rows})"
            yield from _flow(source, depth + 1, actual, told)
        case Together(flows=flows):
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


def _choices(physical: Physical) -> Iterator[str]:
    for choice in physical.choices:
        yield f"{choice.method} {', '.join(map(str, choice.tables))}: {choice.reason}"
