"""What incremental refresh cannot maintain: every gap declared once, with its stable code, its words and a hint.

`analyse/analyze.py` and `builder/build.py` raise or report these; `compile.py` hands them to the caller, who decides by
refresh mode.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgtrickle.errors import Unsupported

USE_FULL = "use refresh_mode => 'FULL'"


@dataclass(frozen=True, slots=True)
class Gap:
    """One thing incremental refresh cannot do; `what` may hold `{name}`."""

    code: str
    what: str
    hint: str = USE_FULL

    def refuse(self, name: str = "", *, at: str | None = None, view: str | None = None) -> Unsupported:
        """The error for this gap; `view` is the inlined view it was found in."""
        message = self.what.format(name=name)
        if view is not None:
            message += f" (in view {view})"
        return Unsupported(message, code=self.code, hint=self.hint, at=at)


# Found by analyze.py: what the query reads.
VOLATILE_FUNCTION = Gap("PT201", "function {name} is volatile: the same rows would not give the same result")
STATEFUL_FUNCTION = Gap("PT202", "{name} depends on the time, the session or the catalog, not only on the rows read")
NOT_IMMUTABLE = Gap(
    "PT203",
    "user-defined function {name} is not IMMUTABLE, and its body does not prove that it depends on its arguments only",
    "declare the function IMMUTABLE if it depends on its arguments only, not on tables, the time or the session; if it"
    " is STABLE and not in SQL, the setting pg_trickle.trust_stable_functions promises that; or use refresh_mode =>"
    " 'FULL'",
)
KEY_OF_HEIRS = Gap(
    "PT243",
    "GROUP BY the primary key of {name} leaves its other columns open: tables that inherit from it repeat its keys",
    "group by the other columns too, read ONLY the table, or use refresh_mode => 'FULL'",
)
SYSTEM_RELATION = Gap("PT206", "{name} is a system relation: its changes cannot be captured")
ROW_SECURITY = Gap(
    "PT207",
    "row-level security hides rows of {name} from the role that refreshes, or from the owner of a view over it",
    "read it as its owner (without FORCE ROW LEVEL SECURITY) or as a role with BYPASSRLS, or use"
    " refresh_mode => 'FULL', which shows what the role that refreshes sees",
)
NOT_READABLE = Gap(
    "PT208",
    "{name} is read through a view, and the current role may not read it itself",
    "grant SELECT on it to the role that refreshes, or use refresh_mode => 'FULL'",
)
UNLOCATED_NAMES = Gap("PT209", "an operator in {name} is found by search_path only, so the view cannot be inlined")

# Found by build.py: the shape of the query.
WINDOW_FUNCTION = Gap("PT224", "a window function in a place that cannot be maintained incrementally yet")
SUBQUERY = Gap(
    "PT225",
    "{name} cannot be maintained incrementally yet",
    "write it as a join, or use refresh_mode => 'FULL'",
)
RECURSIVE = Gap("PT226", "a WITH RECURSIVE {name} cannot be maintained incrementally")
LATERAL = Gap("PT227", "this LATERAL cannot be maintained incrementally yet")
SET_RETURNING = Gap("PT228", "set-returning function {name} cannot be maintained incrementally yet")
LIMIT = Gap(
    "PT230", "{name} has no definite rows", "give it an ORDER BY and a plain number, or use refresh_mode => 'FULL'"
)
ROW_LOCK = Gap("PT231", "FOR {name} has no meaning in a stream table", "remove the locking clause")
TABLESAMPLE = Gap("PT232", "TABLESAMPLE cannot be maintained incrementally")
ONLY = Gap("PT237", "ONLY {name} cannot be maintained incrementally: it is a foreign table that others inherit")
WHOLE_ROW = Gap("PT233", "a whole-row reference to {name} cannot be maintained incrementally", "name the columns")
SYSTEM_COLUMN = Gap("PT234", "system column {name} cannot be maintained incrementally")
VALUES = Gap("PT235", "VALUES of expressions cannot be maintained incrementally yet", "put the rows in a table")
NO_FROM = Gap("PT236", "a SELECT without FROM that reads no table: there is nothing to maintain")
SUBQUERY_ORDER = Gap(
    "PT238",
    "{name} depends on the ORDER BY of a subquery",
    "put the ORDER BY inside the aggregate call, or use refresh_mode => 'FULL'",
)
TABLE_FUNCTION = Gap("PT239", "{name} in FROM cannot be maintained incrementally yet")
LOOK = Gap(
    "PT275",
    "the condition {name} depends on how a value looks that a grouping below it takes for equal to others",
    "put the condition in WHERE, below the grouping, group by the text too, or use refresh_mode => 'FULL'",
)
GROUPING_KEYS = Gap("PT274", "the keys of these grouping sets are not told apart: {name}")
ARRAY = Gap(
    "PT241",
    "the order of the values of this ARRAY(SELECT …) is not definite",
    "give its subquery an ORDER BY, or use refresh_mode => 'FULL'",
)
UNFAITHFUL = Gap("PT240", "this query cannot be carried faithfully: {name}")
UNORDERED = Gap(
    "PT242",
    "the order in which {name} takes its values is not definite, and its groups are computed in several places",
    "use json_object_agg, or refresh_mode => 'FULL'",
)
TOO_DEEP = Gap(
    "PT280",
    "the query is nested too deeply to be taken apart",
    "write long chains as IN lists, arrays or tables, or use refresh_mode => 'FULL'",
)
ROW_OF_INTERVAL = Gap(
    "PT283",
    "values of type {name} hold an interval within a row, which PostgreSQL does not always read again as it writes it",
)
CLOCK = Gap("PT600", "{name} depends on the clock, which cannot be maintained incrementally yet")
TOO_LONG = Gap("PT281", "the query takes too long to compile for incremental refresh")

GAPS: tuple[Gap, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Gap))
