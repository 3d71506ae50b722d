"""Draws who reads whom in layers, from left to right: where each relation stands, and the way of each line. Pure.

A relation is right of all that it reads, but for lines that close a circle. Within a layer the order is the one with
few crossings: each stands at the mean place of its neighbours, going to and fro a few times. `dashboard.js` draws it.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import networkx as nx

WIDTH: Final = 208
HEIGHT: Final = 54
_BETWEEN_LAYERS: Final = 72
_BETWEEN_ROWS: Final = 20
_BEND_HEIGHT: Final = 14
_MARGIN: Final = 8
_SWEEPS: Final = 8


@dataclass(frozen=True, slots=True)
class Place:
    """The upper left corner of a relation."""

    layer: int
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Line:
    """From what is read to its reader, through these points. `back`: it closes a circle."""

    source: int
    reader: int
    points: Sequence[tuple[float, float]]
    back: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    """All of it, in a rectangle of this size."""

    width: float
    height: float
    places: Mapping[int, Place]
    lines: Sequence[Line]


def draw(relations: Iterable[int], edges: Iterable[tuple[int, int]]) -> Drawing:
    """The drawing of relations, by oid, with edges from what is read to what reads it."""
    graph = nx.DiGraph()
    graph.add_nodes_from(sorted(relations))
    graph.add_edges_from(sorted(set(edges)))
    back = _closing(graph)
    graph.remove_edges_from(back)
    layer = _layers(graph)
    ways = {edge: _way(edge, layer) for edge in graph.edges}
    rows = _ordered(layer, ways)
    places, bends, height = _placed(rows)
    width = 2 * _MARGIN + (max(layer.values(), default=-1) + 1) * (WIDTH + _BETWEEN_LAYERS) - _BETWEEN_LAYERS
    lines = [Line(start, end, _points(way, places, bends), back=False) for (start, end), way in sorted(ways.items())]
    lines += [Line(start, end, _arc(start, end, places), back=True) for start, end in sorted(back)]
    return Drawing(max(width, 0), height, places, lines)


_Spot = int | tuple[int, int, int]
"""A relation, or a bend: the place where an edge, given by its ends, passes a layer."""


def _closing(graph: nx.DiGraph) -> set[tuple[int, int]]:
    """Edges without which there is no circle."""
    found: set[tuple[int, int]] = set()
    left = graph.copy()
    left.remove_edges_from(nx.selfloop_edges(graph))
    found.update(nx.selfloop_edges(graph))
    while True:
        try:
            circle = nx.find_cycle(left)
        except nx.NetworkXNoCycle:
            return found
        found.add(circle[-1][:2])
        left.remove_edge(*circle[-1][:2])


def _layers(graph: nx.DiGraph) -> dict[int, int]:
    """How many steps each is from the sources; those that read nothing stand right before their first reader."""
    layer: dict[int, int] = {}
    for node in nx.topological_sort(graph):
        layer[node] = max((layer[each] + 1 for each in graph.predecessors(node)), default=0)
    for node in graph:
        if graph.in_degree(node) == 0 and graph.out_degree(node) > 0:
            layer[node] = min(layer[each] for each in graph.successors(node)) - 1
    return layer


def _way(edge: tuple[int, int], layer: Mapping[int, int]) -> list[_Spot]:
    start, end = edge
    return [start, *((start, end, between) for between in range(layer[start] + 1, layer[end])), end]


def _ordered(layer: Mapping[int, int], ways: Mapping[tuple[int, int], list[_Spot]]) -> list[list[_Spot]]:
    """The spots of each layer from above to below."""
    rows: defaultdict[int, list[_Spot]] = defaultdict(list)
    for node, place in sorted(layer.items()):
        rows[place].append(node)
    before: defaultdict[_Spot, list[_Spot]] = defaultdict(list)
    after: defaultdict[_Spot, list[_Spot]] = defaultdict(list)
    for way in ways.values():
        for spot in way[1:-1]:
            assert isinstance(spot, tuple)
            rows[spot[2]].append(spot)
        for left, right in pairwise(way):
            before[right].append(left)
            after[left].append(right)
    ordered = [rows[place] for place in range(max(rows, default=-1) + 1)]
    best, fewest = [list(row) for row in ordered], _crossings(ordered, after)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for place in range(len(ordered)) if forward else reversed(range(len(ordered))):
            neighbours = before if forward else after
            beside = place - 1 if forward else place + 1
            if 0 <= beside < len(ordered):
                _sort(ordered[place], ordered[beside], neighbours)
        now = _crossings(ordered, after)
        if now < fewest:
            best, fewest = [list(row) for row in ordered], now
    return best


def _sort(row: list[_Spot], beside: Sequence[_Spot], neighbours: Mapping[_Spot, list[_Spot]]) -> None:
    """By the mean place of the neighbours; one that has none stays where it is."""
    at = {spot: place for place, spot in enumerate(beside)}
    here = {spot: float(place) for place, spot in enumerate(row)}

    def mean(spot: _Spot) -> float:
        found = [at[each] for each in neighbours.get(spot, ())]
        return sum(found) / len(found) if found else here[spot]

    row.sort(key=mean)


def _crossings(rows: Sequence[Sequence[_Spot]], after: Mapping[_Spot, list[_Spot]]) -> int:
    """Pairs of lines between two layers of which one begins above the other, and ends below it."""
    count = 0
    for left, right in pairwise(rows):
        at = {spot: place for place, spot in enumerate(right)}
        seen: list[int] = []
        for spot in left:
            ends = sorted(at[each] for each in after.get(spot, ()))
            count += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return count


def _placed(rows: Sequence[Sequence[_Spot]]) -> tuple[dict[int, Place], dict[_Spot, tuple[float, float]], float]:
    """Corners of relations and points of bends; each layer stands in the middle of the height."""
    heights = [sum(_height(spot) + _BETWEEN_ROWS for spot in row) - _BETWEEN_ROWS for row in rows]
    tallest = max(heights, default=0)
    places: dict[int, Place] = {}
    bends: dict[_Spot, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        x = _MARGIN + number * (WIDTH + _BETWEEN_LAYERS)
        y = _MARGIN + (tallest - heights[number]) / 2
        for spot in row:
            if isinstance(spot, int):
                places[spot] = Place(number, x, y)
            else:
                bends[spot] = (x + WIDTH / 2, y + _height(spot) / 2)
            y += _height(spot) + _BETWEEN_ROWS
    return places, bends, tallest + 2 * _MARGIN


def _height(spot: _Spot) -> float:
    return HEIGHT if isinstance(spot, int) else _BEND_HEIGHT


def _points(
    way: Sequence[_Spot], places: Mapping[int, Place], bends: Mapping[_Spot, tuple[float, float]]
) -> list[tuple[float, float]]:
    """From the right side of what is read, past the other relations, to the left side of its reader."""
    start, end = way[0], way[-1]
    assert isinstance(start, int)
    assert isinstance(end, int)
    points = [(places[start].x + WIDTH, places[start].y + HEIGHT / 2)]
    for spot in way[1:-1]:
        x, y = bends[spot]
        points += [(x - WIDTH / 2, y), (x + WIDTH / 2, y)]
    return [*points, (places[end].x, places[end].y + HEIGHT / 2)]


def _arc(start: int, end: int, places: Mapping[int, Place]) -> list[tuple[float, float]]:
    """A line that goes back leaves at the right and comes in at the left, below both."""
    below = max(places[start].y, places[end].y) + HEIGHT + _BETWEEN_ROWS / 2
    first, last = places[start], places[end]
    return [
        (first.x + WIDTH, first.y + HEIGHT * 0.75),
        (first.x + WIDTH + 16, below),
        (last.x - 16, below),
        (last.x, last.y + HEIGHT * 0.75),
    ]
