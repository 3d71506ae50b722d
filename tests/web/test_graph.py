"""The drawing of who reads whom: nothing overlaps, readers stand right of what they read, circles are drawn too."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrickle.web.graph import HEIGHT, WIDTH, Drawing, draw

EDGES = st.lists(st.tuples(st.integers(1, 14), st.integers(1, 14)), max_size=30)


def assert_readable(drawing: Drawing, nodes: set[int], edges: set[tuple[int, int]]) -> None:
    assert set(drawing.places) == nodes
    assert {(line.source, line.reader) for line in drawing.lines} == edges
    for one, other in combinations(drawing.places.values(), 2):
        assert abs(one.x - other.x) >= WIDTH or abs(one.y - other.y) >= HEIGHT, "they overlap"
    for place in drawing.places.values():
        assert 0 <= place.x <= drawing.width - WIDTH
        assert 0 <= place.y <= drawing.height - HEIGHT
    for line in drawing.lines:
        if not line.back:
            assert drawing.places[line.source].layer < drawing.places[line.reader].layer
            assert [x for x, _ in line.points] == sorted(x for x, _ in line.points), "it goes from left to right"


@given(EDGES)
def test_any_graph_is_drawn(edges: list[tuple[int, int]]) -> None:
    nodes = {node for edge in edges for node in edge} | {99}
    assert_readable(draw(nodes, edges), nodes, set(edges))


def test_nothing_is_drawn_of_nothing() -> None:
    assert draw([], []).places == {}


def test_lines_do_not_cross_where_they_need_not() -> None:
    """Three sources whose readers are the other way round by their numbers."""
    drawing = draw(range(1, 7), [(1, 6), (2, 5), (3, 4)])
    order = [sorted(row, key=lambda node: drawing.places[node].y) for row in ((1, 2, 3), (4, 5, 6))]
    assert order[1] == [{1: 6, 2: 5, 3: 4}[node] for node in order[0]]


@pytest.mark.parametrize("edges", [[(1, 1)], [(1, 2), (2, 1)], [(1, 2), (2, 3), (3, 1), (9, 1)]])
def test_circles_are_closed_by_a_line_back(edges: list[tuple[int, int]]) -> None:
    drawing = draw({node for edge in edges for node in edge}, edges)
    assert [line.back for line in drawing.lines].count(True) == 1


def test_a_line_over_several_layers_passes_between_the_others() -> None:
    drawing = draw(range(1, 6), [(1, 2), (2, 3), (3, 4), (1, 4), (5, 3)])
    (long,) = [line for line in drawing.lines if (line.source, line.reader) == (1, 4)]
    middle = [place for node, place in drawing.places.items() if node in {2, 3, 5}]
    for x, y in long.points[1:-1]:
        assert not any(place.x <= x <= place.x + WIDTH and place.y < y < place.y + HEIGHT for place in middle)


def test_many_tables_are_drawn_soon() -> None:
    """A thousand readers of a hundred sources; what they are drawn as is kept until one of them changes."""
    edges = [(1 + n % 100, 1000 + n) for n in range(1000)] + [(1000 + n, 3000 + n % 50) for n in range(1000)]
    assert len(draw({node for edge in edges for node in edge}, edges).lines) == 2000
