"""Which functions incremental refresh may call: those whose result depends on arguments and settings only.

Pure; called by `analyze.py`. PostgreSQL marks as STABLE both what reads settings (`to_char`, time zone casts: fine, a
refresh pins its settings) and what reads the session or the catalog (not fine: it changes by itself). What reads
the time that the transaction began at reads the time of the refresh instead (`syntax/clock.py`).
"""

from __future__ import annotations

import re

from pgtrickle.errors import Unsupported
from pgtrickle.query import gaps
from pgtrickle.query.analyse.analysis import Function
from pgtrickle.query.syntax.positions import locate_name

#: Built-in STABLE functions that read the clock, the session, the server or the catalog.
_STATEFUL = re.compile(
    r"""pg_(?!typeof$) | has_ | txid_ | inet_(?:client|server)_ | to_reg | reg | col_description$ | obj_description$
      | shobj_description$ | (?:database|schema|table|query|cursor)_to_xml
      | (?:date|time|timetz|timestamp|timestamptz|array|domain|record|range|multirange)_in$
      | statement_timestamp$ | current_ | session_user$ | system_user$ | getpgusername$ | mxid_age$
      | row_security_active$ | format_type$ | oidvectortypes$ | aclexplode$ | version$ | ts_stat$ | ts_debug$""",
    re.VERBOSE,
)
#: Built-in ones that are given a query or a table to read.
_READING = re.compile(r"(?:database|schema|table|query|cursor)_to_xml | ts_stat$ | ts_rewrite$", re.VERBOSE)
#: Overloads of otherwise harmless functions that read the clock: (name, argument types).
_STATEFUL_OVERLOADS = {
    ("age", "xid"),
    ("timetz", "time without time zone"),
    ("timezone", "text, time with time zone"),
    ("timezone", "time with time zone"),
}


def refusal(function: Function, sql: str) -> Unsupported | None:
    """Why `function`, called by the query `sql`, keeps it from being maintained incrementally; None if it does not."""
    at = locate_name(sql, function.name)
    shown = f"{function.name}()" if function.builtin else f"{function.schema}.{function.name}()"
    if function.volatility == "i":
        return None
    if not function.builtin:
        return gaps.NOT_IMMUTABLE.refuse(shown, at=at)
    if function.volatility == "v":
        return gaps.VOLATILE_FUNCTION.refuse(shown, at=at)
    if _STATEFUL.match(function.name) or (function.name, function.arguments) in _STATEFUL_OVERLOADS:
        return gaps.STATEFUL_FUNCTION.refuse(shown, at=at)
    return None


def may_read_tables(function: Function) -> bool:
    """Whether its result may depend on rows that the query does not give it."""
    if function.builtin:
        return _READING.match(function.name) is not None
    return function.volatility != "i"
