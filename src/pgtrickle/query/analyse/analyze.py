"""Lets PostgreSQL analyse a defining query: names, types, sources, functions. Called by `compile.py` and by `alter`.

The query becomes a temporary view in a savepoint; what PostgreSQL stored for that view is the analysis. Its errors
become QueryError with the position in the user's text. What only FULL refresh can do is data (`Analysis.reasons`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import psycopg

from pgtrickle.answers import TRUSTING
from pgtrickle.db import OWN_PATH, caller
from pgtrickle.errors import QueryError, ServerError, Unsupported
from pgtrickle.model import FIRST_USER_OID, OWN_SCHEMAS, Table
from pgtrickle.query import gaps
from pgtrickle.query.analyse import functions, grouping_keys, rule_facts
from pgtrickle.query.analyse.analysis import (
    Analysis,
    Body,
    Dependencies,
    Function,
    InlinedView,
    OutputColumn,
    SourceRelation,
)
from pgtrickle.query.analyse.dependencies import reached
from pgtrickle.query.analyse.function_bodies import FunctionBodies
from pgtrickle.query.analyse.scratch_view import ScratchView, prefix, scratch
from pgtrickle.query.syntax.positions import locate, locate_name, locate_second_statement, position

_RELATIONS = """
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence = 't',
       c.oid < %(first)s OR n.nspname IN ('pg_catalog', 'information_schema', 'pg_toast'),
       c.relrowsecurity, row_security_active(c.oid), has_table_privilege(c.oid, 'SELECT')
           OR has_any_column_privilege(c.oid, 'SELECT'),
       ARRAY(SELECT a.attname::text FROM pg_constraint k CROSS JOIN unnest(k.conkey) WITH ORDINALITY u(attnum, place)
             JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.attnum
             WHERE k.conrelid = c.oid AND k.contype = 'p' ORDER BY u.place),
       ARRAY(WITH RECURSIVE tree AS (SELECT inhrelid FROM pg_inherits WHERE inhparent = c.oid
             UNION SELECT i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.inhrelid)
             SELECT inhrelid FROM tree ORDER BY inhrelid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%(oids)s) ORDER BY c.oid
"""

# Who reads a table is the login, or the owner of the view that names it. What a view with security_invoker names is
# read by the login, whatever views are around it.
_SECURED = """
SELECT DISTINCT c.oid FROM unnest(%s::oid[], %s::oid[]) AS r(relation, by) JOIN pg_class AS c ON c.oid = r.relation
LEFT JOIN pg_class AS v ON v.oid = r.by AND NOT coalesce((
    SELECT o.option_value::boolean FROM pg_options_to_table(v.reloptions) AS o WHERE o.option_name = 'security_invoker'
), false)
JOIN pg_roles AS reader ON CASE WHEN v.oid IS NULL THEN reader.rolname = current_user ELSE reader.oid = v.relowner END
WHERE c.relrowsecurity AND NOT reader.rolsuper AND NOT reader.rolbypassrls
  AND (c.relforcerowsecurity OR NOT pg_has_role(reader.oid, c.relowner, 'USAGE'))
"""

_COPY = """
SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'pgtrickle_changes' AND c.relname = 'copy_' || %(oid)s::text AND c.relkind = 'r'
  AND NOT EXISTS (
      SELECT FROM pg_attribute a WHERE a.attrelid = %(oid)s AND a.attnum = ANY (%(columns)s::int2[]) AND NOT EXISTS (
          SELECT FROM pg_attribute o WHERE o.attrelid = c.oid AND NOT o.attisdropped AND o.attnum > 0
          AND (o.attname, o.atttypid, o.atttypmod, o.attcollation)
            = (a.attname, a.atttypid, a.atttypmod, a.attcollation)))
