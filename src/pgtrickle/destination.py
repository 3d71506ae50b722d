"""Which database is meant where none is named. Called by `connect()` and by the command line, which say it alike.

the one given  →  PGTRICKLE_DSN  →  libpq's own variables or service  →  the embedded server, started if need be
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from psycopg import pq
from psycopg.conninfo import make_conninfo

from pgtrickle import embedded

VARIABLE: Final = "PGTRICKLE_DSN"
NAMING: Final = ("PGSERVICE", "PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER")
"""The variables of libpq that name a server or a database; others, such as PGSSLMODE, only say how to get there."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A database, and who named it."""

    dsn: str
    named_by: str

    @property
    def was_named(self) -> bool:
        """Whether the user named it for us; else it should be said which was taken."""
        return self.named_by in (GIVEN, VARIABLE)


GIVEN: Final = "the argument"
EMBEDDED: Final = "nothing, so the embedded server"


def choose(given: str | None) -> Destination:
    """The database to work on."""
    if given:
        return Destination(given, GIVEN)
    if named := os.environ.get(VARIABLE):
        return Destination(named, VARIABLE)
    if found := [name for name in NAMING if os.environ.get(name)]:
        return Destination(_of_libpq(), ", ".join(found))
    return Destination(embedded.start().dsn, EMBEDDED)


def _of_libpq() -> str:
    """What libpq would connect to, written out: Spark's tasks may run where the variables are not set. The name of a
    service is part of it, so that libpq complains of an unknown one, which its defaults pass over."""
    options = {option.keyword.decode(): option for option in pq.Conninfo.get_defaults()}
    values = {
        keyword: option.val.decode()
        for keyword, option in options.items()
        if option.val and option.val != option.compiled
    }
    return make_conninfo("", **values)
