"""Left joins, semi-joins, anti-joins and marks by Spark: what the changes of either side change is what PostgreSQL says
of both sides before and after. NULL keys, duplicates, several matches, weights of both signs; sides as of another time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import reduce

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.conftest import fresh_database
from tests.steps.native import spending_little

from pgtrickle import db, embedded
from pgtrickle.model import Column, Expr, PgType
from pgtrickle.physical.flow import Flow, Merged, Read
from pgtrickle.physical.spark_joins import Correction, Pairing, pairing, probe, rematch
from pgtrickle.postgres.wire import WEIGHT, quote_spark
from pgtrickle.query import render
from pgtrickle.query.operators import Constant, Equality, LeftJoin, Match, MatchKind
from pgtrickle.spark.frames import Frames
from pgtrickle.spark.transport import read_sql
from pgtrickle.spark.worker import Server, Snapshot, arrow_schema

INT, TEXT, NUMERIC = PgType(23, "integer"), PgType(25, "text"), PgType(1700, "numeric(6,2)")
BOOLEAN = PgType(16, "boolean")
LEFT = (Column("a", INT), Column("b", TEXT), Column("n", NUMERIC))
RIGHT = (Column("c", INT), Column("d", TEXT), Column("m", NUMERIC))
MARK = Column("found", BOOLEAN)

BY_KEY = Expr("a = c", ("a", "c"))
BY_TWO = Expr("a = c AND b = d AND n < m", ("a", "c", "b", "d", "n", "m"))
BY_NULL = Expr("ARRAY[a] = ARRAY[c] AND (n <> m OR b IS NULL)", ("a", "c", "n", "m", "b"))
BY_DIGITS = Expr("n = m", ("n", "m"))
CONDITIONS = {
    BY_KEY: (("a", "c"),),
    BY_TWO: (("a", "c"), ("b", "d")),
    BY_NULL: (("ARRAY[a]", "ARRAY[c]"),),
    BY_DIGITS: (("n", "m"),),
}
TABLES = ("kept", "gone", "came")
"""Of each side: the rows that stay, that are there before only, and after only."""


def equalities(condition: Expr) -> tuple[Equality, ...]:
    sides = CONDITIONS[condition]
    return tuple(Equality(*(Expr(side, (side.removeprefix("ARRAY[")[0],)) for side in pair)) for pair in sides)


def rows_of(side: str, *parts: str) -> Constant:
    """An operator of some of a side's rows."""
    union = " UNION ALL ".join(f"SELECT * FROM {side}_{part}" for part in parts)
    return Constant(LEFT if side == "l" else RIGHT, f"({union})")


BEFORE, AFTER = ("kept", "gone"), ("kept", "came")


def join(kind: MatchKind | None, condition: Expr, left: Constant, right: Constant) -> LeftJoin | Match:
    if kind is None:
        return LeftJoin((*LEFT, *RIGHT), left, right, condition, equalities(condition))
    columns = (*LEFT, MARK) if kind is MatchKind.MARK else LEFT
    return Match(columns, left, right, condition, kind, equalities(condition))


def read(side: str, *weighted: tuple[str, int]) -> Flow:
    union = " UNION ALL ".join(
        f"SELECT *, {weight}::bigint AS {WEIGHT} FROM {side}_{part}" for part, weight in weighted
    )
    return Read(LEFT if side == "l" else RIGHT, 1.0, union, side)


def plain(side: str, parts: tuple[str, ...]) -> Flow:
    return read(side, *((part, 1) for part in parts))


def delta(side: str) -> Flow:
    return read(side, ("came", 1), ("gone", -1), ("gone", 1), ("gone", -1))


