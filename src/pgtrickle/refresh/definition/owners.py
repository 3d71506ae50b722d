"""Code below a stream table that another's hand changed is not run before the table's owner says so.

Views, functions, operators, domains, casts and policies are evaluated in our session. Each is recorded as it was when
the stream table's owner named the query. One that is new or changed since, and whose owner has not all rights of the
table's owner, waits: for `alter` with the query, which may be the same. Tables are data: their owners may alter them.

Asked once PostgreSQL has read the query, and before it plans it: planning evaluates what is constant. Called by
`define.py` and `verification/verify.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection
from pgtrickle.query.analyse.analysis import Dependencies
from pgtrickle.refresh.failure import DefinitionProblem

_NOT_RECORDED = "before 0008"
"""The fingerprint of a stream table of whose query this was not recorded: see migration 0008."""

_BY_OTHERS = """
SELECT pg_catalog.pg_describe_object(s.classid, s.objid, s.objsubid), u.pgt_id IS NULL,
       pg_catalog.pg_get_userbyid(s.owner), pg_catalog.pg_get_userbyid(c.relowner)
FROM pgtrickle_internal.object_shapes(%(classes)s::oid[], %(objects)s::oid[], %(parts)s::int[]) AS s
CROSS JOIN pg_catalog.pg_class AS c
LEFT JOIN pgtrickle.pgt_used_objects AS u
  ON (u.pgt_id, u.classid, u.objid, u.objsubid) = (%(pgt_id)s, s.classid, s.objid, s.objsubid)
WHERE c.oid = %(relid)s AND s.code AND NOT pg_catalog.pg_has_role(s.owner, c.relowner, 'USAGE')
  AND u.shape IS DISTINCT FROM pg_catalog.jsonb_strip_nulls(
      pg_catalog.jsonb_build_object('name', s.name, 'type', s.type, 'definition', s.definition))
ORDER BY 1
"""


class WaitsForOwner(DefinitionProblem):
    """Code that the stream table's query runs was changed by someone who has not all rights of the table's owner."""

    code = "PT350"


def confirmed(connection: Connection, stream: StreamTable) -> Callable[[Dependencies], None]:
    """What to ask of a query's dependencies before it is planned; it raises WaitsForOwner."""

    def ask(dependencies: Dependencies) -> None:
        require_confirmed(connection, stream, dependencies)

    return ask


def require_confirmed(connection: Connection, stream: StreamTable, dependencies: Dependencies) -> None:
    """Raises WaitsForOwner for code that is not as it was when the owner named the query, by another's hand."""
    if stream.source_fingerprint == _NOT_RECORDED:
        return
    addresses = dependencies.addresses
    found = connection.execute(
        _BY_OTHERS,
        {
            "pgt_id": stream.pgt_id,
            "relid": stream.pgt_relid,
            "classes": [classid for classid, _, _ in addresses],
            "objects": [objid for _, objid, _ in addresses],
            "parts": [part for _, _, part in addresses],
        },
    ).fetchall()
    if found:
        told = ", ".join(
            f"{title} ({'new' if new else 'changed'}, belongs to {owner})" for title, new, owner, _ in found
        )
        raise WaitsForOwner(
            f"{stream} would run code that someone without all rights of {found[0][3]} made or changed: {told}",
            hint=f"Look at it; as {found[0][3]}, alter {stream} with its query, which may be the same.",
        )
