"""Every setting, declared once: type, default, help, unit. Read by all parts through one frozen `Settings`.

A value comes from the database or role (`ALTER DATABASE … SET pg_trickle.NAME`), the environment
(`PGTRICKLE_NAME`) or a flag, the later winning. `describe()` feeds `pgtrickle config` and the documentation.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pgtrickle.errors import IgnoredSetting, UsageError

if TYPE_CHECKING:
    import psycopg

Value: TypeAlias = bool | int | float | str

LONGEST_SCHEDULE_S: Final = 3650 * 86400
"""Ten years, in seconds: sums of times stay within those of Python and PostgreSQL."""
REMOVED: Final = {
    "change_buffer_schema": "change buffers are always in the schema pgtrickle_changes",
}
"""Settings that there were and that nothing ever read, each with the reason."""
_TRUE = frozenset({"true", "on", "yes", "1", "t", "y"})
_FALSE = frozenset({"false", "off", "no", "0", "f", "n"})
_BYTES = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}


def _setting(
    default: Value,
    help: str,
    *,
    unit: str | None = None,
    choices: tuple[str, ...] | None = None,
    least: float | None = None,
    most: float | None = None,
    in_database: bool = True,
) -> Any:
    """A dataclass field with what `describe()` and validation need; typed Any as `dataclasses.field` is. One that is
    not `in_database` decides what this machine runs: whoever may set something there shall not decide that."""
    return field(
        default=default,
        metadata={
            "help": help,
            "unit": unit,
            "choices": choices,
            "least": least,
            "most": most,
            "in_database": in_database,
        },
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of CONTRACT.md with their defaults."""

    enabled: bool = _setting(True, "Whether the service refreshes anything.")
    scheduler_interval_ms: int = _setting(
        1000, "Time between two looks at what is due.", unit="ms", least=10, most=86_400_000
    )
    min_schedule_seconds: int = _setting(
        1, "The shortest schedule a stream table may have.", unit="s", least=1, most=LONGEST_SCHEDULE_S
    )
    max_consecutive_errors: int = _setting(3, "Failures in a row after which a stream table is suspended.", least=1)
    max_concurrent_refreshes: int = _setting(4, "Refreshes that may run at the same time.", least=1)
    parallel_refresh_mode: str = _setting(
        "on", "Whether independent stream tables refresh concurrently.", choices=("on", "off")
    )
    differential_max_change_ratio: float = _setting(
        0.15, "AUTO runs FULL when more than this part of a source has changed.", least=0.0, most=1.0
    )
    block_source_ddl: bool = _setting(False, "Whether DDL that would change a source's used columns is refused.")
    allow_circular: bool = _setting(False, "Whether stream tables may form a monotone cycle.")
    max_fixpoint_iterations: int = _setting(
        100, "Rounds after which a cycle that does not settle is an error.", least=1
    )
    ivm_recursive_max_depth: int = _setting(
        100, "Rounds after which a recursive query that does not end is an error.", least=1
    )
    user_triggers: str = _setting(
        "auto",
        "Whether a row that stays with other values is updated: where the table has triggers (auto), always or never.",
        choices=("auto", "on", "off"),
    )
    cleanup_use_truncate: bool = _setting(True, "Whether a change buffer no one needs is emptied by TRUNCATE.")
    cdc_mode: str = _setting("auto", "How changes of sources are captured.", choices=("auto", "trigger", "wal"))
    cdc_trigger_mode: str = _setting(
        "statement", "Whether capture triggers run once a statement or once a row.", choices=("statement", "row")
    )
    wal_transition_timeout: int = _setting(300, "Longest time a handover to WAL may take.", unit="s", least=1)
    decoder_wait_timeout: int = _setting(
        10,
        "Longest time a refresh waits for changes that are still being decoded; then it is skipped.",
        unit="s",
        least=1,
    )
    auto_replica_identity: bool = _setting(False, "Whether REPLICA IDENTITY FULL is set where WAL capture needs it.")
    slot_lag_warning_threshold_mb: int = _setting(100, "Slot lag that raises an alert.", unit="MB", least=1)
    slot_lag_critical_threshold_mb: int = _setting(
        1024, "Slot lag that makes the service unhealthy.", unit="MB", least=1
    )
    buffer_growth_warning_rows: int = _setting(
        1_000_000, "Changes waiting in one source's buffer that raise an alert.", unit="rows", least=1
    )
    trust_stable_functions: bool = _setting(
        False,
        "Whether a STABLE function whose body is not in SQL is taken to depend on its arguments and on settings only,"
        " for stream tables that are defined from now on.",
    )
    compare_interval: int = _setting(
        0,
        "Least time between two comparisons of a foreign table with the copy of it; 0: at each refresh.",
        unit="s",
        least=0,
    )
    audit_interval: int = _setting(
        0,
        "Time between two audits, each of which compares a sample of one stream table with its query; 0: none.",
        unit="s",
        least=0,
    )
    audit_sample: int = _setting(
        16, "An audit compares one row in so many, the next audit of the table the next ones; 1: all.", least=1
    )
    audit_timeout: int = _setting(
        60, "Longest time an audit may take; it evaluates the whole query.", unit="s", least=1
    )
    enforce_backpressure: bool = _setting(True, "Whether sources go back to triggers when the slot lags too far.")
    wal_backpressure_critical_bytes: int = _setting(
        1 << 30, "Slot lag at which sources go back to triggers.", unit="bytes", least=1
    )
    wal_backpressure_resume_bytes: int = _setting(
        512 << 20, "Slot lag below which sources may return to WAL.", unit="bytes", least=0
    )
    diamond_consistency: str = _setting(
        "atomic", "Whether the arms of a diamond commit together.", choices=("atomic", "none")
    )
    diamond_schedule_policy: str = _setting(
        "fastest", "Which arm's schedule a diamond follows.", choices=("fastest", "slowest")
    )
    lease_timeout_ms: int = _setting(
        15_000, "Silence of the leading service after which another one takes over.", unit="ms", least=2000
    )
    spark_master: str = _setting("local[*]", "Where Spark runs: a master URL, or a Spark Connect endpoint (sc://…).")
    spark_conf: str = _setting(
        "",
        "Spark's own settings, NAME=VALUE, divided by semicolons; only from the environment or a flag.",
        in_database=False,
    )
    spark_archive: str = _setting(
        "",
        "The archive, written by `pgtrickle package`, of what Spark's executors need; only from the environment.",
        in_database=False,
    )
    spark_connections: int = _setting(
        0,
        "Connections to PostgreSQL that the tasks of all executors have at most; 0: as many as tasks run.",
        least=0,
    )
    postgres_rows: int = _setting(
        10_000_000,
        "Rows in all tables of a query up to which AUTO may have PostgreSQL evaluate its refreshes without Spark; 0:"
        " never.",
        unit="rows",
        least=0,
    )
    learn_costs: bool = _setting(
        True,
        "Whether AUTO takes the way that is expected to be the cheapest, by statistics and by what the table's last"
        " refreshes took; false: changes up to differential_max_change_ratio, PostgreSQL alone up to postgres_rows.",
    )
    spare_source: bool = _setting(
        False,
        "Whether Spark does what it can because the database's CPU is what is scarce: AUTO has no refresh evaluated by"
        " PostgreSQL alone, and full refreshes have Spark join and group where PostgreSQL would be faster.",
    )
    log_level: str = _setting(
        "info", "The least important events that the service logs.", choices=("debug", "info", "warning", "error")
    )

    def __post_init__(self) -> None:
        if self.wal_backpressure_resume_bytes > self.wal_backpressure_critical_bytes:
            raise UsageError(
                "wal_backpressure_resume_bytes is larger than wal_backpressure_critical_bytes",
                hint="Sources resume below the critical mark: lower the one or raise the other.",
            )
        spark_settings(self.spark_conf)
        if self.slot_lag_warning_threshold_mb > self.slot_lag_critical_threshold_mb:
            raise UsageError(
                "slot_lag_warning_threshold_mb is larger than slot_lag_critical_threshold_mb",
                hint="The warning comes before the critical mark: lower the one or raise the other.",
            )

    @classmethod
    def load(
        cls, conn: psycopg.Connection[Any] | None = None, flags: Mapping[str, Value | None] | None = None
    ) -> Settings:
        """Defaults, then `pg_trickle.NAME` of `conn`, then PGTRICKLE_NAME, then `flags` (None means not given)."""
        return cls(**{name: value for name, (value, _) in _given(conn, flags or {}).items()})  # type: ignore[arg-type]


