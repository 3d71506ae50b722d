"""Whether a STABLE function of a user is proven to depend on its arguments and on settings only. For `analyze.py`.

STABLE promises the same result within one snapshot, which is not enough: a function that reads a table gives another
one after the table changed, and no row of the query shows it. But a body in SQL can be read. PostgreSQL analyses it, as
it stands in the catalog (BEGIN ATOMIC) or as the body of a function made for the purpose and rolled back, under the
path that functions run with. If it reads no relation, and calls only what a query may call, its result follows from its
arguments. Of a body that is a text no catalog tells what it uses, so a change of that would not be noticed: it may use
what is built in. A body in another language proves nothing; who defines the table may promise it instead
(`trust_stable_functions`). A default of an argument is not in the tree of a call without it, and is looked at as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum

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

_DEFAULTS = """
SELECT p.oid, p.proargdefaults::pg_catalog.text
FROM ROWS FROM (unnest(%s::pg_catalog.oid[]), unnest(%s::pg_catalog.int4[])) AS called(oid, given)
JOIN pg_catalog.pg_proc AS p ON p.oid = called.oid AND p.pronargs > called.given
WHERE p.proargdefaults IS NOT NULL
"""

#: The functions behind what a body calls, each as it is in the catalog.
Called = Callable[[rule_facts.RuleFacts], Sequence[Function]]
#: Whether a query may call a function whatever its body is.
Allowed = Callable[[Function], bool]


class _Verdict(Enum):
    """What a body says about what a result depends on."""

    PROVEN = "on the arguments and on settings"
    UNKNOWN = "nothing"
    OTHERWISE = "on more than these"


class FunctionBodies:
    """Reads the bodies of functions, and of those that they call. `trusting`: who defines the table promises that what
    they do not say is so."""

    def __init__(self, place: ScratchView, called: Called, allowed: Allowed, *, trusting: bool = False) -> None:
        self._place = place
        self._called = called
        self._allowed = allowed
        self._trusting = trusting
        self._known: dict[int, _Verdict] = {}

    def depend_on_arguments_only(self, function: Function) -> bool:
        """By proof, or by the promise of who defines the table, if no body shows that it is broken."""
        if function.builtin or function.volatility != "s":
            return False
        verdict = self._verdict(function)
        return verdict is _Verdict.PROVEN or (self._trusting and verdict is _Verdict.UNKNOWN)

    def with_other_defaults(self, facts: rule_facts.RuleFacts) -> frozenset[int]:
        """The functions called without an argument whose default depends on more: on the clock, say."""
        oids, given = [oid for oid, _ in facts.calls], [number for _, number in facts.calls]
        rows = self._place.rows(_DEFAULTS, (oids, given)) if oids else []
        return frozenset(int(oid) for oid, tree in rows if self._depends_on_more(rule_facts.read(tree)))

    def _depends_on_more(self, facts: rule_facts.RuleFacts) -> bool:
        if _reads_more(facts) or self.with_other_defaults(facts):
            return True
        return not all(self._allowed(each) or self.depend_on_arguments_only(each) for each in self._called(facts))

    def _verdict(self, function: Function) -> _Verdict:
        if function.oid not in self._known:
            self._known[function.oid] = _Verdict.UNKNOWN  # one that calls itself is not proven
            self._known[function.oid] = self._read(function)
        return self._known[function.oid]

    def _read(self, function: Function) -> _Verdict:
        found = self._place.rows(_BODY, (function.oid,))
        if not found:
            return _Verdict.UNKNOWN
        tree, source, arguments, result = found[0]
        body = tree or self._analysed(source, arguments, result)
        if body is None:
            return _Verdict.UNKNOWN
        facts = rule_facts.read(body)
        if _reads_more(facts) or self.with_other_defaults(facts):
            return _Verdict.OTHERWISE
        calls = self._called(facts)
        verdicts = {self._of_call(each) for each in calls}
        if _Verdict.OTHERWISE in verdicts:
            return _Verdict.OTHERWISE
        may_change = tree is None and not (all(each.builtin for each in calls) and _types_are_built_in(body))
        return _Verdict.UNKNOWN if may_change or _Verdict.UNKNOWN in verdicts else _Verdict.PROVEN

    def _of_call(self, function: Function) -> _Verdict:
        if self._allowed(function):
            return _Verdict.PROVEN
        return _Verdict.OTHERWISE if function.builtin or function.volatility != "s" else self._verdict(function)

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


def _reads_more(facts: rule_facts.RuleFacts) -> bool:
    return bool(facts.relations or facts.stateful or facts.system_columns or facts.reads_clock)


def _types_are_built_in(body: str) -> bool:
    return all(int(oid) < FIRST_USER_OID for oid in _TYPE.findall(body))
