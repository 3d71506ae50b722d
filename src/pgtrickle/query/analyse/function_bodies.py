"""Whether a STABLE function of a user is proven to depend on its arguments and on settings only. For `analyze.py`.

STABLE promises the same result within one snapshot, which is not enough: a function that reads a table gives another
one after the table changed, and no row of the query shows it. But a body in SQL can be read. PostgreSQL analyses it, as
it stands in the catalog (BEGIN ATOMIC) or as the body of a function made for the purpose and rolled back, under the
path that functions run with. If it reads no relation, and calls only what a query may call, its result follows from its
arguments. Of a body that is a text no catalog tells what it uses, so a change of that would not be noticed: it may use
what is built in. A body in another language proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import psycopg

from pgtrickle.model import FIRST_USER_OID
from pgtrickle.query.analyse import rule_facts
from pgtrickle.query.analyse.analysis import Function
from pgtrickle.query.analyse.scratch_view import ScratchView, scratch

_BODY = """
SELECT p.prosqlbody::pg_catalog.text, p.prosrc, pg_catalog.pg_get_function_arguments(p.oid),
       pg_catalog.pg_get_function_result(p.oid)
FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_language AS l ON l.oid = p.prolang
WHERE p.oid = %s::pg_catalog.oid AND l.lanname = 'sql' AND p.prokind = 'f' AND NOT p.prosecdef AND p.proconfig IS NULL
"""
_TWIN = """
SELECT p.prosqlbody::pg_catalog.text FROM pg_catalog.pg_proc AS p
WHERE p.pronamespace = pg_catalog.pg_my_temp_schema() AND p.proname = 'pgtrickle_twin'
"""

_TYPE = re.compile(r":\w*(?:type|typeid|coll|collid|collation) (\d+)")

#: The functions behind what a body calls, each as it is in the catalog.
Called = Callable[[rule_facts.RuleFacts], Sequence[Function]]
#: Whether a query may call a function whatever its body is.
Allowed = Callable[[Function], bool]


class FunctionBodies:
    """Reads the bodies of functions, and of those that they call."""

    def __init__(self, place: ScratchView, called: Called, allowed: Allowed) -> None:
        self._place = place
        self._called = called
        self._allowed = allowed
        self._known: dict[int, bool] = {}

    def depend_on_arguments_only(self, function: Function) -> bool:
        if function.builtin or function.volatility != "s":
            return False
        if function.oid not in self._known:
            self._known[function.oid] = False  # one that calls itself is not proven
            self._known[function.oid] = self._is_proven(function)
        return self._known[function.oid]

    def _is_proven(self, function: Function) -> bool:
        found = self._place.rows(_BODY, (function.oid,))
        if not found:
            return False
        tree, source, arguments, result = found[0]
        body = tree or self._analysed(source, arguments, result)
        if body is None:
            return False
        facts = rule_facts.read(body)
        if facts.relations or facts.stateful or facts.system_columns or facts.reads_clock:
            return False
        called = self._called(facts)
        if tree is None and not (all(each.builtin for each in called) and _types_are_built_in(body)):
            return False
        return all(self._allowed(each) or self.depend_on_arguments_only(each) for each in called)

    def _analysed(self, source: str, arguments: str, result: str) -> str | None:
        """The node tree of a body that is kept as text; None if it cannot be had, or is more than a body."""
        statement = (
            f"CREATE FUNCTION pg_temp.pgtrickle_twin({arguments}) RETURNS {result} LANGUAGE sql STABLE"
            f" BEGIN ATOMIC {source}\n; END"
        )
        try:
            with scratch(self._place.connection) as place:
                place.run_one(statement)
                return str(place.rows(_TWIN)[0][0])
        except psycopg.ProgrammingError:
            return None


def _types_are_built_in(body: str) -> bool:
    return all(int(oid) < FIRST_USER_OID for oid in _TYPE.findall(body))