"""

_NAMES = """
SELECT c.oid, n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%s) ORDER BY c.oid
"""

_DEPENDED_ON = """
SELECT d.refclassid = 'pg_class'::regclass, d.refobjid, d.refobjsubid
FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
WHERE d.classid = 'pg_rewrite'::regclass AND r.ev_class = ANY (%s) AND r.rulename = '_RETURN'
  AND (d.refclassid = 'pg_class'::regclass AND d.refobjsubid > 0 OR d.refclassid = 'pg_constraint'::regclass)
"""

_KEYED = "SELECT k.conrelid FROM pg_constraint k WHERE k.oid = ANY (%s::oid[])"

# An aggregate works by its support functions, an operator by its function.
_FUNCTIONS = """
WITH called AS (
    SELECT unnest(%(functions)s::oid[]) AS oid
    UNION SELECT o.oprcode::oid FROM pg_operator o WHERE o.oid = ANY (%(operators)s)
), support AS (
    SELECT oid FROM called
    UNION SELECT f FROM called JOIN pg_aggregate a ON a.aggfnoid = called.oid,
          unnest(ARRAY[a.aggtransfn, a.aggfinalfn]::oid[]) f WHERE called.oid >= %(first)s AND f <> 0
)
SELECT p.oid, n.nspname, p.proname, oidvectortypes(p.proargtypes), p.provolatile, p.prokind, p.proretset,
       p.oid < %(first)s
FROM support JOIN pg_proc p ON p.oid = support.oid JOIN pg_namespace n ON n.oid = p.pronamespace ORDER BY p.oid
"""


Check: TypeAlias = Callable[[tuple[Table, ...]], None]
"""Looks at the tables and views that a query names, before anything of it is planned, and raises what is wrong."""
Accept: TypeAlias = Callable[[Dependencies], None]
"""Asked of what a query depends on while it is read and not yet planned, by which code of others would run; raises."""


def analyze(
    conn: psycopg.Connection[Any],
    sql: str,
    *,
    search_path: str | None = None,
    settings: Mapping[str, str] | None = None,
    check: Check | None = None,
    accept: Accept | None = None,
) -> Analysis:
    """What PostgreSQL makes of `sql` under a path and settings (default: those of whom we act for). Leaves nothing
    behind. Planning evaluates functions: what should not be run is refused before, by `check` and `accept`."""
    if "\x00" in sql or not sql.strip():
        raise QueryError("the defining query is empty or holds a NUL character", hint="give one SELECT statement")
    who = caller(conn) if search_path is None or settings is None else None
    path = who.search_path if who is not None and search_path is None else search_path
    used = who.settings if who is not None and settings is None else settings
    with scratch(conn, path or "", used) as place:
        view = _define(place, sql)
        place.use_search_path(OWN_PATH)  # all that follows is ours
        if check is not None:
            check(_named(place, view))
        analysis = _Reader(place, sql, trusting=TRUSTING in (used or {})).read(view)
        if accept is not None:
            accept(analysis.dependencies)
        place.use_search_path(path or "")
        _plan(place, sql)
        return analysis


NOT_ITS_FAULT = (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled)
"""What PostgreSQL may answer to a query that is right: someone holds a table, or has no patience."""


def _define(place: ScratchView, sql: str) -> int:
    """Makes the view, or raises QueryError; the first step sees exactly the user's text, so nothing can hide in it."""
    try:
        parameters = place.parse(sql)
    except NOT_ITS_FAULT:
        raise
    except psycopg.Error as error:
        raise _query_error(error, sql, before=0) from error
    if parameters:
        raise _parameter_error(sql)
    try:
        return place.define(sql)
    except NOT_ITS_FAULT:
        raise
    except psycopg.Error as error:
        raise _query_error(error, sql, before=len(prefix())) from error


def _plan(place: ScratchView, sql: str) -> None:
    """PostgreSQL's refusals that come only then: rights, and constants that cannot be computed."""
    try:
        place.explain()
    except NOT_ITS_FAULT:
        raise
    except psycopg.Error as error:
        raise _query_error(error, sql, before=len(prefix())) from error


