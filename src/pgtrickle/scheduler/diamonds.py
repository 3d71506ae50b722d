"""Diamonds: stream tables that one source reaches by several ways, which are refreshed and committed together.

    orders ─▶ paid ───▶ balance       balance is where the ways meet: the convergence point
        └───▶ refunded ───┘           paid, refunded, balance are the members: committed at once or not at all

Pure but for `store`, `advance` and `ask`. The service asks `groups`, `select`, `reached` and `units` in each tick. The
groups are worked out here and stored for `pgtrickle.diamond_groups()`, rather than found again in SQL, so that what is
shown is what the service does, and since each has an epoch, which must be kept somewhere anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any, TypeAlias

import networkx as nx
import psycopg

from pgtrickle.config import Settings
from pgtrickle.scheduler.dag import Dag, Vertex

Unit: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AtomicGroup:
    """The stream tables of one diamond, or of several that share tables, by id; `convergence` are where ways meet.

    `consistency` is atomic or none; `policy` is fastest (due when one member is) or slowest (due when all are).
    `circular`: it is no diamond, but tables that read each other in a circle, which are refreshed as one.
    """

    members: tuple[int, ...]
    convergence: tuple[int, ...]
    consistency: str
    policy: str
    circular: bool = False

    @property
    def atomic(self) -> bool:
        return self.consistency == "atomic"


def groups(dag: Dag, settings: Settings) -> tuple[AtomicGroup, ...]:
    """All diamonds: atomic ones joined where they share tables, the others each for itself; and all circles.

    What was asked for the table where the ways meet decides. Where joined ones differ, the slowest policy wins: it
    was asked for, and the fastest is what one gets unasked.
    """
    found = convergences(dag)
    asked = {end: _consistency(dag.tables[end], settings) for end in found}
    loose = [
        AtomicGroup(tuple(sorted(members)), (end,), "none", _policy(dag.tables[end], settings))
        for end, members in found.items()
        if asked[end] == "none"
    ]
    atomic = {end: members for end, members in found.items() if asked[end] == "atomic"}
    tied = []
    for joined in _joined(dag, atomic.values()):
        ends = tuple(sorted(end for end in atomic if end in joined))
        policies = {_policy(dag.tables[end], settings) for end in ends}
        tied.append(AtomicGroup(joined, ends, "atomic", "slowest" if "slowest" in policies else "fastest"))
    circles = [AtomicGroup(part, (), "atomic", "fastest", circular=True) for part in dag.circles]
    return tuple(sorted([*tied, *loose, *circles], key=lambda group: (group.members, group.consistency)))


def convergences(dag: Dag) -> dict[int, frozenset[int]]:
    """The stream tables where two ways from one relation meet for the first time, each with its diamond's members.

    From s there are two ways to t that share nothing but their ends iff no third relation is on all ways from s to t,
    and more than one of them begins at s. All that lies between such an s and t is a member; s itself is not. What
    is below a circle ends none: the circle would have to be refreshed amid the group.
    """
    found = {}
    relations = dag.relations
    for pgt_id in sorted(set(dag.tables) - dag.cyclic - dag.below(dag.cyclic)):
        end = dag.tables[pgt_id].relid
        if relations.in_degree(end) < 2:
            continue
        above = nx.ancestors(relations, end)
        backwards = relations.subgraph(above | {end}).reverse()
        passed_last = nx.immediate_dominators(backwards, end)
        starts = [each for each in above if passed_last[each] == end and backwards.in_degree(each) > 1]
        between = {each for start in starts for each in nx.descendants(relations, start) & above}
        if between:
            found[pgt_id] = frozenset(dag.by_relid[each] for each in between | {end})
    return found


def _joined(dag: Dag, diamonds: Iterable[frozenset[int]]) -> list[tuple[int, ...]]:
    """Diamonds that share tables as one, with all that lies on a way from one member to another: tied by edges both
    ways, they are what the strongly connected components are. So no table outside must run amid a group."""
    tied = dag.graph.copy()
    tied.remove_nodes_from(dag.cyclic)
    for members in diamonds:
        nx.add_cycle(tied, sorted(members))
    return [tuple(sorted(part)) for part in nx.strongly_connected_components(tied) if len(part) > 1]


def select(
    dag: Dag, diamonds: Iterable[AtomicGroup], due: Collection[int], halted: Collection[int] = ()
) -> frozenset[int]:
    """What to refresh in this tick: the due tables, the calculated ones they need, and whole groups or nothing of them.

    `halted` cannot be refreshed now (suspended, waiting to be tried again, a forbidden circle): with it, its whole
    atomic group waits, and so does a group of the slowest policy until all its members with a schedule are due.
    """
    atomic = [group for group in diamonds if group.atomic]
    held = set(halted)
    for group in atomic:
        if not held.isdisjoint(group.members) or not _is_time(dag, group, due):
            held.update(group.members)
    chosen = frozenset(due) - held
    while True:
        grown = set(dag.needed(chosen, held))
        for group in atomic:
            if not grown.isdisjoint(group.members):
                grown.update(group.members)
        if grown == chosen:
            return chosen
        chosen = frozenset(grown)


def _is_time(dag: Dag, group: AtomicGroup, due: Collection[int]) -> bool:
    """Whether a group of the slowest policy may run; one of the fastest always may."""
    scheduled = [pgt_id for pgt_id in group.members if dag.tables[pgt_id].schedule is not None]
    return group.policy == "fastest" or all(pgt_id in due for pgt_id in scheduled)


def reached(
    dag: Dag, diamonds: Iterable[AtomicGroup], selected: Collection[int], working: Collection[int]
) -> frozenset[int]:
    """Those of the selected tables that may have something to do, given those that have: what reads them, and the
    other members of their atomic groups."""
    found = frozenset(working)
    while True:
        grown = set(found | dag.below(found) & frozenset(selected))
        for group in diamonds:
            if group.atomic and not grown.isdisjoint(group.members):
                grown.update(frozenset(selected).intersection(group.members))
        if grown == found:
            return found
        found = frozenset(grown)


def units(dag: Dag, diamonds: Iterable[AtomicGroup], selected: Iterable[int]) -> TopologicalSorter[Unit]:
    """What is committed together, each after what it reads: atomic groups in their inner order, other tables alone.

    Prepared: `get_ready()` gives the units that may run side by side, `done()` says that one is through.
    """
    chosen = set(selected)
    unit_of: dict[int, Unit] = {pgt_id: (pgt_id,) for pgt_id in chosen}
    for group in diamonds:
        if group.atomic and not chosen.isdisjoint(group.members):
            unit = order(dag, group, chosen)
            unit_of.update(dict.fromkeys(unit, unit))
    sorter: TopologicalSorter[Unit] = TopologicalSorter()
    for pgt_id in sorted(chosen):
        mine = unit_of[pgt_id]
        sorter.add(mine, *sorted({unit_of[source] for source in dag.upstream(pgt_id) & chosen} - {mine}))
    sorter.prepare()
    return sorter


def order(dag: Dag, group: AtomicGroup, chosen: Collection[int]) -> Unit:
    """The members of a group that are chosen, each after those it reads; in a circle there is no such order."""
    members = frozenset(chosen).intersection(group.members)
    return tuple(sorted(members)) if group.circular else dag.order(members)


def store(
    conn: psycopg.Connection[Any], diamonds: Iterable[AtomicGroup], others: AbstractSet[int] = frozenset()
) -> None:
    """Records the groups for `diamond_groups()`; one whose members stay the same keeps its number and epoch. Those of
    `others`, tables that another login's service computes, are left to it."""
    rows = [
        (list(each.members), each.consistency, list(each.convergence), each.policy)
        for each in diamonds
        if not each.circular
    ]
    with conn.transaction():
        conn.execute("LOCK TABLE pgtrickle.pgt_diamonds IN SHARE ROW EXCLUSIVE MODE")
        with conn.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO pgtrickle.pgt_diamonds (members, consistency, convergence, policy) VALUES (%s, %s, %s, %s)"
                " ON CONFLICT (members, consistency)"
                " DO UPDATE SET convergence = excluded.convergence, policy = excluded.policy",
                rows,
            )
        known = conn.execute("SELECT group_id, members, consistency FROM pgtrickle.pgt_diamonds").fetchall()
        kept = [(members, consistency) for members, consistency, *_ in rows]
        gone = [
            group_id
            for group_id, members, consistency in known
            if (members, consistency) not in kept and others.isdisjoint(members)
        ]
        conn.execute("DELETE FROM pgtrickle.pgt_diamonds WHERE group_id = ANY(%s)", (gone,))