def spark_settings(text: str) -> dict[str, str]:
    """Spark's settings by name, of what `spark_conf` says."""
    found = {}
    for given in filter(None, map(str.strip, text.split(";"))):
        name, equals, value = given.partition("=")
        if not equals or not re.fullmatch(r"spark\.\S+", name.strip()):
            raise UsageError(
                f"setting spark_conf: {given!r} is not spark.NAME=VALUE",
                code="PT002",
                hint="Write spark.driver.memory=4g; spark.executor.memory=2g, or give --spark-conf once for each.",
            )
        found[name.strip()] = value.strip()
    return found


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One line of `pgtrickle config`; `source` is `default`, `database`, `environment` or `flag`."""

    name: str
    type: str
    default: Value
    value: Value
    source: str
    unit: str | None
    choices: tuple[str, ...] | None
    help: str


def without_token(master: str) -> str:
    """A Spark master as it may be shown: what follows the address of a Connect server may be a secret."""
    return master.partition("/;")[0] if master.startswith("sc://") else master


def describe(
    conn: psycopg.Connection[Any] | None = None, flags: Mapping[str, Value | None] | None = None
) -> tuple[SettingRow, ...]:
    """Every setting with its value in effect and where that came from."""
    given = _given(conn, flags or {})
    rows = []
    for declared in fields(Settings):
        default: Value = getattr(Settings(), declared.name)
        value, source = given.get(declared.name, (default, "default"))
        if declared.name == "spark_master":
            value = without_token(str(value))
        meta = declared.metadata
        rows.append(
            SettingRow(
                declared.name,
                str(declared.type),
                default,
                value,
                source,
                meta["unit"],
                meta["choices"],
                meta["help"],
            )
        )
    return tuple(rows)


def _given(conn: psycopg.Connection[Any] | None, flags: Mapping[str, Value | None]) -> dict[str, tuple[Value, str]]:
    """The values that are set anywhere, parsed, with their source; later sources replace earlier ones."""
    names = [declared.name for declared in fields(Settings)]
    unknown = sorted(set(flags) - set(names))
    if unknown:
        why = f": {REMOVED[unknown[0]]}" if unknown[0] in REMOVED else ""
        raise UsageError(f"there is no setting {unknown[0]!r}{why}", hint="`pgtrickle config` lists all settings.")
    _tell_of_removed(conn)
    raw: dict[str, tuple[Value, str]] = {}
    if conn is not None:
        there = [declared.name for declared in fields(Settings) if declared.metadata["in_database"]]
        found = conn.execute(
            "SELECT name, current_setting('pg_trickle.' || name, true) FROM unnest(%s::text[]) AS name", (there,)
        )
        raw.update({name: (value, "database") for name, value in found if value})
    for name in names:
        if value := os.environ.get(f"PGTRICKLE_{name.upper()}"):
            raw[name] = (value, "environment")
    raw.update({name: (value, "flag") for name, value in flags.items() if value is not None})
    declared_by_name = {declared.name: declared for declared in fields(Settings)}
    return {
        name: (_parse(name, str(declared_by_name[name].type), value, declared_by_name[name].metadata, source), source)
        for name, (value, source) in raw.items()
    }


def _tell_of_removed(conn: psycopg.Connection[Any] | None) -> None:
    """Warns of what is set and has no effect: a setting that nobody reads would be a lie."""
    given = {name for name in REMOVED if os.environ.get(f"PGTRICKLE_{name.upper()}")}
    if conn is not None:
        found = conn.execute(
            "SELECT name FROM unnest(%s::text[]) AS name WHERE current_setting('pg_trickle.' || name, true) <> ''",
            (list(REMOVED),),
        )
        given |= {str(name) for (name,) in found}
    for name in sorted(given):
        warnings.warn(f"the setting {name} has no effect any more: {REMOVED[name]}", IgnoredSetting, stacklevel=4)


def _parse(name: str, kind: str, raw: Value, meta: Mapping[str, Any], source: str) -> Value:
    """`raw` as the setting's type, within its bounds; `source` says in the error where to correct it."""
    text = str(raw).strip()

    def wrong(expected: str) -> UsageError:
        where = {"database": f"pg_trickle.{name}", "environment": f"PGTRICKLE_{name.upper()}", "flag": f"--{name}"}[
            source
        ]
        return UsageError(f"setting {name}: {text!r} is not {expected}", code="PT002", hint=f"Correct {where}.")

    if kind == "bool":
        if text.lower() not in _TRUE | _FALSE:
            raise wrong("true or false")
        return text.lower() in _TRUE
    if kind == "str":
        choices: tuple[str, ...] | None = meta["choices"]
        if choices is None:
            return text
        if text.lower() not in choices:
            raise wrong(f"one of {', '.join(choices)}")
        return text.lower()
    number = _number(text, kind, meta["unit"])
    if number is None:
        raise wrong(
            "a number" if kind == "float" else "a size such as 512 MB" if meta["unit"] == "bytes" else "a whole number"
        )
    least, most = meta["least"], meta["most"]
    if (least is not None and number < least) or (most is not None and number > most):
        raise wrong(f"between {least} and {most}" if most is not None else f"at least {least}")
    return number


def _number(text: str, kind: str, unit: str | None) -> int | float | None:
    """The number `text` spells, or None; sizes in bytes may carry kB, MB, GB or TB as in postgresql.conf."""
    if unit == "bytes":
        size = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
        return int(size[1]) * _BYTES[size[2]] if size and size[2] in _BYTES else None
    if kind == "int":
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else None
    return float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text.lower()) else None
