"""What the parts of the builder share while one query is built: the analysis, columns, calls, refusals. Pure;
`build.py` makes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from sqlglot import exp

from pgtrickle.errors import Unsupported
from pgtrickle.model import Table
from pgtrickle.query import gaps
from pgtrickle.query.analyse.analysis import Analysis
from pgtrickle.query.builder.column_factory import ColumnFactory, Describe
from pgtrickle.query.gaps import Gap
from pgtrickle.query.syntax.calls import WITHOUT_ORDER, Calls
from pgtrickle.query.syntax.positions import locate, locate_name, locate_scalar_subquery


class BuildContext:
    """One query being built; `ordered`: a subquery of it put its rows in an order."""

    def __init__(self, analysis: Analysis, describe: Describe) -> None:
        self.analysis = analysis
        self.factory = ColumnFactory(describe)
        self.calls = Calls(
            aggregates=((f.schema, f.name) for f in analysis.functions if f.kind == "a"),
            set_returning=((f.schema, f.name) for f in analysis.functions if f.returns_set),
        )
        self.ordered = False
        self._views: list[Table] = []

    def refuse(self, gap: Gap, name: str = "", *phrases: str) -> Unsupported:
        """The refusal, located in the user's text; what is inside a view is located by the view's name."""
        sql = self.analysis.sql
        if self._views:
            return gap.refuse(name, at=locate_name(sql, self._views[0].name), view=str(self._views[-1]))
        if gap is gaps.SUBQUERY and not phrases:
            return gap.refuse(name, at=locate_scalar_subquery(sql))
        return gap.refuse(name, at=locate(sql, *phrases))

    @contextmanager
    def within_view(self, view: Table) -> Iterator[None]:
        """While the body of a view is built: its columns have names of their own, and refusals name the view."""
        self._views.append(view)
        with self.factory.of_view():
            yield
        self._views.pop()

    def note_order(self, query: exp.Expr) -> None:
        """Remembers whether a query puts its rows in an order."""
        self.ordered |= query.args.get("order") is not None

    def check_order(self, functions: Iterable[str]) -> None:
        """Refuses an aggregate that shows the order of its input when a subquery put that in order."""
        for function in functions:
            if self.shows_order(function):
                raise self.refuse(gaps.SUBQUERY_ORDER, f"{function}()", "order by")

    def shows_order(self, function: str) -> bool:
        """Whether an aggregate shows the order that a subquery put its input in."""
        return self.ordered and function not in WITHOUT_ORDER
