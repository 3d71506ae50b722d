"""Dropping a replication slot that someone may be reading. Called by `capture/slot.py` and `catalog/install.py`."""

from __future__ import annotations

import time
from typing import Any, Final

import psycopg

_WITHIN_S: Final = 10.0


def drop(conn: psycopg.Connection[Any], name: str) -> None:
    """Drop the slot, disconnecting its reader; that it is gone already is fine. ObjectInUse if readers keep coming."""
    deadline = time.monotonic() + _WITHIN_S
    while True:
        conn.execute(
            "SELECT pg_terminate_backend(active_pid, 1000) FROM pg_replication_slots"
            " WHERE slot_name = %s AND active_pid IS NOT NULL AND active_pid <> pg_backend_pid()",
            (name,),
        )
        try:
            with conn.transaction():
                conn.execute("SELECT pg_drop_replication_slot(%s)", (name,))
            return
        except psycopg.errors.UndefinedObject:
            return
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)
