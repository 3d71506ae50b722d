"""Which stream table reads which: order, readiness, what a due table needs, cycles. Pure but for `read`.

The service asks it in each tick; `api` asks it whether an altered query closes a cycle. Stream tables are known by
their id (`pgt_id`); an edge leads from what is read, a base table or a stream table, to the stream table that reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import networkx as nx
import psycopg

from pgtrickle.errors import StateError
from pgtrickle.refresh.circle import rules


@dataclass(frozen=True, slots=True)
class Vertex:
    """A stream table: its id, the oid of its storage, its name for people, its schedule (None: calculated).

    `consistency` and `policy` are what was asked for it as the end of a diamond; None leaves it to the settings.
    """

    pgt_id: int
    relid: int
    name: str
    schedule: str | None = None
    consistency: str | None = None
    policy: str | None = None


class Dag:
    """The stream tables and who reads whom; made of catalog rows, never changed."""

    def __init__(self, tables: Iterable[Vertex], edges: Iterable[tuple[int, int]]) -> None:
        """`edges` are pairs of a stream table's id and the oid of a relation that it reads."""
        self.tables: Mapping[int, Vertex] = {table.pgt_id: table for table in tables}
        self.edges = frozenset(edges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dag) and (self.tables, self.edges) == (other.tables, other.edges)

    __hash__ = None  # type: ignore[assignment]  # equal by its rows, which are many: no key of anything

    @cached_property
    def relations(self) -> nx.DiGraph:
        """All relations by oid, base tables too, with edges from what is read to what reads it."""
        graph = nx.DiGraph()
        graph.add_nodes_from(table.relid for table in self.tables.values())
        graph.add_edges_from((source, self.tables[pgt_id].relid) for pgt_id, source in self.edges)
        return graph

    @cached_property
    def by_relid(self) -> Mapping[int, int]:
        """The id of each stream table by the oid of its storage."""
        return {table.relid: table.pgt_id for table in self.tables.values()}

    @cached_property
    def graph(self) -> nx.DiGraph:
        """The stream tables alone, by id."""
        graph = nx.DiGraph()
        graph.add_nodes_from(self.tables)
        graph.add_edges_from(
            (self.by_relid[source], pgt_id) for pgt_id, source in self.edges if source in self.by_relid
        )
        return graph

    def only(self, tables: Collection[int]) -> Dag:
        """The same without the other stream tables: they are plain relations to those that read them."""
        return Dag(
            [table for pgt_id, table in self.tables.items() if pgt_id in tables],
            [edge for edge in self.edges if edge[0] in tables],
        )

    def upstream(self, pgt_id: int) -> frozenset[int]:
        """The stream tables it reads itself."""
        return frozenset(self.graph.predecessors(pgt_id))

    def below(self, selected: Iterable[int]) -> frozenset[int]:
        """The stream tables that read one of these, directly or through others."""
        return frozenset(reached for pgt_id in selected for reached in nx.descendants(self.graph, pgt_id))

    def needed(self, due: Iterable[int], held: Collection[int] = ()) -> frozenset[int]:
        """The due tables, and the calculated ones that they read: those have no schedule but that of their readers.

        A table with a schedule of its own, or one that is `held`, is read as it is, so the search ends there.
        """
        found: set[int] = set()
        pending = list(due)
        while pending:
            pgt_id = pending.pop()
            if pgt_id not in found:
                found.add(pgt_id)
                pending += [
                    source
                    for source in self.upstream(pgt_id)
                    if self.tables[source].schedule is None and source not in held
                ]
        return frozenset(found)

    def order(self, selected: Iterable[int] | None = None) -> tuple[int, ...]:
        """These stream tables (all, if none are given), each after those it reads; oldest first where that leaves a
        choice. StateError if there is a cycle among them."""
        graph = self.graph if selected is None else self.graph.subgraph(selected)
        self._require_acyclic(graph)
        return tuple(nx.lexicographical_topological_sort(graph))

    def layers(self) -> tuple[int, ...]:
        """All stream tables, each after those it reads, and those of a circle side by side."""
        whole = nx.condensation(self.graph)
        parts = nx.lexicographical_topological_sort(whole, key=lambda part: min(whole.nodes[part]["members"]))
        return tuple(pgt_id for part in parts for pgt_id in sorted(whole.nodes[part]["members"]))

    @cached_property
    def circles(self) -> tuple[tuple[int, ...], ...]:
        """The stream tables that read each other in a circle, by circle; those that share a table are one."""
        parts = nx.strongly_connected_components(self.graph)
        found = (tuple(sorted(part)) for part in parts)
        return tuple(sorted(part for part in found if len(part) > 1 or self.graph.has_edge(part[0], part[0])))

    @cached_property
    def cyclic(self) -> frozenset[int]:
        """The stream tables that are part of a cycle: a source that is a view may close one behind our back."""
        return frozenset(pgt_id for part in self.circles for pgt_id in part)

    def cycle(self) -> tuple[str, ...] | None:
        """The names along one cycle, the first again at the end; None if there is none."""
        found = _find_cycle(self.graph)
        return self._names(found) if found else None

    def with_sources(self, pgt_id: int, sources: Iterable[int]) -> Dag:
        """The same, but for what one stream table reads (oids)."""
        others = {edge for edge in self.edges if edge[0] != pgt_id}
        return Dag(self.tables.values(), others | {(pgt_id, source) for source in sources})

    def require_no_cycle(self, pgt_id: int, sources: Iterable[int]) -> None:
        """StateError if the stream table may not read these (oids), since that would close a cycle.

        To be asked of the graph as it was before an alter: the storage may be another one afterwards. A table that is
        created has no readers yet, and closes none.
        """
        changed = self.with_sources(pgt_id, sources).graph
        for source in sorted(changed.predecessors(pgt_id)):
            if nx.has_path(changed, pgt_id, source):
                raise self._circle(nx.shortest_path(changed, pgt_id, source))

    def _require_acyclic(self, graph: nx.DiGraph) -> None:
        found = _find_cycle(graph)
        if found:
            raise self._circle(found)

    def _circle(self, around: list[int]) -> StateError:
        return rules.not_allowed(rules.arrows(self._names(around)[:-1]))

    def _names(self, cycle: list[int]) -> tuple[str, ...]:
        """The names around a cycle, from its oldest table back to it."""
        first = cycle.index(min(cycle))
        return tuple(self.tables[pgt_id].name for pgt_id in (*cycle[first:], *cycle[:first], cycle[first]))


def _find_cycle(graph: nx.DiGraph) -> list[int]:
    """The stream tables along one cycle; empty if there is none."""
    try:
        return [source for source, _ in nx.find_cycle(graph, sorted(graph))]
    except nx.NetworkXNoCycle:
        return []


_ROWS = """
SELECT t.pgt_id, t.pgt_relid, pg_catalog.format('%I.%I', p.pgt_schema, p.pgt_name), t.schedule,
       t.diamond_consistency, t.diamond_schedule_policy,
       ARRAY(SELECT d.source_relid::bigint FROM pgtrickle.pgt_dependencies AS d WHERE d.pgt_id = t.pgt_id)
FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id) ORDER BY t.pgt_id
"""


def read(conn: psycopg.Connection[Any], known: Dag | None = None) -> Dag:
    """The graph of the catalog as it is now; `known` itself, with all it has worked out, if that has not changed."""
    rows = conn.execute(_ROWS).fetchall()
    found = Dag([Vertex(*row[:-1]) for row in rows], [(row[0], source) for row in rows for source in row[-1]])
    return known if known == found else found
