"""The choices of options, as enumerations: the help lists them, and a wrong one is an error that lists them too."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class RefreshModeChoice(StrEnum):
    """Modes that a stream table can be refreshed in."""

    AUTO = "AUTO"
    DIFFERENTIAL = "DIFFERENTIAL"
    FULL = "FULL"
    IMMEDIATE = "IMMEDIATE"


class CdcMode(StrEnum):
    """Ways of capture that a stream table can ask for."""

    AUTO = "auto"
    TRIGGER = "trigger"
    WAL = "wal"
    INHERIT = "inherit"


class Status(StrEnum):
    """What the status can be set to."""

    ACTIVE = "ACTIVE"
    SUSPENDED = "SUSPENDED"


class DiamondConsistency(StrEnum):
    """Whether the tables of a diamond are committed together."""

    ATOMIC = "atomic"
    NONE = "none"
    INHERIT = "inherit"


class DiamondSchedulePolicy(StrEnum):
    """Which of its tables' schedules a diamond follows."""

    FASTEST = "fastest"
    SLOWEST = "slowest"
    INHERIT = "inherit"


class LogLevel(StrEnum):
    """How important an event must be to be logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _option(help: str, *names: str) -> object:
    return typer.Option(*names, help=help, case_sensitive=False)


Mode = Annotated[RefreshModeChoice, _option("Refresh mode.")]
OptionalMode = Annotated[RefreshModeChoice | None, _option("Refresh mode.")]
OptionalCdcMode = Annotated[
    CdcMode | None, _option("How to capture changes. Default, and `inherit`: the setting cdc_mode.")
]
OptionalStatus = Annotated[Status | None, _option("Resume or suspend the stream table.")]
Consistency = Annotated[
    DiamondConsistency | None, _option("Whether the tables of a diamond commit together. `inherit`: the setting.")
]
OptionalLogLevel = Annotated[LogLevel | None, _option("Log events of this level and above. Default: info.")]
PrimaryKey = Annotated[
    str | None, _option("Columns of a primary key: `region, day`. `none`: it has none.", "--primary-key")
]
Indexes = Annotated[
    list[str] | None,
    _option(
        "An index: `region, day`, `UNIQUE (id)`, `USING gin (tags)`. May be given again and again. `none`: none.",
        "--index",
    ),
]
Protect = Annotated[bool | None, _option("Refuse writes by others than refreshes.", "--protect/--no-protect")]
Policy = Annotated[DiamondSchedulePolicy | None, _option("Which schedule a diamond follows. `inherit`: the setting.")]
