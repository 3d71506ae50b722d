"""The algebra by its executable specification: every step file, compiled by PostgreSQL, run in the interpreter."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgtrickle.delta.differentiate import differentiate
from pgtrickle.delta.tree_text import plan
from pgtrickle.query.clock import values_in
from pgtrickle.query.compile import compile_query
from pgtrickle.query.operators import Operator, walk
from tests.delta.interpreter import CLOCK, Moment, TableWindow, ZSet, add, evaluate
from tests.steps.parser import Step, StepFile, read
from tests.steps.runner import interpreted, name, run
from tests.steps.sources import Sources


class Interpreter:
    """Keeps the view by evaluating delta plans over the tables' rows held in memory."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.sources: Sources | None = None

    def setup(self, file: StepFile) -> None:
        self.sources = Sources(self.connection, file)
        compiled = compile_query(self.connection, file.view)
        assert compiled.tree is not None, compiled.refusal
        self.tree: Operator = compiled.tree
        self.oids = {table.name: self.sources.oid(table.name) for table in file.tables}
        self.world = {self.oids[table]: TableWindow(of, Counter()) for table, of in self.sources.attributes.items()}
        if file.clock is not None:
            self.world[CLOCK] = TableWindow(("now",), Counter({(file.clock,): 1}))
        self.kept = evaluate(self.tree, self.world, Moment.AFTER)

    def apply(self, step: Step) -> ZSet:
        assert self.sources is not None
        self.sources.apply(step)
        before = {oid: TableWindow(window.attributes, window.after) for oid, window in self.world.items()}
        self.world = {oid: replace(window, changes=self._changes(oid, step)) for oid, window in before.items()}
        changed = frozenset(self.oids[change.table] for change in step.changes)
        if step.at != step.since:
            changed |= {value.number for value in values_in(self.tree)}
        delta = evaluate(differentiate(self.tree, changed), self.world)
        self.kept = add(self.kept, delta)
        self._check_every_node(changed)
        return delta

    def _changes(self, oid: int, step: Step) -> ZSet:
        changes: ZSet = Counter()
        if oid == CLOCK:
            return add({(step.at,): 1}, {(step.since,): -1})
        for change in step.changes:
            if self.oids[change.table] == oid:
                changes.update({} if change.new is None else {change.new: 1})
                changes.subtract({} if change.old is None else {change.old: 1})
        return changes

    def _check_every_node(self, changed: frozenset[int]) -> None:
        """R′ = R + ΔR for all of the tree, whether or not the plan knows which tables changed."""
        for op in walk(self.tree):
            before, after = (evaluate(op, self.world, at) for at in (Moment.BEFORE, Moment.AFTER))
            for delta in (differentiate(op, changed), differentiate(op)):
                assert add(before, evaluate(delta, self.world)) == after, plan(delta)

    def contents(self) -> ZSet:
        assert self.kept == evaluate(self.tree, self.world, Moment.AFTER), "what is kept is not what the query gives"
        return self.kept

    def answer(self) -> ZSet:
        assert self.sources is not None
        return self.sources.answer()

    def close(self) -> None:
        if self.sources is not None:
            self.sources.drop()


@pytest.mark.parametrize("path", interpreted(), ids=name)
def test_interpreter(path: Path, steps_connection: psycopg.Connection[Any]) -> None:
    run(read(path), Interpreter(steps_connection))
