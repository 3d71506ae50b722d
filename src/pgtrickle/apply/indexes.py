"""Indexes of our tables that are made after a load: PostgreSQL sorts then, rather than look for the place of each row,
and writes each page once. Used by `refresh/evaluate/stages.py` for state tables, and by `merge.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pgtrickle.db import Connection, execute

MANY_ROWS = 50_000
"""Where fewer rows are read, dropping and making indexes is not worth the while."""
_PLAIN = """
SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname), pg_catalog.pg_get_indexdef(i.indexrelid)
FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE i.indrelid = pg_catalog.to_regclass(%s) ORDER BY i.indexrelid
"""


@contextmanager
def made_after(connection: Connection, table: str) -> Iterator[None]:
    """A table of ours (SQL text) has no indexes within the block, and the same ones again after it. Nobody reads it
    meanwhile: for that the lock on it is held until the transaction ends."""
    found = [(str(name), str(text)) for name, text in connection.execute(_PLAIN, (table,)).fetchall()]
    for name, _ in found:
        execute(connection, f"DROP INDEX {name}")
    yield
    for _, text in found:
        execute(connection, text)