def _named(place: ScratchView, view: int) -> tuple[Table, ...]:
    """The tables and views that the query itself names."""
    found = rule_facts.read(place.rule(view)).relations - {view}
    return tuple(Table(*row) for row in place.rows(_NAMES, (sorted(found),)))


def _parameter_error(sql: str) -> QueryError:
    return QueryError(
        "a defining query cannot have parameters", code="PT103", hint="write the value itself", at=locate(sql, "$1")
    )


def _query_error(error: psycopg.Error, sql: str, *, before: int) -> QueryError | ServerError:
    """PostgreSQL's refusal in our words: its message, our code, and the place in the user's text."""
    state = error.sqlstate or ""
    message = error.diag.message_primary or str(error)
    at = None
    if error.diag.statement_position is not None:
        at = position(sql, int(error.diag.statement_position) - 1 - before)
    hint = error.diag.message_hint
    if state.startswith(("08", "57", "53")) or state == "":
        return ServerError(message, hint="check that the server is up and accepts connections")
    if state == "42601" and "multiple commands" in message:
        hint = "give one SELECT statement"
        return QueryError("more than one statement given", code="PT101", hint=hint, at=locate_second_statement(sql))
    if before and state in ("42601", "0A000"):
        hint = "the defining query is one SELECT (or WITH … SELECT) that changes nothing"
        return QueryError(f"not a query a view could have: {message}", code="PT102", hint=hint, at=at)
    if state in ("42P02", "42P18"):
        return _parameter_error(sql)
    if state == "42701" and before:
        return QueryError(message, code="PT104", hint="give each output column its own name with AS", at=at)
    if state == "42P16":
        return QueryError(message, code="PT105", hint=hint or "cast the column to a type a table can have", at=at)
    if state in ("42P01", "42703", "42883", "3F000", "42704"):
        return QueryError(message, code="PT106", hint=hint or "check the name and search_path", at=at)
    if state == "42501":
        if "temporary" in message:
            return ServerError(message, code="PT407", hint="grant TEMPORARY on the database to this role")
        return QueryError(message, code="PT107", hint=hint or "grant SELECT on it to this role", at=at)
    if state.startswith("54"):
        hint = "make it smaller: fewer levels of nesting, columns or tables"
        return QueryError(f"too much for PostgreSQL: {message}", code="PT110", hint=hint, at=at)
    return QueryError(message, code="PT100", hint=hint or "correct the query until PostgreSQL accepts it", at=at)


