"""What a leading service commits, it commits as the leader: a transaction holds the leader's row by its epoch.

Called by all that commits for the service: refreshes, handovers, the decoder, requests. Who takes over changes the
epoch, which is in a key: it waits for transactions that hold the row, and those that come after fail. So a leader that
hung and was replaced commits nothing when it wakes up. Who leads is decided in `scheduler/lease.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from pgtrickle.errors import ServerError


class LeaseLost(ServerError):
    """Another service leads now, or may."""

    code = "PT406"


@dataclass(frozen=True, slots=True)
class Fence:
    """The lease that a leader has: by the role it serves, what it leads in, and its epoch."""

    role_name: str
    purpose: str
    epoch: int

    def hold(self, conn: psycopg.Connection[Any]) -> None:
        """Has the caller's transaction commit before another service leads; LeaseLost if one does already."""
        held = conn.execute(
            "SELECT FROM pgtrickle.pgt_leases WHERE role_name = %s AND purpose = %s AND epoch = %s FOR KEY SHARE",
            (self.role_name, self.purpose, self.epoch),
        ).rowcount
        if not held:
            raise lost(f"another service has taken over from the one of epoch {self.epoch}")


def hold(fence: Fence | None, conn: psycopg.Connection[Any]) -> None:
    """The same, where there may be none: who acts by hand leads nothing."""
    if fence is not None:
        fence.hold(conn)


@contextmanager
def fenced(conn: psycopg.Connection[Any], fence: Fence | None) -> Iterator[None]:
    """A transaction that commits only if no other service leads by then."""
    with conn.transaction():
        yield
        hold(fence, conn)


def lost(reason: str) -> LeaseLost:
    return LeaseLost(reason, hint="Nothing to do: this service waits until it may lead again.")
