"""Whether a query means to us what it means to the session that defines it. Called by `refresh/definition/define.py`.

Every session of ours has some settings pinned (`answers.py`). Where the session of who defines a table has others, the
same text may be another query (`x = NULL`, `'{NULL}'::text[]`): PostgreSQL is asked to read it under both, and where it
reads two different queries the definition is refused. What may only look different is told (`answers.notes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from pgtrickle.answers import IN_TEXTS, PINNED, unlike
from pgtrickle.db import OWN_PATH, Caller
from pgtrickle.errors import QueryError
from pgtrickle.query.analyse.scratch_view import ScratchView, scratch


def settings_of(conn: psycopg.Connection[Any], who: Caller) -> dict[str, str]:
    """The settings of who defines a table, to be kept: the text search configuration by its full name, as the path by
    which it was found is not that of a refresh."""
    with scratch(conn, who.search_path, who.settings) as place:
        found = place.rows("SELECT pg_catalog.current_setting('default_text_search_config')")
    return {**who.settings, "default_text_search_config": str(found[0][0])}


def require_same(conn: psycopg.Connection[Any], query: str, who: Caller) -> None:
    """Refuses a query that PostgreSQL reads in another way in the session of who defines it. It has been read in ours,
    so that whatever else is wrong with it has been said."""
    reading = {name: who.settings[name] for name in unlike(who.settings) if name in (*IN_TEXTS, "IntervalStyle")}
    if not reading or _read(conn, query, who, {}) == _read(conn, query, who, reading):
        return
    values = ", ".join(f"{name} = {value}" for name, value in reading.items())
    raise QueryError(
        f"this session has {values}, under which the query means something else than where it is computed",
        code="PT293",
        hint="set it to PostgreSQL's default for this session, and write the query for that (IS NULL for = NULL, say)",
    )


def _read(conn: psycopg.Connection[Any], query: str, who: Caller, also: Mapping[str, str]) -> str | None:
    """The query as PostgreSQL prints it, read under these settings; None if it is none."""
    try:
        with scratch(conn, who.search_path, who.settings) as place:
            _set(place, also)
            view = place.define(query)
            place.use_search_path(OWN_PATH)
            _set(place, {name: PINNED[name] for name in also})
            return place.definition(view)
    except (psycopg.ProgrammingError, psycopg.DataError):
        return None


def _set(place: ScratchView, settings: Mapping[str, str]) -> None:
    for pair in settings.items():
        place.rows("SELECT pg_catalog.set_config(%s, %s, true)", pair)