class _Reader:
    """Reads the catalog for one analysed view and the views below it."""

    def __init__(self, place: ScratchView, sql: str, *, trusting: bool) -> None:
        self._place = place
        self._sql = sql
        self._trusting = trusting
        self._reasons: list[Unsupported] = []

    def read(self, view: int) -> Analysis:
        body, facts = self._body(view)
        self._require_stable_meaning(body, facts)
        views: dict[int, InlinedView] = {}
        relations: dict[int, tuple[Any, ...]] = {}
        all_facts = [facts]
        direct = facts.relations - {view}
        named_by = {(oid, 0) for oid in direct}
        pending = direct
        while pending:
            found = self._place.rows(_RELATIONS, {"oids": sorted(pending), "first": FIRST_USER_OID})
            pending = frozenset()
            for row in found:
                oid, schema, name, kind = row[:4]
                self._refuse_temporary(name, row[4])
                self._refuse_ours(schema, name)
                if kind != "v":
                    relations[oid] = row
                    continue
                nested, nested_facts = self._body(oid)
                names = tuple(column.name for column in self._place.attributes(oid))
                views[oid] = InlinedView(Table(oid, schema, name), nested, names)
                self._check_view(views[oid], nested_facts)
                all_facts.append(nested_facts)
                named_by |= {(below, oid) for below in nested_facts.relations - {oid}}
                pending |= nested_facts.relations - {oid}
            pending -= views.keys() | relations.keys()
        used, constraints = self._depended_on([view, *views])
        named, _ = self._depended_on([view])
        whole = frozenset[int]().union(*(each.whole_rows for each in all_facts)) & relations.keys()
        only = frozenset[int]().union(*(each.only for each in all_facts))
        hidden = self._with_hidden_rows(named_by | {(oid, 0) for oid in relations})
        sources = tuple(
            replace(self._source(row, used, hidden, whole), only=oid in only) for oid, row in relations.items()
        )
        self._refuse_keys_of_heirs(sources, constraints, frozenset[int]().union(*(f.with_heirs for f in all_facts)))
        called = self._functions(all_facts)
        secured = [row[0] for row in relations.values() if row[6] and (row[7] or row[0] not in direct)]
        objects = reached(
            self._place, [view, *views], secured, [each.oid for each in called if not each.builtin], sorted(whole)
        )
        return Analysis(
            sql=self._sql,
            body=body,
            columns=tuple(OutputColumn(column.name, column.type) for column in self._place.attributes(view)),
            sources=sources,
            views=tuple(views.values()),
            functions=called,
            constraints=constraints,
            reasons=tuple(self._reasons),
            objects=objects,
            named_columns=frozenset((oid, number) for oid, numbers in named.items() for number in numbers),
            reads_clock=any(each.reads_clock for each in all_facts),
            views_read_clock=any(each.reads_clock for each in all_facts[1:]),
        )

    def _body(self, view: int) -> tuple[Body, rule_facts.RuleFacts]:
        tree = self._place.rule(view)
        facts = rule_facts.read(tree)
        return Body(self._place.definition(view), facts.aggregates, grouping_keys.read(tree)), facts

    def _require_stable_meaning(self, body: Body, facts: rule_facts.RuleFacts) -> None:
        if self._meaning_changes(body, facts):
            raise QueryError(
                "the text that PostgreSQL keeps of this query means something else: an operator in it is found by"
                " search_path only, or a column that FULL JOIN … USING merged is hidden by one of a subquery",
                code="PT109",
                hint="with a type of an extension, write ON a.x = b.x for USING, and CASE for NULLIF; give a merged"
                " column another name in a subquery in FROM",
            )

    def _check_view(self, view: InlinedView, facts: rule_facts.RuleFacts) -> None:
        if self._meaning_changes(view.body, facts):
            self._reasons.append(
                gaps.UNLOCATED_NAMES.refuse(f"view {view.table}", at=locate_name(self._sql, view.table.name))
            )

    def _meaning_changes(self, body: Body, facts: rule_facts.RuleFacts) -> bool:
        """Whether the normalised text, read again with nothing but pg_catalog in sight, calls other operators or reads
        columns of another query, or is no query.

        USING, NULLIF, IS DISTINCT FROM and CASE x WHEN are printed without their operator's schema; what FULL JOIN
        merges without a table, also in a subquery that has a column of this name.
        """
        try:
            with scratch(self._place.connection) as place:
                again = rule_facts.read(place.rule(place.define(body.sql, "pgtrickle_again")))
        except psycopg.ProgrammingError:
            return True
        return (facts.operators, facts.levels) != (again.operators, again.levels)

    def _refuse_temporary(self, name: str, temporary: bool) -> None:
        if temporary:
            raise QueryError(
                f"{name} is temporary: other sessions cannot read it",
                code="PT108",
                hint="use a permanent table",
                at=locate_name(self._sql, name),
            )

    def _refuse_ours(self, schema: str, name: str) -> None:
        """What we keep changes with every refresh, so a stream table over it would never be up to date."""
        if schema in OWN_SCHEMAS:
            raise QueryError(
                f"{schema}.{name} belongs to pgtrickle itself: a stream table cannot read it",
                code="PT315",
                hint="ask the catalog directly, or make a plain view of it",
                at=locate_name(self._sql, name),
            )

    def _depended_on(self, rules: list[int]) -> tuple[dict[int, set[int]], tuple[int, ...]]:
        """Columns read of each relation, and the keys a GROUP BY relies on."""
        used: dict[int, set[int]] = {}
        constraints: set[int] = set()
        for is_column, oid, number in self._place.rows(_DEPENDED_ON, (rules,)):
            if is_column:
                used.setdefault(oid, set()).add(number)
            else:
                constraints.add(oid)
        return used, tuple(sorted(constraints))

    def _source(
        self, row: tuple[Any, ...], used: dict[int, set[int]], hidden: frozenset[int], whole: Collection[int]
    ) -> SourceRelation:
        oid, schema, name, kind, _, system, _, _, readable, primary_key, children = row
        table = Table(oid, schema, name)
        at = locate_name(self._sql, name)
        if system or kind == "S":
            self._reasons.append(gaps.SYSTEM_RELATION.refuse(str(table), at=at))
        elif oid in hidden:
            self._reasons.append(gaps.ROW_SECURITY.refuse(str(table), at=at))
        elif not readable:
            self._reasons.append(gaps.NOT_READABLE.refuse(str(table), at=at))
        attributes = self._place.attributes(oid)
        read = used.get(oid, ()) if oid not in whole else (attribute.number for attribute in attributes)
        source = SourceRelation(
            table, kind, attributes, frozenset(read), tuple(children), bool(system), tuple(primary_key)
        )
        return replace(source, copy=self._copy(source)) if source.is_compared else source

    def _refuse_keys_of_heirs(
        self, sources: Collection[SourceRelation], constraints: Collection[int], with_heirs: Collection[int]
    ) -> None:
        """A primary key that a GROUP BY relies on holds for the rows of partitions, and not for those of heirs."""
        keyed = {row[0] for row in self._place.rows(_KEYED, (list(constraints),))}
        for source in sources:
            table = source.table
            if table.oid in keyed and table.oid in with_heirs and source.children and source.kind != "p":
                self._reasons.append(gaps.KEY_OF_HEIRS.refuse(str(table), at=locate_name(self._sql, table.name)))

    def _copy(self, source: SourceRelation) -> Table | None:
        """The copy that the source is compared with, if it has the columns that the query reads."""
        found = self._place.rows(_COPY, {"oid": source.table.oid, "columns": sorted(source.used)})
        return Table(*found[0]) if found else None

    def _with_hidden_rows(self, named_by: Collection[tuple[int, int]]) -> frozenset[int]:
        """The tables of which row-level security hides rows: from us, who read them in a refresh, or from one of those
        by whom they are read, the owners of views. `named_by` are pairs of a table and a view, 0 for the login."""
        tables, views = [oid for oid, _ in named_by], [view for _, view in named_by]
        return frozenset(int(row[0]) for row in self._place.rows(_SECURED, (tables, views)))

    def _functions(self, facts: list[rule_facts.RuleFacts]) -> tuple[Function, ...]:
        for name in dict.fromkeys(name for fact in facts for name in fact.stateful):
            self._reasons.append(gaps.STATEFUL_FUNCTION.refuse(name, at=locate_name(self._sql, name.lower())))
        called = self._called(*facts)
        bodies = FunctionBodies(
            self._place,
            self._called,
            lambda each: functions.refusal(each, self._sql) is None,
            trusting=self._trusting,
        )
        by_default = frozenset[int]().union(*map(bodies.with_other_defaults, facts))
        for function in called:
            if function.oid in by_default:
                name = f"a default of an argument of {function.schema}.{function.name}()"
                self._reasons.append(gaps.STATEFUL_FUNCTION.refuse(name, at=locate_name(self._sql, function.name)))
            self._refuse_ours(function.schema, function.name)
            reason = functions.refusal(function, self._sql)
            if reason is not None and not bodies.depend_on_arguments_only(function):
                self._reasons.append(reason)
        return called

    def _called(self, *facts: rule_facts.RuleFacts) -> tuple[Function, ...]:
        parameters = {
            "functions": sorted({oid for fact in facts for oid in fact.functions}),
            "operators": sorted({oid for fact in facts for oid in fact.operators}),
            "first": FIRST_USER_OID,
        }
        return tuple(Function(*row) for row in self._place.rows(_FUNCTIONS, parameters))
