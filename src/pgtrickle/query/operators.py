"""The operator tree: frozen nodes that refuse to be built wrong. `builder/build.py` makes it, `delta/` differentiates
it.

Column names are unique in a tree, so an expression names a column without saying which input it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Self

from pgtrickle.model import Column, Expr, Table


class MalformedTree(ValueError):
    """A node was built with columns its inputs do not have: a bug of ours, never of the user."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Base of all nodes; each has `columns`, its output, in order.

    `INPUTS` are the fields that hold its inputs: an operator each, or a tuple of them. `PASSED` are those of them whose
    columns it passes on; the columns it makes come after these.
    """

    columns: tuple[Column, ...]

    INPUTS: ClassVar[tuple[str, ...]] = ()
    PASSED: ClassVar[tuple[str, ...]] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def inputs(self) -> tuple[Operator, ...]:
        """The operators whose rows it reads."""
        found: list[Operator] = []
        for field in self.INPUTS:
            held = getattr(self, field)
            found += held if isinstance(held, tuple) else (held,)
        return tuple(found)

    @property
    def made(self) -> tuple[Column, ...]:
        """The columns that it does not pass on, but makes."""
        return self.columns[sum(len(getattr(self, field).columns) for field in self.PASSED) :]

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of its inputs that it looks at, besides those that it passes on."""
        return ()

    def with_inputs(self, inputs: Sequence[Operator]) -> Self:
        """The same over as many other inputs, whose columns it passes on."""
        require(len(inputs) == len(self.inputs), "a node has as many inputs as before")
        if not inputs:
            return self
        take = iter(inputs)
        held: dict[str, Any] = {}
        for field in self.INPUTS:
            each = getattr(self, field)
            held[field] = tuple(next(take) for _ in each) if isinstance(each, tuple) else next(take)
        passed = tuple(column for field in self.PASSED for column in held[field].columns)
        return replace(self, columns=passed + self.made, **held)


@dataclass(frozen=True, slots=True)
class RowWise(Operator):
    """What looks at each row of its input by itself: the columns of the input, then those it makes.

    So its delta is itself over the delta, it is evaluated wherever its input is read, and filters of the input's
    columns may go below it. (A projection passes on what its expressions say.) `REPEATS`: one row may become several.
    """

    input: Operator

    INPUTS: ClassVar[tuple[str, ...]] = ("input",)
    PASSED: ClassVar[tuple[str, ...]] = ("input",)
    REPEATS: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Stateful(Operator):
    """What keeps its rows, or what these are made of, in a table of its own: the state as of the last refresh."""

    input: Operator

    INPUTS: ClassVar[tuple[str, ...]] = ("input",)


@dataclass(frozen=True, slots=True)
class Scan(Operator):
    """Rows of one source table; `attributes[i]` is the table's name for `columns[i]`. Only used columns.

    `only`: not those of tables that inherit from it. `apart`: there are such, so that its changes are told from theirs.
    """

    table: Table
    attributes: tuple[str, ...]
    only: bool = False
    apart: bool = False

    @property
    def relation(self) -> str:
        """What is read, as FROM names it."""
        return self.named(self.table.qualified)

    def named(self, table: str) -> str:
        """The same of a table that stands for it."""
        return f"ONLY {table}" if self.only else table

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each attribute with the name of its column."""
        return list(zip(self.attributes, self.names, strict=True))

    def __post_init__(self) -> None:
        require(len(self.attributes) == len(self.columns), "a scan names each of its columns once")
        _require_unique(self.names)


@dataclass(frozen=True, slots=True)
class Constant(Operator):
    """Rows that depend on no table: `sql` is an item of FROM, such as `(VALUES (1), (2))`."""

    sql: str

    def __post_init__(self) -> None:
        _require_unique(self.names)


@dataclass(frozen=True, slots=True)
class Filter(RowWise):
    """Rows for which `condition` is true. Output columns are the input's."""

    condition: Expr

    def __post_init__(self) -> None:
        require(self.names == self.input.names, "a filter keeps its input's columns")
        _require_known(self.reads, self.input)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.condition.columns


