"""Stream tables for PostgreSQL, maintained incrementally by Apache Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pgtrickle.errors import (
    EnvironmentProblem,
    Error,
    QueryError,
    ServerError,
    SessionWarning,
    StateError,
    Unsupported,
    UsageError,
)

if TYPE_CHECKING:
    from pgtrickle.api import Trickle, connect
    from pgtrickle.refresh.result import RefreshResult

__all__ = [
    "EnvironmentProblem",
    "Error",
    "QueryError",
    "RefreshResult",
    "ServerError",
    "SessionWarning",
    "StateError",
    "Trickle",
    "Unsupported",
    "UsageError",
    "connect",
]

# Loaded when first asked for: Spark's Python workers import this package too, and need none of it.
_LAZY = {"Trickle": "pgtrickle.api", "connect": "pgtrickle.api", "RefreshResult": "pgtrickle.refresh.result"}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
