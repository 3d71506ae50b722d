"""The physical plan: how rows flow, and the stages of a refresh. Pure values; `explain` prints them.

A flow is a weighted, typed relation: its `columns`, and a weight. Where it is made of other flows, it is SQL over these
as relations with names (`pgt_input_1`, …). How rows get to PostgreSQL and back is the business of whoever evaluates it:
`spark/`, whose tasks send them as arrays, or plain SQL (`flow_sql.py`). `lower_delta.py` and `lower_full.py` make
the plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pgtrickle.model import Column, Table
from pgtrickle.postgres.weighted import Step
from pgtrickle.query.continued_windows import Extent
from pgtrickle.query.operators import Aggregate, MatchKind, Recursive, TopK, Window


class Place(StrEnum):
    """Where rows are read: at the refresh's snapshot; at a later one, for changes that came after it; or where only the
    driver can read: in the refresh's own transaction, which has what is not committed yet, or in the one that holds the
    snapshot (`READER`), which has copies of that."""

    SNAPSHOT = "snapshot"
    LATE = "late"
    WRITER = "writer"
    READER = "reader"

    @property
    def is_private(self) -> bool:
        """Whether it is a transaction of the driver's, which no task can see."""
        return self in {Place.WRITER, Place.READER}


@dataclass(frozen=True, slots=True)
class Flow:
    """Base of all flows; `rows` is an estimate."""

    columns: tuple[Column, ...]
    rows: float


Ranged = Callable[[str], str]
"""The SQL of a relation of which a task reads its share, given the condition on the rows of the shared table."""

WHOLE = "true"
"""The condition of a task that reads all."""


@dataclass(frozen=True, slots=True)
class Share:
    """How tasks share a read: by ranges of the ctid of `table`. Reads that are alike but for this are alike: the sum of
    the shares is the same."""

    table: str
    relation: Ranged = field(compare=False, repr=False)

    def then(self, query: Callable[[str], str]) -> Share:
        """The same share of what a query makes of the relation."""
        return Share(self.table, lambda within: query(self.relation(within)))


@dataclass(frozen=True, slots=True)
class Read(Flow):
    """Rows of one query at its place. With `split_by`, tasks may each read a share of it."""

    relation: str
    what: str
    split_by: Share | None = None
    place: Place = Place.SNAPSHOT

    def shares(self, ranges: Callable[[str], list[str]]) -> list[str]:
        """The relations that are it together, one a range of the table that tasks share."""
        if self.split_by is None:
            return [self.relation]
        return [self.split_by.relation(part) for part in ranges(self.split_by.table)]


@dataclass(frozen=True, slots=True)
class Merged(Flow):
    """Rows of an aggregate below, read from where its stage left them."""

    relation: str
    aggregate: int


@dataclass(frozen=True, slots=True)
class Lookup(Flow):
    """What PostgreSQL makes of the rows of `input`, at the snapshot: they may go in batches, and come back joined.

    `whole`: all rows go as one batch, since what one row changes depends on the others: on those that are alike in the
    columns `apart`, if there are some.
    """

    input: Flow
    relation: str
    what: str
    whole: bool = False
    apart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JointLookup(Flow):
    """What one query makes of several deltas, at the snapshot. Nothing comes of it if the first has no rows. `cancels`:
    rows that are alike are to be added up there, since many cancel out. `apart`: the columns of each, in which those
    rows are alike that must be sent together; none, if all must be."""

    flows: tuple[Flow, ...]
    relation: str
    cancels: bool = False
    apart: tuple[tuple[str, ...], ...] = ()


def input_name(position: int) -> str:
    """What the first, second, … of the flows that a flow is made of is called in its relation."""
    return f"pgt_input_{position}"


def from_input(position: int) -> str:
    """The rows of that input, with its columns and the weight."""
    return f"SELECT * FROM {input_name(position)}"


@dataclass(frozen=True, slots=True)
class HashJoin(Flow):
    """Spark's own equi-join of two flows on columns both engines compare alike; by `null_safe` NULL finds NULL. `sign`
    is −1 where the pairs are taken away."""

    left: Flow
    right: Flow
    keys: tuple[tuple[str, str], ...]
    null_safe: tuple[tuple[str, str], ...] = ()
    sign: int = 1


@dataclass(frozen=True, slots=True)
class SparkSql:
    """What Spark makes of weighted rows: of those that meet all of `where`, or of each group of them that are alike in
    the first `keys` outputs, a row of `outputs`, in the form in which columns travel, and a weight."""

    where: tuple[str, ...]
    outputs: tuple[str, ...]
    weight: str
    keys: int | None = None


@dataclass(frozen=True, slots=True)
class Computed(Flow):
    """What Spark makes of the rows of a flow by themselves, or by groups. Only below a `Native`."""

    input: Flow
    sql: SparkSql


@dataclass(frozen=True, slots=True)
class HashMatch(Flow):
    """Spark's own semi-join, anti-join or mark; without a `kind` its left join. Rows match that are equal in such
    columns and meet all of `where`; those of the right side have weights above zero. Only below a `Native`."""

    left: Flow
    right: Flow
    kind: MatchKind | None
    keys: tuple[tuple[str, str], ...]
    null_safe: tuple[tuple[str, str], ...] = ()
    where: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Net(Flow):
    """The sum of flows, some of which are taken away: rows that look alike are one. Only below a `Native`."""

    terms: tuple[tuple[int, Flow], ...]


