"""The connections of a refresh. `refresher.py` opens them, `evaluate/stages.py` works on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from psycopg.pq import TransactionStatus

from pgtrickle.db import Connection, use_settings


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

    def use_settings(self, settings: Mapping[str, str]) -> None:
        """Puts the settings stored with a stream table in effect in the transactions that are open and see data."""
        for connection in (self.reader, self.writer, self.aside, self.late):
            if connection.info.transaction_status is TransactionStatus.INTRANS:
                use_settings(connection, settings)

    def __iter__(self) -> Iterator[Connection]:
        return iter((self.reader, self.writer, self.aside, self.late, self.locks))
