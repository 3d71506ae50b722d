"""The connections of a refresh. `run.py` opens them, `stages.py` works on them."""

from __future__ import annotations

from dataclasses import dataclass

from pgtrickle.db import Connection


@dataclass(frozen=True, slots=True)
class Connections:
    """The three of a refresh: at its snapshot, in its transaction, and one that commits at once (staging tables)."""

    reader: Connection
    writer: Connection
    aside: Connection
