"""The physical plan as text. Pure; called by `refresh/explain.py`."""

from __future__ import annotations

from collections.abc import Iterator

from pgtrickle.spark.flow import (
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


def physical_text(physical: Physical) -> str:
    """Stages in order, each with its flow, then how each table is read and why."""
    return "\n".join([*_stages(physical), *_choices(physical)])


def _stages(physical: Physical) -> Iterator[str]:
    for position, step in enumerate(physical.stages, start=1):
        match step:
            case LandAggregate(number=number, input=flow):
                yield f"{position}. land contributions to the groups of aggregate {number}"
                yield from _flow(flow, 1)
            case KeepFirst(number=number):
                yield f"{position}. read the first rows {number}, and compare them with those kept"
            case LandResult(input=flow):
                yield f"{position}. land the result"
                yield from _flow(flow, 1)
            case ReadResult(aggregate=number):
                yield f"{position}. take the result from aggregate {number}"


def _flow(flow: Flow, depth: int) -> Iterator[str]:
    pad = "   " * depth
    rows = f"about {flow.rows:.0f} rows"
    match flow:
        case Read(what=what):
            yield f"{pad}read {what} ({rows})"
        case Merged(aggregate=number):
            yield f"{pad}read the changes of aggregate {number}"
        case Lookup(input=source, what=what):
            yield f"{pad}lookup {what} ({rows})"
            yield from _flow(source, depth + 1)
        case Together(flows=flows):
            yield f"{pad}send in one query ({rows})"
            for part in flows:
                yield from _flow(part, depth + 1)
        case HashJoin(left=left, right=right):
            yield f"{pad}hash join on Spark ({rows})"
            yield from _flow(left, depth + 1)
            yield from _flow(right, depth + 1)
        case Concat(flows=flows):
            yield f"{pad}all of ({rows})"
            for part in flows:
                yield from _flow(part, depth + 1)


def _choices(physical: Physical) -> Iterator[str]:
    for choice in physical.choices:
        yield f"{choice.method} {', '.join(map(str, choice.tables))}: {choice.reason}"