def advance(conn: psycopg.Connection[Any], group: AtomicGroup) -> None:
    """Counts one more version of an atomic group: to be called in the transaction that commits its members."""
    conn.execute(
        "UPDATE pgtrickle.pgt_diamonds SET epoch = epoch + 1 WHERE members = %s::bigint[] AND consistency = 'atomic'",
        (list(group.members),),
    )


def ask(
    conn: psycopg.Connection[Any],
    pgt_id: int,
    diamond_consistency: str | None = None,
    diamond_schedule_policy: str | None = None,
) -> None:
    """Records what is asked of the diamond that ends at a stream table; what is not given stays as it is, `inherit`
    leaves it to the setting."""
    conn.execute(
        "UPDATE pgtrickle.pgt_stream_tables"
        " SET diamond_consistency = nullif(coalesce(%s, diamond_consistency), 'inherit'),"
        " diamond_schedule_policy = nullif(coalesce(%s, diamond_schedule_policy), 'inherit') WHERE pgt_id = %s",
        (diamond_consistency, diamond_schedule_policy, pgt_id),
    )


def _consistency(table: Vertex, settings: Settings) -> str:
    return table.consistency or settings.diamond_consistency


def _policy(table: Vertex, settings: Settings) -> str:
    return table.policy or settings.diamond_schedule_policy
