"""Says what to do where PostgreSQL's client library is missing. Around whatever imports psycopg first.

psycopg is written in Python, and finds libpq on the machine, or in the wheel of its extra `binary`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pgtrickle.errors import EnvironmentProblem


@contextmanager
def explained() -> Iterator[None]:
    """An import in here that fails because there is no libpq is an EnvironmentProblem."""
    try:
        yield
    except ImportError as error:
        if "libpq" not in str(error) and "pq wrapper" not in str(error):
            raise
        raise EnvironmentProblem(
            "PostgreSQL's client library, libpq, is not on this machine",
            code="PT680",
            hint="pip install 'pgtrickle[binary]' brings one; Debian's is in the package libpq5",
        ) from error
