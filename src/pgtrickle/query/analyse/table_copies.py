"""A query over copies of some of its tables, made by PostgreSQL itself: temporary tables shadow those of the same name.

    public.kept ──copy──▶ pg_temp.kept        the query, printed so that `kept` is not qualified, and read again,
    public.view ──text──▶ pg_temp.view        means the copy; so do the views on the way to it

For queries that no tree was built for, so that nothing else can put one table in the place of another. What PostgreSQL
makes of it is looked at again: where a name, a function or an operator would mean something else, it is refused.
Called by `refresh/table_refresh.py`, in the transaction that has the copies; all is gone when that ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from graphlib import TopologicalSorter
from typing import Any
from uuid import uuid4

import psycopg

from pgtrickle.model import Table, quote
from pgtrickle.query.analyse import functions, rule_facts
from pgtrickle.query.analyse.analysis import Analysis
from pgtrickle.query.analyse.rule_facts import RuleFacts
from pgtrickle.query.analyse.scratch_view import ScratchView, scratch
from pgtrickle.query.syntax.clock_text import with_time

_OF_TIME = frozenset({2077, 1178, 2027, 2019, 1388, 1961, 1967, 1968, 1969, 1199, 2058, 1174, 2024})
"""current_setting(), the casts of a timestamptz that CURRENT_DATE and the like are made of, age() of two arguments."""


class NotCopied(Exception):
    """The query cannot be said of the copies; says why."""


def over_copies(conn: psycopg.Connection[Any], analysis: Analysis, copies: Mapping[Table, str]) -> str:
    """The name of a temporary view of the query in which `copies`, temporary tables, take the place of the tables that
    they are copies of. They bear those tables' names afterwards."""
    _require_open(analysis)
    texts = _Texts(conn, analysis, copies)
    with _refusing(), conn.transaction(), _path(conn, texts.path) as place:
        for table, copy in copies.items():
            place.connection.execute(f"ALTER TABLE {copy} RENAME TO {quote(table.name)}".encode())
        for view in texts.views_to_make():
            texts.require_same(place, view, place.define(texts.text[view], quote(texts.names[view])))
        name = f"pgt_query_{uuid4().hex[:12]}"
        texts.require_same(place, 0, place.define(texts.text[0], name))
    return f"pg_temp.{name}"


class _Texts:
    """The query (number 0) and the views below it, by oid: what each says and reads, printed for the search path. What
    reads the clock reads the time of the refresh instead (`syntax/clock_text.py`)."""

    def __init__(self, conn: psycopg.Connection[Any], analysis: Analysis, copies: Mapping[Table, str]) -> None:
        views = {view.table.oid: view.table for view in analysis.views}
        self.names = {oid: view.name for oid, view in views.items()}
        self._copied = {table.oid for table in copies}
        with scratch(conn) as place:
            self._oids = {0: place.define(analysis.body.sql), **{oid: oid for oid in self.names}}
            self.facts = {key: rule_facts.read(place.rule(oid)) for key, oid in self._oids.items()}
            shadowed = [*copies, *(views[oid] for oid in self.views_to_make())]
            self.path = ", ".join(dict.fromkeys(quote(table.schema) for table in shadowed))
            place.use_search_path(self.path)
            texts = {key: place.definition(oid) for key, oid in self._oids.items()}
        self.text = {
            key: with_time(text, self.facts[key].functions) if self.facts[key].reads_clock else text
            for key, text in texts.items()
        }

    def views_to_make(self) -> list[int]:
        """The views through which a copy or the clock is read, each after those that it reads."""
        below = {key: (facts.relations & self.names.keys()) - {key} for key, facts in self.facts.items()}
        order = [key for key in TopologicalSorter(below).static_order() if key]
        found: list[int] = []
        for view in order:
            facts = self.facts[view]
            if facts.reads_clock or not facts.relations.isdisjoint({*self._copied, *found}):
                found.append(view)
        return found

    def require_same(self, place: ScratchView, key: int, made: int) -> None:
        """What was made reads the copies, and calls what the original calls."""
        was, now = self.facts[key], rule_facts.read(place.rule(made))
        replaced = {*self._copied, *self.views_to_make()}
        others = was.relations - replaced - {self._oids[key]}
        if not now.relations.isdisjoint(replaced) or not now.relations >= others:
            raise NotCopied("a table that it reads shares its name with another")
        same = _same_with_time(was, now) if was.reads_clock else now.functions == was.functions
        if now.operators != was.operators or not same:
            raise NotCopied("a function or operator in it is found by search_path only")
        if now.named != was.named:
            raise NotCopied("it asks for the oid of a table that it reads")
        if was.system_columns:
            raise NotCopied("a system column has another value in a copy")


def _same_with_time(was: RuleFacts, now: RuleFacts) -> bool:
    """Whether a query calls the same functions, but for what stands in place of the clock."""
    others = was.functions - rule_facts.CLOCK_FUNCTIONS
    return not now.reads_clock and others <= now.functions <= others | _OF_TIME


def _require_open(analysis: Analysis) -> None:
    """All that is read is in the query and its views: a function would read the tables themselves."""
    for function in analysis.functions:
        if functions.may_read_tables(function):
            raise NotCopied(f"the function {function.schema}.{function.name}() may read tables by itself")


@contextmanager
def _path(conn: psycopg.Connection[Any], path: str) -> Iterator[ScratchView]:
    """Where names are looked up among the temporary ones first, and then there."""
    place = ScratchView(conn)
    before = str(place.rows("SELECT pg_catalog.current_setting('search_path')")[0][0])
    place.use_search_path(path)
    yield place
    place.use_search_path(before)


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except (psycopg.ProgrammingError, psycopg.NotSupportedError) as error:
        raise NotCopied(error.diag.message_primary or str(error)) from error
