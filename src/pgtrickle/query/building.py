"""What the parts of the builder share: values they pass on, refusals, checks. Pure; `build.py` puts them together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from pgtrickle.errors import Unsupported
from pgtrickle.model import Table
from pgtrickle.query import clauses, support
from pgtrickle.query.analysis import Analysis, Body, InlinedView, SourceRelation
from pgtrickle.query.bench import Bench, Describe
from pgtrickle.query.calls import Calls
from pgtrickle.query.given import Given
from pgtrickle.query.keyed import Keyed
from pgtrickle.query.locate import locate, locate_name, locate_scalar_subquery
from pgtrickle.query.operators import Operator
from pgtrickle.query.scope import Scope
from pgtrickle.query.sublinks import Attachment
from pgtrickle.query.support import Gap
from pgtrickle.query.topk import Bounds


@dataclass(frozen=True, slots=True)
class Rows:
    """A query built: its rows, and its output as (label, column)."""

    operator: Operator
    outputs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class With:
    """A WITH query, with the WITH queries it may use itself; `often` if it is used more than once, and not to be
    inlined all the same (NOT MATERIALIZED)."""

    query: exp.Expr
    columns: tuple[str, ...]
    names: Mapping[str, With]
    often: bool


Names = Mapping[str, With]


@dataclass(frozen=True, slots=True)
class Around:
    """What a subquery in an expression may use: WITH queries; and where it leaves what is to be joined."""

    names: Names
    attachments: list[Attachment] = field(default_factory=list)
    sets: bool = False  # whether functions that return sets may be called


@dataclass(frozen=True, slots=True)
class Below:
    """The rows that FROM and WHERE give a SELECT; `carried` are the values that it is built for, `given`.

    Those of them that are `sought` are not NULL in any row.
    """

    scope: Scope
    operator: Operator
    names: Names
    given: Given | None = None
    carried: tuple[str, ...] = ()
    sought: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class First:
    """The first row in `order` of each group of `keys` (DISTINCT ON), the first rows (`bounds`: LIMIT), or both."""

    keys: list[exp.Expr]
    order: list[exp.Expr]
    bounds: Bounds | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """What stands above the rows of a SELECT: labels and expressions of its list, HAVING, subqueries, the order that
    DISTINCT ON or LIMIT go by."""

    labels: list[str]
    selected: list[exp.Expr]
    conditions: list[exp.Expr]
    around: Around
    first: First | None
    carried: int = 0  # how many at the end of the list are values that the query is built for
    sought: frozenset[str] = frozenset()  # those of them that are not NULL in any row


class Building(ABC):
    """One query being built. Each part of the builder has some of its methods, and calls those of the others."""

    def __init__(self, analysis: Analysis, describe: Describe) -> None:
        self._analysis = analysis
        self._bench = Bench(describe)
        readable: list[SourceRelation | InlinedView] = [*analysis.sources, *analysis.views]
        self._sources = {(source.table.schema, source.table.name): source for source in readable}
        self._calls = Calls(analysis)
        self._views: list[Table] = []
        self._ordered = False
        self._built: dict[int, tuple[object, Rows]] = {}  # by the id of a WITH query or view, held so that it stays one

    def _refuse(self, gap: Gap, name: str = "", *phrases: str) -> Unsupported:
        """The refusal, located in the user's text; what is inside a view is located by the view's name."""
        sql = self._analysis.sql
        if self._views:
            return gap.refuse(name, at=locate_name(sql, self._views[0].name), view=str(self._views[-1]))
        if gap is support.SUBQUERY and not phrases:
            return gap.refuse(name, at=locate_scalar_subquery(sql))
        return gap.refuse(name, at=locate(sql, *phrases))

    def _check_parts(self, query: exp.Expr) -> None:
        """Refuses what clauses hold that nobody looks at."""
        for clause, part in clauses.unknown(query):
            match part:
                case "limit" | "offset":
                    phrases = ("limit", "offset", "fetch first", "fetch next")
                    raise self._refuse(support.LIMIT, "LIMIT in this place", *phrases)
                case "locks":
                    kind = "UPDATE" if clause.args["locks"][0].args.get("update") else "SHARE"
                    raise self._refuse(support.ROW_LOCK, kind, f"for {kind.lower()}", "for no", "for key")
                case "only":
                    raise self._refuse(support.ONLY, clause.name, "only")
                case "windows":
                    raise self._refuse(support.WINDOW_FUNCTION, "", "over", "window")
                case "sample":
                    raise self._refuse(support.TABLESAMPLE, "", "tablesample")
            raise self._refuse(support.UNFAITHFUL, f"{type(clause).__name__} has {part}")

    def _check_order(self, functions: Iterable[str]) -> None:
        """Refuses an aggregate that shows the order of its input when a subquery put that in order."""
        for function in functions:
            if self._ordered and function not in ("count", "sum", "avg", "min", "max"):
                raise self._refuse(support.SUBQUERY_ORDER, f"{function}()", "order by")

    def _with(self, node: exp.Expr, names: Names) -> Names:
        clause = node.args.get("with_")
        if clause is None:
            return names
        if clause.args.get("recursive"):
            raise self._refuse(support.RECURSIVE, "", "with recursive")
        if all(part.alias in names and names[part.alias].query is part.this for part in clause.expressions):
            return names  # known already: once more, an earlier one would find a later one by a name from outside
        known = dict(names)
        for part in clause.expressions:
            columns = tuple(column.name for column in part.args["alias"].columns)
            uses = [table for table in node.find_all(exp.Table) if not table.db and table.name == part.alias]
            often = len(uses) > 1 and part.args.get("materialized") is not False
            known[part.alias] = With(part.this, columns, dict(known), often)
        return known

    @abstractmethod
    def _query(self, node: exp.Expr, names: Names, given: Given | None = None) -> Rows:
        """Any query; the output of one that is built for the values `given` ends with these."""

    @abstractmethod
    def _combined(self, node: exp.SetOperation, sides: Sequence[Rows], carried: int) -> Rows:
        """A set operation of queries that are built; the last columns, as many as are `carried`, are keys."""

    @abstractmethod
    def _body(self, body: Body) -> Rows:
        """The query of the user, or of a view."""

    @abstractmethod
    def _from(self, node: exp.Select, names: Names, start: Scope | None = None) -> Scope:
        """The rows of a FROM clause, beside those of `start`."""

    @abstractmethod
    def _where(self, node: exp.Select, scope: Scope, names: Names) -> Operator:
        """Those of them that WHERE keeps."""

    @abstractmethod
    def _resolve(self, node: exp.Expr, scope: Scope, around: Around | None = None) -> exp.Expr:
        """An expression over the tree's columns."""

    @abstractmethod
    def _first_of(self, node: exp.Select, scope: Scope, around: Around) -> First | None:
        """What DISTINCT ON or LIMIT say."""

    @abstractmethod
    def _by_key(self, query: exp.Expr, scope: Scope, names: Names) -> tuple[Keyed, list[str]] | None:
        """A subquery that reads the query around it, for all that may be asked of it."""

    @abstractmethod
    def _keyed(self, operator: Operator, correlated: list[exp.Expr], scope: Scope, outside: set[str]) -> Keyed:
        """Rows by what they are correlated on."""