@dataclass(frozen=True, slots=True)
class Project(RowWise):
    """One expression for each output column."""

    expressions: tuple[Expr, ...]

    PASSED: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        require(len(self.expressions) == len(self.columns), "a projection has one expression a column")
        _require_unique(self.names)
        for expression in self.expressions:
            _require_known(expression.columns, self.input)


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

    INPUTS: ClassVar[tuple[str, ...]] = ("left", "right")
    PASSED: ClassVar[tuple[str, ...]] = ("left", "right")

    def __post_init__(self) -> None:
        require(self.names == self.left.names + self.right.names, "a join's columns are left's then right's")
        _require_pairable(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return () if self.condition is None else self.condition.columns


@dataclass(frozen=True, slots=True)
class LeftJoin(Operator):
    """The pairs of an inner join, and each row of `left` that has none, padded with NULLs. Columns as of a join."""

    left: Operator
    right: Operator
    condition: Expr | None
    equalities: tuple[Equality, ...] = ()

    INPUTS: ClassVar[tuple[str, ...]] = ("left", "right")
    PASSED: ClassVar[tuple[str, ...]] = ("left", "right")

    def __post_init__(self) -> None:
        require(self.names == self.left.names + self.right.names, "a join's columns are left's then right's")
        _require_pairable(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return () if self.condition is None else self.condition.columns


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

    INPUTS: ClassVar[tuple[str, ...]] = ("left", "right")
    PASSED: ClassVar[tuple[str, ...]] = ("left",)

    def __post_init__(self) -> None:
        extra = 1 if self.kind is MatchKind.MARK else 0
        require(self.names[: len(self.names) - extra] == self.left.names, "a match's columns are left's")
        require(len(self.names) == len(self.left.names) + extra, "only a mark adds a column")
        _require_pairable(self)

    @property
    def reads(self) -> tuple[str, ...]:
        return () if self.condition is None else self.condition.columns

    @property
    def mark(self) -> Column | None:
        """The column that says whether there is a match."""
        return self.made[0] if self.made else None


@dataclass(frozen=True, slots=True)
class Repeat(RowWise):
    """Each row as often as its integer column `times` says; not at all for zero. Output columns are the input's."""

    times: str

    REPEATS: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.names == self.input.names, "a repetition keeps its input's columns")
        _require_known(self.reads, self.input)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.times,)


@dataclass(frozen=True, slots=True)
class Expand(RowWise):
    """Each row beside the rows that a set-returning function makes of it: the input's columns, then the function's.

    `outer`: a row of which nothing is made stays, padded with NULLs.
    """

    call: Expr
    outer: bool = False

    REPEATS: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.names[: len(self.input.names)] == self.input.names, "an expansion adds columns to its input's")
        _require_unique(self.names)
        _require_known(self.reads, self.input)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.call.columns


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
class Aggregate(Stateful):
    """Groups by `keys` (input column names). Output: the key columns, then one column a call.

    Without keys there is exactly one output row, even over no rows.
    """

    keys: tuple[str, ...]
    calls: tuple[AggregateCall, ...]

    def __post_init__(self) -> None:
        require(
            self.names == self.keys + tuple(call.output.name for call in self.calls),
            "an aggregate's columns are its keys then its calls",
        )
        _require_unique(self.names)
        _require_known(self.keys, self.input)
        for call in self.calls:
            _require_known(call.call.columns, self.input)


@dataclass(frozen=True, slots=True)
class TopK(Stateful):
    """The first `limit` rows (None: all) after `offset` ones, in the order of `order`: texts of an ORDER BY.

    `order` reads columns by their names and ends with all of them, so that rows which tie are identical. With `ties`,
    rows come as well that are like the last in so many parts of the order.
    """

    order: tuple[str, ...]
    limit: int | None
    offset: int = 0
    ties: int | None = None

    PASSED: ClassVar[tuple[str, ...]] = ("input",)

    def __post_init__(self) -> None:
        require(self.names == self.input.names, "the first rows have their input's columns")
        require(len(self.order) > 0, "there are no first rows without an order")


class Ties(Enum):
    """What the order of rows that tie in a window's ORDER BY does to a call."""

    NONE = "nothing: it looks at peers as a whole, in no order"
    ORDERED = "it takes rows one by one: the order ends with all columns, so that rows which tie are identical"
    SORTED = "it looks at peers as a whole and shows their order: rows come sorted, and stay so"


class GoesOn(Enum):
    """How a window call goes on from the last row before those that are computed again, of which `c` is what it made,
    where what it makes of these alone is `w`. What it makes of a row must depend on no row after its peers, but for as
    many as its `Reach` says."""

    PLACE = "w + c: row_number"
    RANK = "w + the number of rows before: rank"
    ADDED = "w + c, of those that are not NULL: dense_rank, and running counts and sums that are exact"
    LEAST = "the least of w and c: a running min"
    GREATEST = "the greatest of w and c: a running max"
    FIRST = "c: first_value"
    ANEW = "w: last_value, and what looks at some rows around its own"
    MEAN = "from a sum and a count, which go on themselves: a running avg of exact numbers"
    NOT = "it cannot, but depends on no later row: a running sum of floats"


