"""Reading what the catalog says of its own health. Called by the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row

from pgtrickle.record import Record


@dataclass(frozen=True, slots=True)
class Check(Record):
    """A row of health_check(): `severity` is OK, WARN (look at it) or ERROR (something is wrong), `hint` what to do."""

    check_name: str
    severity: str
    detail: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class SlotHealth(Record):
    """The row of slot_health(): `sources` count on the slot, `alert` says what is wrong with it, None if nothing is."""

    slot_name: str
    active: bool
    wal_status: str | None
    invalidation_reason: str | None
    retained_wal_bytes: int | None
    lag_bytes: int | None
    confirmed_lsn: str | None
    sources: int
    decoder_status: str
    decoder_error: str | None
    alert: str | None


def health(conn: psycopg.Connection[Any]) -> tuple[Check, ...]:
    """Every check; those that failed may stand there several times, once for each problem."""
    with conn.cursor(row_factory=class_row(Check)) as cursor:
        return tuple(cursor.execute("SELECT check_name, severity, detail, hint FROM pgtrickle.health_check()"))


def slot_health(conn: psycopg.Connection[Any]) -> SlotHealth | None:
    """The database's slot; None if there is none."""
    with conn.cursor(row_factory=class_row(SlotHealth)) as cursor:
        return cursor.execute(
            "SELECT slot_name, active, wal_status, invalidation_reason, retained_wal_bytes, lag_bytes,"
            " confirmed_lsn::text AS confirmed_lsn, sources, decoder_status, decoder_error, alert"
            " FROM pgtrickle.slot_health()"
        ).fetchone()
