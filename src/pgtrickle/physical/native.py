"""Which steps over rows that Spark has joined are Spark's own, and what they are in its SQL. Pure; used by
`spark_joins.py`.

As long as each expression of a step is on the list of `spark_sql.py`, Spark does it; what comes after that is sent to
PostgreSQL. Groups are contributions, and added up where they land: that Spark takes for two what PostgreSQL groups as
one would cost time only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pgtrickle.model import Column
from pgtrickle.physical import spark_sql
from pgtrickle.physical.flow import SparkSql
from pgtrickle.physical.spark_sql import MOST_DIGITS, NotListedError, Values, comparable
from pgtrickle.postgres.aggregate import all_contributions
from pgtrickle.postgres.call_state import Contribution, What
from pgtrickle.postgres.weighted import GroupStep, Step
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query.expression import conjunction, conjuncts
from pgtrickle.query.looks import keys_with_looks
from pgtrickle.query.operators import Filter, Project

_DIGITS_OF_A_WEIGHT = 10
_MOST_TIMES_A_WEIGHT = MOST_DIGITS - _DIGITS_OF_A_WEIGHT - 1
"""Digits of a value that may come several times: longer ones come once."""


@dataclass(slots=True)
class Split:
    """Steps, divided: `done` by Spark, which makes these columns of the rows by `sql`; `left` to PostgreSQL, since
    `why` is not listed."""

    columns: tuple[Column, ...]
    left: list[Step]
    done: list[Step] = field(default_factory=list)
    why: str | None = None
    sql: SparkSql = field(init=False)
    _values: Values = field(init=False)
    _where: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._values = {column.name: spark_sql.of_column(column) for column in self.columns}
        grouped = None
        try:
            while self.left and grouped is None:
                grouped = self._take(self.left[0])
        except NotListedError as found:
            self.why = str(found)
        self.sql = grouped or SparkSql(tuple(self._where), self._outputs(), WEIGHT)

    def _outputs(self) -> tuple[str, ...]:
        return tuple(self._values[column.name].wire for column in self.columns)

    def _take(self, step: Step) -> SparkSql | None:
        """Does the next step; what it is by now if it is the last that Spark can do."""
        grouped = None
        match step:
            case Filter():
                step = self._kept(step)
            case Project():
                self._values = self._projected(step)
            case GroupStep():
                grouped = self._grouped(step)
            case _:
                raise NotListedError(type(step).__name__.lower())
        self.columns = step.columns
        self.done.append(step)
        del self.left[0]
        return grouped

    def _kept(self, step: Filter) -> Filter:
        """The part of a filter that is listed; the rest stays."""
        listed, others, why = [], [], ""
        for part in conjuncts(step.condition):
            try:
                self._where.append(spark_sql.condition(part, self._values))
                listed.append(part)
            except NotListedError as found:
                others.append(part)
                why = str(found)
        done, rest = conjunction(listed), conjunction(others)
        if rest is not None and done is not None:
            self.done.append(Filter(step.columns, step.input, done))
            self.left[0] = Filter(step.columns, step.input, rest)
        if rest is not None:
            raise NotListedError(why)
        return step

    def _projected(self, step: Project) -> Values:
        found = {}
        for column, expression in zip(step.columns, step.expressions, strict=True):
            value = spark_sql.of_expression(expression, self._values)
            if not spark_sql.agrees(value, column.type):
                raise NotListedError(f"{value.kind.name} as {column.type.name}")
            found[column.name] = value
        return found

    def _grouped(self, step: GroupStep) -> SparkSql:
        aggregate = step.aggregate
        if keys_with_looks(aggregate):
            raise NotListedError("a key whose equal values may look different")
        keys = tuple(self._values[key].wire for key in aggregate.keys)
        sums = tuple(self._summed(contribution) for contribution in all_contributions(aggregate))
        return SparkSql(tuple(self._where), (*keys, *sums), f"coalesce(sum({WEIGHT}), 0L)", len(keys))

    def _summed(self, contribution: Contribution) -> str:
        """What weighted rows add to a group."""
        tally = contribution.tally
        if tally is None:
            raise NotListedError("such a call")
        value = self._values[tally.argument]
        match tally.what:
            case What.PRESENT:
                return f"coalesce(sum({WEIGHT}) FILTER (WHERE {value.wire} IS NOT NULL), 0L)"
            case What.NONE:
                return "0L"
            case What.SUM:
                return self._sum(tally.argument)
        function = "min" if tally.what in {What.LEAST_CAME, What.LEAST_LEFT} else "max"
        sign = ">" if tally.what in {What.LEAST_CAME, What.MOST_CAME} else "<"
        best = f"{function}({comparable(value)}) FILTER (WHERE {WEIGHT} {sign} 0)"
        return f"CAST({best} AS STRING)" if value.kind.name == "decimal" else best

    def _sum(self, argument: str) -> str:
        """Σ value · weight, as text: the state is a numeric. Nearly all weights are 1 or −1."""
        value = self._values[argument]
        if value.kind.name == "integer" and value.kind.size < 64:
            total = f"sum({value.sql} * {WEIGHT})"
        elif value.kind.name == "integer":
            total = f"sum(CAST({value.sql} AS DECIMAL(19,0)) * CAST({WEIGHT} AS DECIMAL(18,0)))"
        elif value.kind.name == "decimal" and value.kind.scale <= _MOST_TIMES_A_WEIGHT:
            least = f"DECIMAL({min(value.kind.size, _MOST_TIMES_A_WEIGHT)},{value.kind.scale})"
            most = f"DECIMAL({min(value.kind.size + _DIGITS_OF_A_WEIGHT + 1, MOST_DIGITS)},{value.kind.scale})"
            times = f"CAST({value.sql} AS {least}) * CAST({WEIGHT} AS DECIMAL({_DIGITS_OF_A_WEIGHT},0))"
            once = f"WHEN 1 THEN CAST({value.sql} AS {most}) WHEN -1 THEN CAST(- {value.sql} AS {most})"
            total = f"sum(CASE {WEIGHT} {once} ELSE CAST({times} AS {most}) END)"
        else:
            raise NotListedError(f"a sum of {value.kind.name}")
        return f"coalesce(CAST({total} AS STRING), '0')"
