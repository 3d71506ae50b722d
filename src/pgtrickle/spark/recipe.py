"""The flows of a small window as one Spark job: a task a term, which has the rows it starts from and asks PostgreSQL.

A frame for each flow, as `evaluate.py` builds them for large windows, costs Spark's analysis and planning of each: more
than a small window's work. So the driver writes down what is to be asked, with its rows, and each task follows one such
recipe. Called by `evaluate.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
from pyspark.sql import SparkSession

from pgtrickle.postgres.wire import spark_schema
from pgtrickle.spark.flow import Concat, Flow, HashJoin, Lookup, Merged, Read, Together
from pgtrickle.spark.worker import Batches, Snapshot, arrays, arrow_schema

MOST_BYTES = 8_000_000
"""All tasks are sent all recipes: up to this size of their rows."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that the driver has read."""

    table: pa.Table


@dataclass(frozen=True, slots=True)
class Asked:
    """What a query answers to the rows of the inputs, sent as arrays; nothing, if the first has none."""

    sql: str
    inputs: tuple[Recipe, ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class All:
    """All rows of several."""

    parts: tuple[Recipe, ...]
    schema: pa.Schema


Recipe = Rows | Asked | All


@dataclass(slots=True)
class Cook:
    """Writes recipes; `read` has the driver read the rows of a leaf, each once."""

    read: Callable[[Read | Merged], pa.Table]
    _known: dict[Flow, Recipe] = field(default_factory=dict)

    def terms(self, flow: Flow) -> tuple[Recipe, ...] | None:
        """What to ask, in parts that do not need each other; None if it takes Spark's own join, or too many rows."""
        if _joins_on_spark(flow):
            return None
        parts = tuple(term for part in _parts(flow) if not _is_empty(term := self._recipe(part)))
        return parts if _bytes(parts, set()) <= MOST_BYTES else None

    def _recipe(self, flow: Flow) -> Recipe:
        if flow not in self._known:
            self._known[flow] = self._write(flow)
        return self._known[flow]

    def _write(self, flow: Flow) -> Recipe:
        schema = arrow_schema(flow.columns)
        match flow:
            case Read() | Merged():
                return Rows(self.read(flow))
            case Lookup(input=source, sql=sql):
                return Asked(sql, (self._recipe(source),), schema)
            case Together(flows=flows, sql=sql):
                return Asked(sql, tuple(self._recipe(part) for part in flows), schema)
            case Concat():
                parts = tuple(term for part in _parts(flow) if not _is_empty(term := self._recipe(part)))
                return All(parts, schema)
        raise TypeError(f"no recipe for {type(flow).__name__}")


def _parts(flow: Flow) -> tuple[Flow, ...]:
    if isinstance(flow, Concat):
        return tuple(part for below in flow.flows for part in _parts(below))
    return (flow,)


def _joins_on_spark(flow: Flow) -> bool:
    match flow:
        case HashJoin():
            return True
        case Lookup(input=source):
            return _joins_on_spark(source)
        case Concat(flows=flows) | Together(flows=flows):
            return any(map(_joins_on_spark, flows))
    return False


def _is_empty(recipe: Recipe) -> bool:
    """Whether it is known that nothing comes of it."""
    match recipe:
        case Rows(table=table):
            return bool(table.num_rows == 0)
        case Asked(inputs=inputs):
            return _is_empty(inputs[0])
        case All(parts=parts):
            return not parts


def _bytes(recipes: tuple[Recipe, ...], seen: set[int]) -> int:
    """The size of all rows that the recipes carry."""
    total = 0
    for recipe in recipes:
        if id(recipe) in seen:
            continue
        seen.add(id(recipe))
        match recipe:
            case Rows(table=table):
                total += table.nbytes
            case Asked(inputs=below) | All(parts=below):
                total += _bytes(below, seen)
    return total


def follow_all(session: SparkSession, snapshot: Snapshot, terms: tuple[Recipe, ...], flow: Flow) -> pa.Table:
    """The flow's rows: one job, a task for the terms that ask the same."""
    schema = arrow_schema(flow.columns)
    if not terms:
        return schema.empty_table()
    tasks = together(terms)
    asked = session.range(0, len(tasks), 1, len(tasks))
    return asked.mapInArrow(_follow(snapshot, tasks, schema), spark_schema(flow.columns)).toArrow()


def together(terms: tuple[Recipe, ...]) -> tuple[tuple[Recipe, ...], ...]:
    """The terms, those in one group that have a question in common."""
    groups: list[tuple[set[int], list[Recipe]]] = []
    for term in terms:
        questions = _questions(term)
        akin = [group for group in groups if group[0] & questions]
        groups = [group for group in groups if group not in akin]
        groups.append((questions.union(*(asked for asked, _ in akin)), [*(r for _, rs in akin for r in rs), term]))
    return tuple(tuple(members) for _, members in groups)


def _questions(recipe: Recipe) -> set[int]:
    match recipe:
        case Rows():
            return set()
        case Asked(inputs=below):
            return {id(recipe)}.union(*map(_questions, below))
        case All(parts=below):
            return set().union(*map(_questions, below))


def _follow(
    snapshot: Snapshot, tasks: tuple[tuple[Recipe, ...], ...], schema: pa.Schema
) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        with snapshot.cursor() as cursor:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    follower = _Follower(cursor)
                    for term in tasks[number]:
                        yield from follower.rows(term).select(schema.names).cast(schema).to_batches()

    return run


@dataclass(slots=True)
class _Follower:
    """Follows the recipes of a task; parts that they have twice are asked once."""

    cursor: adbc.Cursor
    _known: dict[int, pa.Table] = field(default_factory=dict)

    def rows(self, recipe: Recipe) -> pa.Table:
        if id(recipe) not in self._known:
            self._known[id(recipe)] = self._make(recipe)
        return self._known[id(recipe)]

    def _make(self, recipe: Recipe) -> pa.Table:
        match recipe:
            case Rows(table=table):
                return table
            case All(parts=parts, schema=schema):
                tables = [self.rows(part).select(schema.names).cast(schema) for part in parts]
                return pa.concat_tables(tables) if tables else schema.empty_table()
            case Asked():
                return self._ask(recipe)

    def _ask(self, recipe: Asked) -> pa.Table:
        first = self.rows(recipe.inputs[0])
        if not first.num_rows:
            return recipe.schema.empty_table()
        sent = [first, *(self.rows(part) for part in recipe.inputs[1:])]
        self.cursor.execute(recipe.sql, parameters=arrays([c.combine_chunks() for part in sent for c in part.columns]))
        return self.cursor.fetch_arrow_table().cast(recipe.schema)
