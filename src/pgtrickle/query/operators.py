"""The operator tree: frozen nodes that refuse to be built wrong. `build.py` makes it, `delta/` differentiates it.

Column names are unique in a tree, so an expression names a column without saying which input it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from pgtrickle.model import Column, Expr, Table


class MalformedTree(ValueError):
    """A node was built with columns its inputs do not have: a bug of ours, never of the user."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Base of all nodes; each has `columns`, its output, in order."""

    columns: tuple[Column, ...]

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


@dataclass(frozen=True, slots=True)
class Scan(Operator):
    """Rows of one source table; `attributes[i]` is the table's name for `columns[i]`. Only used columns."""

    table: Table
    attributes: tuple[str, ...]

    def __post_init__(self) -> None:
        _require(len(self.attributes) == len(self.columns), "a scan names each of its columns once")
        _require_unique(self.names)


@dataclass(frozen=True, slots=True)
class Constant(Operator):
    """Rows that depend on no table: `sql` is an item of FROM, such as `(VALUES (1), (2))`."""

    sql: str

    def __post_init__(self) -> None:
        _require_unique(self.names)


@dataclass(frozen=True, slots=True)
class Filter(Operator):
    """Rows for which `condition` is true. Output columns are the input's."""

    input: Operator
    condition: Expr

    def __post_init__(self) -> None:
        _require(self.names == self.input.names, "a filter keeps its input's columns")
        _require_known(self.condition.columns, self.input)

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class Project(Operator):
    """One expression for each output column."""

    input: Operator
    expressions: tuple[Expr, ...]

    def __post_init__(self) -> None:
        _require(len(self.expressions) == len(self.columns), "a projection has one expression a column")
        _require_unique(self.names)
        for expression in self.expressions:
            _require_known(expression.columns, self.input)

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class Use(Project):
    """A use of an input that may have others. It is the same for all of them and stays so: `rewrite/` does not change
    it for the sake of one. So they have one state, and can have one delta."""


@dataclass(frozen=True, slots=True)
class Equality:
    """`left = right`, each side reading columns of one join input only."""

    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class InnerJoin(Operator):
    """Pairs of rows for which `condition` (absent: always) is true; output is left's columns, then right's.

    `equalities` are those conjuncts of `condition` of the form left-expression = right-expression.
    """

    left: Operator
    right: Operator
    condition: Expr | None
    equalities: tuple[Equality, ...] = ()

    def __post_init__(self) -> None:
        _require(self.names == self.left.names + self.right.names, "a join's columns are left's then right's")
        _require_pairable(self)

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, slots=True)
class LeftJoin(Operator):
    """The pairs of an inner join, and each row of `left` that has none, padded with NULLs. Columns as of a join."""

    left: Operator
    right: Operator
    condition: Expr | None
    equalities: tuple[Equality, ...] = ()

    def __post_init__(self) -> None:
        _require(self.names == self.left.names + self.right.names, "a join's columns are left's then right's")
        _require_pairable(self)

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.left, self.right)


class MatchKind(Enum):
    """What becomes of a row of the left side."""

    SEMI = "with a match"
    ANTI = "without a match"
    MARK = "has a match"


@dataclass(frozen=True, slots=True)
class Match(Operator):
    """Rows of `left` that match a row of `right` (SEMI), that match none (ANTI), or all, with the answer (MARK).

    Output: left's columns, and for MARK one boolean column more, which is never NULL. A row of `left` comes once,
    however many rows it matches.
    """

    left: Operator
    right: Operator
    condition: Expr | None
    kind: MatchKind
    equalities: tuple[Equality, ...] = ()

    def __post_init__(self) -> None:
        extra = 1 if self.kind is MatchKind.MARK else 0
        _require(self.names[: len(self.names) - extra] == self.left.names, "a match's columns are left's")
        _require(len(self.names) == len(self.left.names) + extra, "only a mark adds a column")
        _require_pairable(self)

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.left, self.right)

    @property
    def mark(self) -> Column | None:
        """The column that says whether there is a match."""
        return self.columns[-1] if self.kind is MatchKind.MARK else None


