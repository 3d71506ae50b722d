"""The plans of one query as text: its tree and rewrites; for each source the delta and its reads; the full refresh.

Sizes are supposed, since the tables are empty: of a hundred thousand rows each, with 100 changes or a million.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from unittest.mock import patch

from pgtrickle import db
from pgtrickle.config import Settings
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.delta.tree_text import plan as delta_text
from pgtrickle.delta.tree_text import tree as tree_text
from pgtrickle.physical.flow_text import physical_text
from pgtrickle.physical.table_facts import TableFactsMap
from pgtrickle.physical.window_parts import Changed
from pgtrickle.postgres.statements.script import Scratch
from pgtrickle.query.builder import build
from pgtrickle.query.clock import values_in
from pgtrickle.query.operators import Operator
from pgtrickle.query.rewrite import RULES
from pgtrickle.refresh import gather_facts as ask
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.definition.define import rehearse
from pgtrickle.refresh.plan import plan_delta, plan_full
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.window import Span, Window
from tests.plans.queries import Planned

ROWS = 100_000.0
FEW, MANY = 100, 1_000_000
_ANY = "1:1:"


def plans(connection: db.Connection, planned: Planned) -> str:
    """All of it, for one query; leaves nothing in the database."""
    with connection.transaction(force_rollback=True):
        for given in planned.given:
            connection.execute(db.statement(given))
        with _Watched() as acted:
            prepared, mode = rehearse(connection, planned.query, Settings())
        assert mode.effective == "DIFFERENTIAL", mode
        sections = [("rewrites that acted", "\n".join(dict.fromkeys(acted)) or "none")]
        sections += _sections(connection, prepared)
    return "\n".join(f"{title}\n{_indented(text)}\n" for title, text in sections)


class _Watched:
    """Which of the rewrites change a tree, while a query is built."""

    def __init__(self) -> None:
        self.acted: list[str] = []
        self._patch = patch.object(build, "rewrite", self._rewrite)

    def __enter__(self) -> list[str]:
        self._patch.start()
        return self.acted

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

    def _rewrite(self, tree: Operator) -> Operator:
        for rule in RULES:
            after = rule(tree)
            if after != tree:
                self.acted.append(name(rule))
            tree = after
        return tree


def name(rule: Callable[[Operator], Operator]) -> str:
    return rule.__name__


def _sections(connection: db.Connection, prepared: Prepared) -> Iterator[tuple[str, str]]:
    yield "operators", tree_text(prepared.tree)
    oids = [table.oid for table in prepared.sources]
    found = ask.gather(connection, oids, {})
    facts = TableFactsMap({oid: replace(table, rows=ROWS) for oid, table in found.tables.items()})
    spans = {oid: Span(_ANY, _ANY) for oid in oids}
    window = Window(_ANY, Connections.single(connection), spans)
    for table in prepared.sources:
        changed = frozenset({table.oid})
        yield f"delta when {table} changed", delta_text(differentiate(prepared.tree, changed))
        for number in (FEW, MANY):
            supposed = TableFactsMap(facts.tables, {table.oid: number})
            physical = plan_delta(prepared, supposed, window, Changed(changed), Scratch("planned"))
            yield f"reads when {table} has {number} changes", physical_text(physical)
    clock = frozenset(value.number for value in values_in(prepared.tree))
    if clock:
        yield "delta when the clock moved", delta_text(differentiate(prepared.tree, clock))
        physical = plan_delta(prepared, TableFactsMap(facts.tables), window, Changed(clock), Scratch("planned"))
        yield "reads when the clock moved", physical_text(physical)
    yield "full refresh", physical_text(plan_full(prepared, facts))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
