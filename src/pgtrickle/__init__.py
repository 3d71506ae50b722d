"""Stream tables for PostgreSQL, maintained incrementally by Apache Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pgtrickle.errors import (
    ColumnsWarning,
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
    __version__: str
    from pgtrickle.api import Trickle, connect
    from pgtrickle.catalog.reader import StreamTable
    from pgtrickle.refresh.result import RefreshResult
    from pgtrickle.spark_source import register_spark_source

__all__ = [
    "ColumnsWarning",
    "EnvironmentProblem",
    "Error",
    "QueryError",
    "RefreshResult",
    "ServerError",
    "SessionWarning",
    "StateError",
    "StreamTable",
    "Trickle",
    "Unsupported",
    "UsageError",
    "__version__",
    "connect",
    "register_spark_source",
]

# Loaded when first asked for: Spark's Python workers import this package too, and need none of it.
_LAZY = {
    "RefreshResult": "pgtrickle.refresh.result",
    "StreamTable": "pgtrickle.catalog.reader",
    "Trickle": "pgtrickle.api",
    "connect": "pgtrickle.api",
    "register_spark_source": "pgtrickle.spark_source",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        from pgtrickle.libpq import explained

        with explained():
            return getattr(import_module(_LAZY[name]), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("pgtrickle")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
