"""Every error pgtrickle raises, in one tree, each with a stable code, a message and a hint.

Error
 ├── UsageError          PT0xx  a wrong argument: name, schedule, mode, setting
 ├── QueryError          PT1xx  PostgreSQL refuses the query
 ├── Unsupported         PT2xx  the query is right, but this refresh mode cannot maintain it
 ├── StateError          PT3xx  the stream table is not in a state that allows this
 │    └── Refused         PT3xx  nothing was tried, so nothing failed
 ├── ServerError         PT4xx  the server cannot be reached or lacks something we need
 ├── EnvironmentProblem  PT5xx  Java, Spark or the embedded PostgreSQL is missing or broken
 └── Fault               PT489  what no one foresaw
PT480 to PT489 are of the Python interface itself, whatever the class.
"""

from __future__ import annotations


class Error(Exception):
    """Base of all pgtrickle errors; `str()` is the message, `hint` says what to do."""

    code = "PT000"

    def __init__(
        self, message: str, *, code: str | None = None, hint: str | None = None, at: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.hint = hint
        self.at = at

    def __str__(self) -> str:
        where = f" ({self.at})" if self.at else ""
        return f"{self.code}: {self.message}{where}"


class UsageError(Error):
    """An argument is wrong; nothing was done."""

    code = "PT001"


class QueryError(Error):
    """PostgreSQL does not accept the defining query."""

    code = "PT100"


class Unsupported(Error):
    """The query cannot be maintained in the refresh mode asked for."""

    code = "PT200"


class StateError(Error):
    """The stream table is missing, busy, suspended, or has no baseline."""

    code = "PT300"


class Refused(StateError):
    """What was asked for does not fit the state; nothing was tried, so nothing failed."""


class ServerError(Error):
    """PostgreSQL cannot be reached, or the role may not do what is needed."""

    code = "PT400"


class EnvironmentProblem(Error):
    """A part of the machine we need (Java, Spark, the embedded server) is missing or broken."""

    code = "PT500"


class Fault(Error):
    """Something failed that no one foresaw: a fault of pgtrickle. Its cause is the exception as it was raised."""

    code = "PT489"


class SessionWarning(UserWarning):
    """What a table shows is not what the session that defines it would show: a setting is not the same."""


class ColumnsWarning(UserWarning):
    """A stream table loses columns by `alter`, and something that was made on them goes with these: an index, a key."""


class IgnoredSetting(SessionWarning):
    """A setting was given that has no effect: not any more, or not on this table."""
