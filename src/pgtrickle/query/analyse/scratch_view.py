"""Asks PostgreSQL about a query by making a temporary view of it in a savepoint that is always rolled back.

Used by `analyze.py` and `compile.py`. Nothing stays behind, whatever happens inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from pgtrickle.db import OWN_PATH, use_settings
from pgtrickle.model import PgType
from pgtrickle.query.analyse.analysis import Attribute

_NAME = "pgtrickle_analysed"

INTERVALS = """
       CASE WHEN a.atttypid = 1186 THEN 'all'
            WHEN t.typtype <> 'b' OR t.typelem <> 0 THEN (
                WITH RECURSIVE part(oid) AS (
                    SELECT a.atttypid
                    UNION
                    SELECT inner_type FROM part JOIN pg_catalog.pg_type AS p ON p.oid = part.oid CROSS JOIN LATERAL (
                        SELECT p.typbasetype UNION ALL SELECT p.typelem
                        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r
                                  WHERE p.oid IN (r.rngtypid, r.rngmultitypid)
                        UNION ALL SELECT f.atttypid FROM pg_catalog.pg_attribute f
                                  WHERE f.attrelid = p.typrelid AND f.attnum > 0 AND NOT f.attisdropped
                    ) AS within(inner_type) WHERE inner_type <> 0)
                SELECT CASE WHEN bool_or(p.typtype = 'c') THEN 'some' ELSE 'all' END
                FROM part JOIN pg_catalog.pg_type AS p ON p.oid = part.oid HAVING bool_or(part.oid = 1186)) END
"""
"""Whether the values of a column `a` of type `t` are made of intervals, see `PgType.intervals`."""

# The live columns of a relation; the parts of a PgType come last.
_ATTRIBUTES = f"""
SELECT a.attnum, a.attname, a.attgenerated,
       a.atttypid, pg_catalog.format_type(a.atttypid, a.atttypmod),
       CASE WHEN a.attcollation <> t.typcollation
            THEN pg_catalog.quote_ident(cn.nspname) || '.' || pg_catalog.quote_ident(co.collname) END,
       coalesce(co.collisdeterministic, true),
       {INTERVALS},
       t.typtype = 'e',
       CASE WHEN a.attcollation = t.typcollation
            THEN pg_catalog.quote_ident(cn.nspname) || '.' || pg_catalog.quote_ident(co.collname) END
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_collation co ON co.oid = a.attcollation
LEFT JOIN pg_catalog.pg_namespace cn ON cn.oid = co.collnamespace
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


def prefix(name: str = _NAME) -> str:
    """The text before the query in the statement that makes the view."""
    return f"CREATE TEMPORARY VIEW {name} AS\n"


class ScratchView:
    """A place to make temporary views and look at them; made by `scratch()`."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def rows(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one of our own catalog queries."""
        with self.connection.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(query.encode(), parameters).fetchall()

    def search_path(self) -> str:
        return str(self.rows("SELECT pg_catalog.current_setting('search_path')")[0][0])

    def use_search_path(self, search_path: str) -> None:
        self.rows("SELECT pg_catalog.set_config('search_path', %s, true)", (search_path,))

    def parse(self, sql: str) -> int:
        """Lets PostgreSQL analyse `sql` as one statement without running it; answers its number of parameters."""
        encoding = self.connection.info.encoding
        connection = self.connection.pgconn
        for result in (connection.prepare(b"", sql.encode(encoding)), connection.describe_prepared(b"")):
            if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
                raise psycopg.errors.error_from_result(result, encoding)
        return result.nparams

    def define(self, sql: str, name: str = _NAME) -> int:
        """The oid of a temporary view of `sql`. Only one statement is accepted, whatever `sql` holds."""
        self.run_one(prefix(name) + sql)
        return int(self.rows("SELECT %s::pg_catalog.regclass::pg_catalog.oid", (f"pg_temp.{name}",))[0][0])

    def run_one(self, statement: str) -> None:
        """Runs a statement, which may hold text of others: only one is accepted."""
        with self.connection.cursor() as cursor:
            # binary: the extended protocol, which takes one statement
            cursor.execute(statement.encode(self.connection.info.encoding), binary=True)

    def explain(self, name: str = _NAME) -> None:
        """Plans a read of a view defined here, which checks the role's privileges."""
        self.rows(f"EXPLAIN SELECT * FROM pg_temp.{name}")

    def definition(self, oid: int) -> str:
        """A view's normalised text, without its semicolon."""
        return str(self.rows("SELECT pg_catalog.pg_get_viewdef(%s::pg_catalog.oid)", (oid,))[0][0]).strip().rstrip(";")

    def rule(self, oid: int) -> str:
        """A view's stored node tree."""
        found = self.rows(
            "SELECT ev_action::pg_catalog.text FROM pg_catalog.pg_rewrite"
            " WHERE ev_class OPERATOR(pg_catalog.=) %s::pg_catalog.oid"
            " AND rulename OPERATOR(pg_catalog.=) '_RETURN'::pg_catalog.name",
            (oid,),
        )
        return str(found[0][0])

    def attributes(self, oid: int) -> tuple[Attribute, ...]:
        """A relation's live columns."""
        return tuple(
            Attribute(number, name, PgType(*type), generated)
            for number, name, generated, *type in self.rows(_ATTRIBUTES, (oid,))
        )


@contextmanager
def scratch(
    connection: psycopg.Connection[Any], search_path: str = OWN_PATH, settings: Mapping[str, str] | None = None
) -> Iterator[ScratchView]:
    """A `Scratch` in a savepoint with this search_path and these settings, rolled back at the end."""
    with connection.transaction(force_rollback=True):
        place = ScratchView(connection)
        place.use_search_path(search_path)
        use_settings(connection, settings or {})
        yield place