@dataclass(frozen=True, slots=True)
class Repeat(Operator):
    """Each row as often as its integer column `times` says; not at all for zero. Output columns are the input's."""

    input: Operator
    times: str

    def __post_init__(self) -> None:
        _require(self.names == self.input.names, "a repetition keeps its input's columns")
        _require_known((self.times,), self.input)

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class Expand(Operator):
    """Each row beside the rows that a set-returning function makes of it: the input's columns, then the function's.

    `outer`: a row of which nothing is made stays, padded with NULLs.
    """

    input: Operator
    call: Expr
    outer: bool = False

    def __post_init__(self) -> None:
        _require(self.names[: len(self.input.names)] == self.input.names, "an expansion adds columns to its input's")
        _require_unique(self.names)
        _require_known(self.call.columns, self.input)

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def made(self) -> tuple[Column, ...]:
        """The function's columns."""
        return self.columns[len(self.input.columns) :]


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One aggregate: `function` is its bare name (`sum`), `call` its text over input columns (`sum(c5)`).

    `argument` is the column of a plain one-argument call, and None for `count(*)` and for calls with
    more than one argument, DISTINCT or ORDER BY (`plain` is false for the latter).
    """

    function: str
    call: Expr
    output: Column
    argument: Column | None = None
    plain: bool = True


@dataclass(frozen=True, slots=True)
class Aggregate(Operator):
    """Groups by `keys` (input column names). Output: the key columns, then one column a call.

    Without keys there is exactly one output row, even over no rows.
    """

    input: Operator
    keys: tuple[str, ...]
    calls: tuple[AggregateCall, ...]

    def __post_init__(self) -> None:
        _require(
            self.names == self.keys + tuple(call.output.name for call in self.calls),
            "an aggregate's columns are its keys then its calls",
        )
        _require_unique(self.names)
        _require_known(self.keys, self.input)
        for call in self.calls:
            _require_known(call.call.columns, self.input)

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)


@dataclass(frozen=True, slots=True)
class TopK(Operator):
    """The first `limit` rows (None: all) after `offset` ones, in the order of `order`: texts of an ORDER BY.

    `order` reads columns by their names and ends with all of them, so that rows which tie are identical. With `ties`,
    rows come as well that are like the last in so many parts of the order.
    """

    input: Operator
    order: tuple[str, ...]
    limit: int | None
    offset: int = 0
    ties: int | None = None

    def __post_init__(self) -> None:
        _require(self.names == self.input.names, "the first rows have their input's columns")
        _require(len(self.order) > 0, "there are no first rows without an order")

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)


Joined = InnerJoin | LeftJoin | Match
"""What puts the rows of two sides together."""

Stateful = Aggregate | TopK
"""What keeps state in a table of its own."""


@dataclass(frozen=True, slots=True)
class UnionAll(Operator):
    """All rows of all inputs; the i-th column of each input becomes the i-th output column."""

    branches: tuple[Operator, ...]

    def __post_init__(self) -> None:
        _require(len(self.branches) >= 1, "a union has a branch")
        for branch in self.branches:
            _require(len(branch.columns) == len(self.columns), "all branches of a union are equally wide")

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return self.branches


def walk(operator: Operator) -> Iterator[Operator]:
    """The operator and all below it, top first."""
    yield operator
    for child in operator.inputs:
        yield from walk(child)


def _require_pairable(join: Joined) -> None:
    _require_unique(join.left.names + join.right.names)
    if join.condition is not None:
        _require_known(join.condition.columns, join.left, join.right)
    for equality in join.equalities:
        _require_known(equality.left.columns, join.left)
        _require_known(equality.right.columns, join.right)


def _require(condition: bool, rule: str) -> None:
    if not condition:
        raise MalformedTree(rule)


def _require_unique(names: tuple[str, ...]) -> None:
    _require(len(set(names)) == len(names), f"column names repeat: {names}")


def _require_known(names: tuple[str, ...], *inputs: Operator) -> None:
    known = {name for operator in inputs for name in operator.names}
    _require(set(names) <= known, f"unknown columns {sorted(set(names) - known)}")