class Sides:
    """Random rows of both sides in tables, few keys, and what PostgreSQL and Spark say of them."""

    def __init__(self, connection: db.Connection, spark: SparkSession) -> None:
        self.connection, self.spark = connection, spark
        chosen = random.Random(20)
        for side, columns in (("l", LEFT), ("r", RIGHT)):
            defined = ", ".join(f"{column.name} {column.type.name}" for column in columns)
            for part in TABLES:
                connection.execute(db.statement(f"CREATE TABLE {side}_{part} ({defined})"))
                rows = [self._row(chosen) for _ in range(60)]
                rows += chosen.sample(rows, 8)
                with connection.cursor() as cursor:
                    cursor.executemany(db.statement(f"INSERT INTO {side}_{part} VALUES (%s, %s, %s)"), rows)
        unused = Snapshot(Server(""), None)
        self.frames = Frames(spark, unused, None, True, self._read_here, self._never, lambda _: [])

    @staticmethod
    def _row(chosen: random.Random) -> tuple[int | None, str | None, float | None]:
        key = chosen.choice([None, *range(80)])
        return key, chosen.choice([None, "x", "y"]), chosen.choice([None, *(place / 4 for place in range(-20, 60))])

    def _read_here(self, flow: Read | Merged) -> pa.Table:
        rows = self.connection.execute(db.statement(read_sql(flow))).fetchall()
        names = arrow_schema(flow.columns).names
        return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], arrow_schema(flow.columns))

    def _never(self, _: Read | Merged) -> pa.Table:
        raise AssertionError("the driver reads")

    def difference(self, now: LeftJoin | Match, then: LeftJoin | Match) -> Counter[tuple[object, ...]]:
        found = Counter(self._answer(now))
        found.subtract(self._answer(then))
        return Counter({row: weight for row, weight in found.items() if weight})

    def _answer(self, node: LeftJoin | Match) -> list[tuple[object, ...]]:
        text = ", ".join(name if name == MARK.name else f"{name}::text" for name in node.names)
        return self.connection.execute(db.statement(f"SELECT {text} FROM ({render.select(node)}) AS q")).fetchall()

    def by_spark(self, flows: list[Flow]) -> list[Counter[tuple[object, ...]]]:
        """The rows of each flow: one job."""
        self.frames.expect(flows)
        found: list[Counter[tuple[object, ...]]] = [Counter() for _ in flows]
        for number, row, weight in reduce(DataFrame.union, map(self._told, range(len(flows)), flows)).collect():
            found[number][tuple(None if v is None else v == "true" if v in {"true", "false"} else v for v in row)] += (
                weight
            )
        self.frames.release()
        return [Counter({row: weight for row, weight in each.items() if weight}) for each in found]

    def _told(self, number: int, flow: Flow) -> DataFrame:
        values = [F.col(quote_spark(column.name)).cast("string") for column in flow.columns]
        return self.frames.frame(flow).select(F.lit(number), F.array(*values), F.col(WEIGHT))


@pytest.fixture(scope="module")
def sides(server18: embedded.Server, spark: SparkSession) -> Iterator[Sides]:
    with fresh_database(server18) as dsn, db.open_session(dsn) as connection, spending_little(spark):
        yield Sides(connection, spark)


def pairs_of(condition: Expr) -> Pairing:
    return pairing(condition, equalities(condition), (*LEFT, *RIGHT))


KINDS = (None, *MatchKind)


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.sql)
def test_changes_of_the_left_side(sides: Sides, condition: Expr) -> None:
    """Each met with the right side at hand, as it is or as it was."""
    pairs, flows, expected = pairs_of(condition), list[Flow](), []
    versions: dict[tuple[str, ...], Correction] = {AFTER: None, BEFORE: (-1, delta("r"))}
    for kind in KINDS:
        for parts, correction in versions.items():
            nodes = [join(kind, condition, rows_of("l", part), rows_of("r", *parts)) for part in ("came", "gone")]
            expected.append(sides.difference(*nodes))
            flows.append(probe(nodes[0], pairs, delta("l"), plain("r", AFTER), correction))
    assert sides.by_spark(flows) == expected
    assert all(expected)


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.sql)
def test_changes_of_the_right_side(sides: Sides, condition: Expr) -> None:
    """What they change for the left side at hand, as it is or as it was; the right side is at hand as after them, or as
    before them."""
    pairs, flows, expected = pairs_of(condition), list[Flow](), []
    lefts: dict[tuple[str, ...], Correction] = {AFTER: None, BEFORE: (-1, delta("l"))}
    rights = {AFTER: (None, (-1, delta("r"))), BEFORE: ((1, delta("r")), None)}
    for kind in KINDS:
        for left, at_hand in ((AFTER, AFTER), (BEFORE, AFTER), (BEFORE, BEFORE)):
            nodes = [join(kind, condition, rows_of("l", *left), rows_of("r", *parts)) for parts in (AFTER, BEFORE)]
            expected.append(sides.difference(*nodes))
            side = (plain("l", AFTER), lefts[left])
            flows.append(rematch(nodes[0], pairs, side, delta("r"), plain("r", at_hand), rights[at_hand]))
    assert sides.by_spark(flows) == expected
    assert all(expected)
