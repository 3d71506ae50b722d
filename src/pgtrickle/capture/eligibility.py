"""Whether a source can be captured from the WAL, and if not, why. Called when a stream table is created with
`cdc_mode => 'wal'`, and by `observe.py` and `handover.py` before each decision about a source's mode.

The rules are SQL (`wal_eligibility` and `wal_verdict` in migration 0002), since the view pgt_cdc_status shows the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from pgtrickle.errors import Unsupported
from pgtrickle.model import Table

GONE: Final = "PT260"
WAL_LEVEL: Final = "PT264"
IDENTITY: Final = "PT270"


@dataclass(frozen=True, slots=True)
class Eligibility:
    """The verdict on one source: `code`, `reason` and `hint` are given if it is not eligible.

    `unidentified` are the tables (itself, or its partitions) whose replica identity does not tell the old values of
    the columns used; eligible all the same if we may set it (`auto_replica_identity`).
    """

    eligible: bool
    reason: str | None = None
    hint: str | None = None
    code: str | None = None
    unidentified: tuple[int, ...] = ()


def check(
    conn: psycopg.Connection[Any], source_oid: int, columns: Collection[str], *, set_identity: bool = False
) -> Eligibility:
    """The verdict for this session's role; `set_identity` says that we may make the replica identity FULL."""
    row = conn.execute(
        "SELECT e.code, e.reason, e.hint, e.unidentified::bigint[] FROM pgtrickle_internal.wal_eligibility("
        " %s::oid, %s::text[], (SELECT oid FROM pg_roles WHERE rolname = current_user), %s) AS e",
        (source_oid, sorted(columns), set_identity),
    ).fetchone()
    assert row is not None, "the function answers one row"
    code, reason, hint, unidentified = row
    return Eligibility(code is None, reason, hint, code, tuple(unidentified))


def verdicts(
    conn: psycopg.Connection[Any], *, set_identity: bool = False, source_oid: int | None = None
) -> dict[int, Eligibility]:
    """The verdicts on all captured sources, or on the one that is named, by oid."""
    rows = conn.execute(
        "SELECT k.source_relid, e.code, e.reason, e.hint, e.unidentified::bigint[]"
        " FROM pgtrickle.pgt_change_tracking AS k CROSS JOIN LATERAL pgtrickle_internal.wal_eligibility("
        " k.source_relid, k.columns, (SELECT oid FROM pg_roles WHERE rolname = current_user), %(identity)s) AS e"
        " WHERE %(only)s::oid IS NULL OR k.source_relid = %(only)s::oid",
        {"identity": set_identity, "only": source_oid},
    ).fetchall()
    return {oid: Eligibility(code is None, reason, hint, code, tuple(them)) for oid, code, reason, hint, them in rows}


def still_holds(conn: psycopg.Connection[Any], source_oid: int) -> bool:
    """Whether the table of a captured source is one that the WAL tells all of, whatever the server is short of now."""
    row = conn.execute(
        "SELECT e.code IS NULL OR e.code BETWEEN 'PT264' AND 'PT268' FROM pgtrickle.pgt_change_tracking AS k"
        " JOIN pg_namespace AS n ON n.nspname = 'pgtrickle'"
        " CROSS JOIN LATERAL pgtrickle_internal.wal_eligibility(k.source_relid, k.columns, n.nspowner, false) AS e"
        " WHERE k.source_relid = %s",
        (source_oid,),
    ).fetchone()
    return row is not None and bool(row[0])


def require(
    conn: psycopg.Connection[Any], table: Table, columns: Collection[str], *, set_identity: bool = False
) -> None:
    """Raise Unsupported, with the code of the reason, unless `table` can be captured from the WAL."""
    found = check(conn, table.oid, columns, set_identity=set_identity)
    if not found.eligible:
        raise Unsupported(
            f"changes of {table} cannot be captured from the WAL: {found.reason}", code=found.code, hint=found.hint
        )