@dataclass(frozen=True, slots=True)
class Native(Flow):
    """What Spark itself makes of rows that it has: the same as PostgreSQL, if it were `asked`, or nothing."""

    by_spark: Flow
    asked: Flow = field(compare=False)


@dataclass(frozen=True, slots=True)
class Concat(Flow):
    """All rows of several flows."""

    flows: tuple[Flow, ...]


def inputs(flow: Flow) -> tuple[Flow, ...]:
    """The flows that it is made of."""
    match flow:
        case Lookup(input=source) | Computed(input=source) | Native(by_spark=source):
            return (source,)
        case HashJoin(left=left, right=right) | HashMatch(left=left, right=right):
            return (left, right)
        case Net(terms=terms):
            return tuple(below for _, below in terms)
        case Concat(flows=flows) | JointLookup(flows=flows):
            return flows
    return ()


def is_native(flow: Flow) -> bool:
    """Whether Spark evaluates something of it."""
    return isinstance(flow, Native) or any(map(is_native, inputs(flow)))


def asked(flow: Flow) -> Flow:
    """The same flow, with PostgreSQL asked for all that Spark would evaluate."""
    match flow:
        case Native():
            return asked(flow.asked)
        case Lookup(input=source):
            return replace(flow, input=asked(source))
        case HashJoin(left=left, right=right):
            return replace(flow, left=asked(left), right=asked(right))
        case Concat(flows=flows) | JointLookup(flows=flows):
            return replace(flow, flows=tuple(map(asked, flows)))
    return flow


def parts(flow: Flow) -> tuple[Flow, ...]:
    """What a flow has all rows of: parts that do not need each other."""
    if isinstance(flow, Concat):
        return tuple(part for below in flow.flows for part in parts(below))
    return (flow,)


def needs_stage(flow: Flow) -> bool:
    """Whether it starts from what an earlier stage leaves."""
    return isinstance(flow, Merged) or any(map(needs_stage, inputs(flow)))


def uses(flows: Iterable[Flow]) -> Counter[Flow]:
    """How often each is asked for: by itself, or by a flow made of it."""
    counted, left = Counter[Flow](), list(flows)
    while left:
        flow = left.pop()
        counted[flow] += 1
        if counted[flow] == 1:
            left.extend(inputs(flow))
    return counted


@dataclass(frozen=True, slots=True)
class LandAggregate:
    """Stage: rows land in PostgreSQL and, after `steps`, go into the aggregate's state.

    They are contributions to its groups, or, in a full refresh of what is not additive, its input's rows. `careful`:
    the same for more, done if the state turns out to have numbers that are not finite. `grouped`: there is one row a
    group, so that nothing is to be added up.
    """

    number: int
    aggregate: Aggregate
    input: Flow
    steps: tuple[Step, ...] = ()
    careful: LandAggregate | None = None
    grouped: bool = False


@dataclass(frozen=True, slots=True)
class KeepFirst:
    """Stage: the first rows are read, from the state below or at the snapshot, and compared with those kept."""

    number: int
    top: TopK


@dataclass(frozen=True, slots=True)
class LandWindow:
    """Stage: rows of a window's input land in PostgreSQL and, after `steps`, go into its state: the partitions that
    they touch, or an `extent` of them, are computed again there."""

    number: int
    window: Window
    input: Flow
    steps: tuple[Step, ...] = ()
    extent: Extent = Extent.WHOLE


@dataclass(frozen=True, slots=True)
class KeepRecursion:
    """Stage: a recursion is evaluated at the snapshot, and compared with the rows kept; or, with `changed`, changed by
    rounds over what those tables have changes of. `why` it is evaluated again, where others would not be."""

    number: int
    recursion: Recursive
    changed: frozenset[int] | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class LandResult:
    """Stage: rows land in PostgreSQL and, after `steps`, are the result's rows."""

    input: Flow
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Stage: the result comes from an aggregate's stage with no Spark in between; `sql` reads it."""

    sql: str
    aggregate: int


Landing = LandAggregate | LandWindow | LandResult
"""What rows of a flow land for."""

Stage = Landing | KeepFirst | KeepRecursion | ReadResult


@dataclass(frozen=True, slots=True)
class Choice:
    """How one operand of a join is read, and why; shown by `explain`. `missing` is the statement that makes an index
    by which it would be read for less; `doctor` collects these."""

    tables: tuple[Table, ...]
    method: str
    reason: str
    missing: str | None = None
    estimate: str = ""


@dataclass(frozen=True, slots=True)
class Physical:
    """A refresh, ready to run: its stages in order, and the choices made."""

    stages: tuple[Stage, ...]
    choices: tuple[Choice, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the history should say of it besides."""
        whys = (stage.why for stage in self.stages if isinstance(stage, KeepRecursion))
        return tuple(f"a recursion is evaluated again: {why}" for why in whys if why is not None)
