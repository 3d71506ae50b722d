"""The oracle of every story: the query as PostgreSQL answers it, compared both ways with EXCEPT ALL."""

from __future__ import annotations

from pgtrickle.db import Connection, statement


def differing(connection: Connection, table: str, query: str) -> list[tuple[object, ...]]:
    """Rows that only the query has (first column `missing`) or only the table (`extra`), at one moment."""
    compared = (
        f"SELECT 'missing', m.* FROM (({query}) EXCEPT ALL SELECT * FROM {table}) AS m "
        f"UNION ALL SELECT 'extra', e.* FROM (SELECT * FROM {table} EXCEPT ALL ({query})) AS e"
    )
    return connection.execute(statement(compared)).fetchall()