@dataclass(frozen=True, slots=True)
class Reach:
    """How many of the rows before its own, and of those after it, a call looks at; what it goes on from not counted."""

    back: int = 0
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class SortPart:
    """A part of an ORDER BY that is just a column, in its type's own order."""

    column: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class WindowCall:
    """One window call: `call` is its text up to OVER (`sum(c5) FILTER(WHERE c6)`), `order` that of its ORDER BY.

    `sorts` are the parts of the order, if all are columns; `goes_on` says how it can be computed from some row on, if
    it can.
    """

    call: Expr
    order: Expr | None
    frame: str
    ties: Ties
    output: Column
    sorts: tuple[SortPart, ...] = ()
    goes_on: GoesOn | None = None
    reach: Reach = Reach()

    @property
    def reads(self) -> tuple[str, ...]:
        return (*self.call.columns, *(() if self.order is None else self.order.columns))


@dataclass(frozen=True, slots=True)
class FirstPlaces:
    """Rows whose number or rank, which a window call has made, is at most `last`."""

    place: str
    last: int


@dataclass(frozen=True, slots=True)
class Window(Stateful):
    """Each row beside what window calls make of its partition: of the rows that are like it in `keys`.

    Output: the input's columns, then one a call. Without keys all rows are one partition.
    `first`: a filter above keeps only rows that are among the first of their partition, so that no others need come.
    """

    keys: tuple[str, ...]
    calls: tuple[WindowCall, ...]
    first: FirstPlaces | None = None

    PASSED: ClassVar[tuple[str, ...]] = ("input",)

    def __post_init__(self) -> None:
        made = tuple(call.output.name for call in self.calls)
        require(self.names == self.input.names + made, "a window's columns are its input's then its calls")
        require(len(self.calls) > 0, "a window has a call")
        require(self.first is None or self.first.place in made, "what numbers the rows of a window is one of its calls")
        _require_unique(self.names)
        _require_known(self.reads, self.input)

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.keys, *(name for call in self.calls for name in call.reads)]))


@dataclass(frozen=True, slots=True)
class WorkingTable(Operator):
    """In the recursive term of a WITH RECURSIVE: the rows that the round before added. `distinct`: of a UNION."""

    distinct: bool

    def __post_init__(self) -> None:
        _require_unique(self.names)


@dataclass(frozen=True, slots=True)
class Recursive(Stateful):
    """WITH RECURSIVE: the rows of `input`, and round by round those that `step` makes of the rows of the round before,
    its `working` table, until there are none; with `distinct` (UNION) only rows that are new, each once.

    The i-th column of both terms becomes the i-th output column.
    """

    step: Operator
    working: WorkingTable

    INPUTS: ClassVar[tuple[str, ...]] = ("input", "step")

    def __post_init__(self) -> None:
        for each in (self.input, self.step, self.working):
            require(len(each.columns) == len(self.columns), "the terms of a recursion are equally wide")
        require(self.readings > 0, "a recursive term reads its rows")

    @property
    def distinct(self) -> bool:
        return self.working.distinct

    @property
    def readings(self) -> int:
        """How often the term reads its rows: more than once where a correlated subquery is asked about them."""
        return sum(node == self.working for node in walk(self.step))


Joined = InnerJoin | LeftJoin | Match
"""What puts the rows of two sides together."""


@dataclass(frozen=True, slots=True)
class UnionAll(Operator):
    """All rows of all inputs; the i-th column of each input becomes the i-th output column."""

    branches: tuple[Operator, ...]

    INPUTS: ClassVar[tuple[str, ...]] = ("branches",)

    def __post_init__(self) -> None:
        require(len(self.branches) >= 1, "a union has a branch")
        for branch in self.branches:
            require(len(branch.columns) == len(self.columns), "all branches of a union are equally wide")


def walk(operator: Operator) -> Iterator[Operator]:
    """The operator and all below it, top first."""
    yield operator
    for child in operator.inputs:
        yield from walk(child)


def is_joined(operator: Operator) -> bool:
    """Whether the rows are put together from several."""
    return any(isinstance(node, Joined) for node in walk(operator))


def _require_pairable(join: Joined) -> None:
    _require_unique(join.left.names + join.right.names)
    _require_known(join.reads, join.left, join.right)
    for equality in join.equalities:
        _require_known(equality.left.columns, join.left)
        _require_known(equality.right.columns, join.right)


def require(condition: bool, rule: str) -> None:
    """A rule that nodes are held to."""
    if not condition:
        raise MalformedTree(rule)


def _require_unique(names: tuple[str, ...]) -> None:
    require(len(set(names)) == len(names), f"column names repeat: {names}")


def _require_known(names: tuple[str, ...], *inputs: Operator) -> None:
    known = {name for operator in inputs for name in operator.names}
    require(set(names) <= known, f"unknown columns {sorted(set(names) - known)}")
