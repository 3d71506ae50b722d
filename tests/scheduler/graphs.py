"""Graphs of stream tables for the tests: written down, or drawn by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from pgtrickle.scheduler.dag import Dag, Vertex

BASE, OTHER = 900, 901


def dag(*edges: tuple[int, int], tables: int = 4, calculated: frozenset[int] = frozenset()) -> Dag:
    """Tables 1 to `tables`, named a, b, …; `edges` as (consumer, source), a source over 900 is a base table."""
    numbers = range(1, tables + 1)
    vertices = [Vertex(n, 100 + n, chr(96 + n), None if n in calculated else "1m") for n in numbers]
    return Dag(vertices, [(consumer, source if source >= BASE else 100 + source) for consumer, source in edges])


@st.composite
def acyclic(draw: st.DrawFn) -> Dag:
    """Up to 12 tables whose ids say nothing about their order."""
    count = draw(st.integers(1, 12))
    place = draw(st.permutations(range(1, count + 1)))
    pairs = [(later, earlier) for later in range(count) for earlier in range(later)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20)) if pairs else []
    bases = draw(st.lists(st.tuples(st.sampled_from(place), st.sampled_from([BASE, OTHER])), unique=True))
    calculated = draw(st.frozensets(st.sampled_from(place)))
    edges = [(place[later], place[earlier]) for later, earlier in chosen]
    return dag(*edges, *bases, tables=count, calculated=calculated)
