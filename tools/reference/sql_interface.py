"""The pages of the SQL interface, from the catalog itself: functions, views and tables with their comments."""

from __future__ import annotations

from typing import Final

from pgtrickle.db import Connection
from tools.reference import markdown

_FUNCTIONS: Final = """
SELECT p.proname, p.prokind = 'p', pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
       obj_description(p.oid, 'pg_proc')
FROM pg_proc AS p WHERE p.pronamespace = 'pgtrickle'::regnamespace ORDER BY p.proname
"""
_RELATIONS: Final = """
SELECT c.relname, c.relkind = 'v', obj_description(c.oid, 'pg_class'),
       ARRAY(SELECT ARRAY[a.attname::text, format_type(a.atttypid, a.atttypmod), col_description(c.oid, a.attnum)]
             FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
FROM pg_class AS c WHERE c.relnamespace = 'pgtrickle'::regnamespace AND c.relkind IN ('r', 'v') ORDER BY c.relname
"""
_REQUESTS: Final = ("_stream_table", "_all", "validate_query", "wait_for", "wait_for_request", "_if_not_exists")
"""How the names of functions end that ask for something."""
_SHORT: Final = (("timestamp with time zone", "timestamptz"), ("double precision", "float8"), ("::text", ""))


def functions(conn: Connection) -> str:
    requests: list[str] = []
    reading: list[str] = []
    for name, is_procedure, arguments, result, comment in conn.execute(_FUNCTIONS).fetchall():
        entry = _function(str(name), bool(is_procedure), str(arguments), result, str(comment))
        (requests if str(name).endswith(_REQUESTS) else reading).append(entry)
    return markdown.page(
        "SQL functions",
        "All are in the schema `pgtrickle`. `\\df+ pgtrickle.*` in psql shows the same comments. Members of the role"
        " `pgtrickle_user` may call them; each call acts with the rights of the caller.",
        "## Asking for something",
        "These functions check at once what can be checked. Then they write a request, which is part of your"
        " transaction: rolled back, it never was. After the commit the running service (`pgtrickle run`) carries it"
        " out. `CALL pgtrickle.wait_for(id)` waits for that, and raises the error of a request that failed.",
        *requests,
        "## Looking",
        *reading,
    )


def relations(conn: Connection) -> str:
    views: list[str] = []
    tables: list[str] = []
    for name, is_view, comment, columns in conn.execute(_RELATIONS).fetchall():
        assert isinstance(columns, list)
        noted = any(note for _, _, note in columns)
        heads = ("column", "type", "meaning") if noted else ("column", "type")
        rows = [(f"`{column}`", _shortened(kind), note or "")[: len(heads)] for column, kind, note in columns]
        entry = "\n\n".join((f"### {name}", markdown.prose(str(comment)), markdown.table(heads, rows)))
        (views if is_view else tables).append(entry)
    return markdown.page(
        "Views and catalog tables",
        "All are in the schema `pgtrickle`, and members of `pgtrickle_user` may read them. Only pgtrickle writes the"
        " tables. To look at stream tables take the views: they show the names and owners that tables have now.",
        "## Views",
        *views,
        "## Catalog tables",
        *tables,
    )


def _function(name: str, is_procedure: bool, arguments: str, result: object, comment: str) -> str:
    head = f"{'CALL ' if is_procedure else ''}pgtrickle.{name}"
    given = ",\n".join(f"    {each}" for each in _split(arguments.replace("IN ", "") if is_procedure else arguments))
    call = f"{head}(\n{given}\n)" if given else f"{head}()"
    returned = "" if result is None else f" → {_shortened(_laid_out(str(result)))}"
    return f"### {name}\n\n{markdown.prose(comment)}\n\n```\n{_shortened(call)}{returned}\n```"


def _laid_out(result: str) -> str:
    """A result of rows, a column a line."""
    if not result.startswith("TABLE("):
        return result
    columns = ",\n".join(f"    {each}" for each in _split(result.removeprefix("TABLE(").removesuffix(")")))
    return f"TABLE (\n{columns}\n)"


def _split(listed: str) -> list[str]:
    return listed.split(", ") if listed else []


def _shortened(text: str) -> str:
    for long, short in _SHORT:
        text = text.replace(long, short)
    return text
