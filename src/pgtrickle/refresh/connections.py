"""The connections of a refresh. `run.py` opens them, `stages.py` works on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pgtrickle.db import Connection


@dataclass(frozen=True, slots=True)
class Connections:
    """Those of a refresh: at its snapshot, in its transaction, and one that commits at once (staging tables).

    `late` is for buffers into which changes are decoded: at a snapshot taken once those of the refresh's are there.
    `locks` holds the table's lock meanwhile (`lock.py`).
    """

    reader: Connection
    writer: Connection
    aside: Connection
    late: Connection
    locks: Connection

    @classmethod
    def single(cls, connection: Connection) -> Connections:
        """One for all, where nothing is written and nothing waited for."""
        return cls(connection, connection, connection, connection, connection)

    def __iter__(self) -> Iterator[Connection]:
        return iter((self.reader, self.writer, self.aside, self.late, self.locks))
