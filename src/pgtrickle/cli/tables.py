"""`pgtrickle create|alter|drop|refresh|status|history|explain|verify`: stream tables. `cli.main` adds these verbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pgtrickle.cli.choices import (
    Consistency,
    Indexes,
    Mode,
    OptionalCdcMode,
    OptionalMode,
    OptionalStatus,
    Policy,
    PrimaryKey,
    Protect,
    RefreshModeChoice,
)
from pgtrickle.cli.outcome import NO, reported
from pgtrickle.cli.output import age, duration, print_json, print_table, watched
from pgtrickle.cli.target import AsJson, query_text, target
from pgtrickle.errors import UsageError

if TYPE_CHECKING:
    from pgtrickle.catalog.reader import HistoryRow, StreamTable
    from pgtrickle.refresh.result import RefreshResult
    from pgtrickle.refresh.verification.verify import Verification

Name = Annotated[str, typer.Argument(help="Name of the stream table, with or without its schema.")]
Query = Annotated[
    str, typer.Option("--query", metavar="SQL", help="The query, or @FILE to read it from a file (@- for stdin).")
]
OptionalQuery = Annotated[
    str | None,
    typer.Option("--query", metavar="SQL", help="The query, or @FILE to read it from a file (@- for stdin)."),
]
OptionalName = Annotated[str | None, typer.Argument(help="Name of the stream table, with or without its schema.")]
EveryTable = Annotated[bool, typer.Option("--all", help="All stream tables, sources before their readers.")]
Here = Annotated[bool, typer.Option("--here", help="Do the work in this process, even if a service could do it.")]
NOT_FILLED = "not filled yet: the service fills it when it is first due, `pgtrickle refresh --full` does now"
Json: TypeAlias = dict[str, object]


def create(
    context: typer.Context,
    name: Name,
    query: Query,
    schedule: Annotated[
        str, typer.Option(metavar="TIME", help="How often: 5s, 1h30m, a cron expression, or calculated.")
    ] = "1m",
    refresh_mode: Mode = RefreshModeChoice.AUTO,
    cdc_mode: OptionalCdcMode = None,
    initialize: Annotated[
        bool,
        typer.Option("--initialize/--no-initialize", help="Fill it now, or let the service do it when due."),
    ] = True,
    diamond_consistency: Consistency = None,
    diamond_schedule_policy: Policy = None,
    primary_key: PrimaryKey = None,
    protect: Protect = None,
    indexes: Indexes = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Do nothing if the stream table exists.")
    ] = False,
    or_replace: Annotated[bool, typer.Option("--or-replace", help="Alter the stream table if it exists.")] = False,
    auto_replica_identity: Annotated[
        bool,
        typer.Option("--auto-replica-identity", help="Set REPLICA IDENTITY FULL on sources where the WAL needs it."),
    ] = False,
    here: Here = False,
    as_json: AsJson = False,
) -> None:
    """Create a stream table and fill it. If that fails, nothing is left behind.

    A running service does the work if it serves this login. Otherwise this process starts Spark.
    """
    with reported():
        text = query_text(query)
        if if_not_exists and or_replace:
            raise UsageError(
                "--if-not-exists and --or-replace exclude each other", code="PT033", hint="give one of them"
            )
    with target(context).worker(f"creating {name}", here=here, install_catalog=True) as trickle:
        existed = trickle.exists(name)
        if not (existed and if_not_exists):
            create = trickle.create_or_replace_stream_table if or_replace else trickle.create_stream_table
            result = create(
                name,
                text,
                schedule=schedule,
                refresh_mode=refresh_mode,
                cdc_mode=cdc_mode,
                initialize=initialize,
                diamond_consistency=diamond_consistency,
                diamond_schedule_policy=diamond_schedule_policy,
                primary_key=primary_key,
                protect=protect,
                indexes=indexes,
                auto_replica_identity=auto_replica_identity,
            )
        else:
            result = None
        stream = trickle.status(name)[0]
        advice = trickle.capture_advice(name)
    if as_json:
        refreshed = None if result is None else _refresh(stream, result)
        print_json({**_status(stream), "refresh": refreshed, "notes": list(advice)})
        return
    if existed:
        typer.echo(f"{stream} exists already" if if_not_exists else f"replaced {stream}")
        return
    typer.echo(f"created {stream}, maintained by {stream.effective_mode} refreshes")
    if stream.mode_reason and stream.refresh_mode != stream.effective_mode:
        typer.echo(f"because {stream.mode_reason}")
    typer.echo(NOT_FILLED if result is None else _sentence(result))
    for line in advice:
        typer.echo(f"note: {line}")


def alter(
    context: typer.Context,
    name: Name,
    query: OptionalQuery = None,
    schedule: Annotated[
        str | None, typer.Option(metavar="TIME", help="How often: 5s, 1h30m, a cron expression, or calculated.")
    ] = None,
    refresh_mode: OptionalMode = None,
    status: OptionalStatus = None,
    cdc_mode: OptionalCdcMode = None,
    diamond_consistency: Consistency = None,
    diamond_schedule_policy: Policy = None,
    primary_key: PrimaryKey = None,
    protect: Protect = None,
    indexes: Indexes = None,
    here: Here = False,
    as_json: AsJson = False,
) -> None:
    """Change a stream table. A new query takes effect at once.

    A running service computes a new query if it serves this login. Otherwise this process starts Spark.
    """
    given = {
        "schedule": schedule,
        "refresh_mode": refresh_mode,
        "status": status,
        "cdc_mode": cdc_mode,
        "diamond_consistency": diamond_consistency,
        "diamond_schedule_policy": diamond_schedule_policy,
        "primary_key": primary_key,
        "protect": protect,
        "indexes": indexes,
    }
    with reported():
        changes: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
        if query is not None:
            changes["query"] = query_text(query)
        if not changes:
            raise UsageError(
                "there is nothing to alter",
                code="PT031",
                hint="give --query, --schedule, --refresh-mode, --status, --cdc-mode, --primary-key, --index, --protect"
                " or one of --diamond-…",
            )
    with target(context).worker(f"altering {name}", here=here) as trickle:
        trickle.alter_stream_table(name, **changes)
        stream = trickle.status(name)[0]
    if as_json:
        print_json(_status(stream))
    else:
        typer.echo(f"altered {stream}")


def drop(
    context: typer.Context,
    name: Name,
    cascade: Annotated[bool, typer.Option("--cascade", help="Also drop what depends on it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drop a stream table and everything that belongs to it."""
    with target(context).trickle(f"dropping {name}") as trickle:
        dropped = trickle.drop_stream_table(name, cascade=cascade)
    if as_json:
        print_json({"dropped": dropped})
        return
    for each in dropped:
        typer.echo(f"dropped {each}")


def refresh(
    context: typer.Context,
    name: OptionalName = None,
    full: Annotated[bool, typer.Option("--full", help="Recompute the whole table.")] = False,
    every: EveryTable = False,
    here: Here = False,
    as_json: AsJson = False,
) -> None:
    """Refresh a stream table now, or all of them. Exit code 1 if a refresh was skipped.

    A running service does the work if it serves the owner of the table. Otherwise this process starts Spark.
    """
    with reported():
        _require_one(name, every=every)
    with target(context).worker(f"refreshing {name or 'all'}", here=here) as trickle:
        names = [name] if name is not None else [str(stream) for stream in trickle.in_order()]
        done = [(trickle.refresh_stream_table(each, full=full), trickle.status(each)[0]) for each in names]
    if as_json:
        told = [_refresh(stream, result) for result, stream in done]
        print_json(told if every else told[0])
    else:
        for result, stream in done:
            typer.echo(f"{stream}: {_sentence(result)}" if every else _sentence(result))
    if any(result.action == "SKIP" for result, _ in done):
        raise typer.Exit(NO)


def pause(
    context: typer.Context, name: OptionalName = None, every: EveryTable = False, as_json: AsJson = False
) -> None:
    """Suspend a stream table, or all of them. They are not refreshed until they are resumed."""
    _set_status(context, name, "SUSPENDED", every=every, as_json=as_json)


def resume(
    context: typer.Context, name: OptionalName = None, every: EveryTable = False, as_json: AsJson = False
) -> None:
    """Resume a stream table, or all of them. Their error counts start at zero again."""
    _set_status(context, name, "ACTIVE", every=every, as_json=as_json)


def _set_status(context: typer.Context, name: str | None, status: str, *, every: bool, as_json: bool) -> None:
    with reported():
        _require_one(name, every=every)
    with target(context).trickle("altering") as trickle:
        names = [name] if name is not None else [str(stream) for stream in trickle.status()]
        for each in names:
            trickle.alter_stream_table(each, status=status)
        streams = [trickle.status(each)[0] for each in names]
    if as_json:
        print_json([_status(stream) for stream in streams])
        return
    for stream in streams:
        typer.echo(f"{stream} is {stream.status}")


def _require_one(name: str | None, *, every: bool) -> None:
    """Either a stream table is named, or all are meant."""
    if (name is None) != every:
        raise UsageError("a stream table or --all is needed, and not both", code="PT032", hint="give one of them")


def status(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Name of one stream table. Default: all.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.1, metavar="SECONDS", help="Time between two looks of --watch.")
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Show the stream tables: mode, schedule, staleness, last error."""
    with target(context).trickle("reading the catalog") as trickle:
        if watch:
            watched(lambda: _show_status(trickle.status(name), as_json=as_json), every)
            return
        streams = trickle.status(name)
    _show_status(streams, as_json=as_json)


def _show_status(streams: Sequence[StreamTable], *, as_json: bool) -> None:
    if as_json:
        print_json([_status(stream) for stream in streams])
        return
    if not streams:
        typer.echo("there are no stream tables; `pgtrickle create` makes one")
        return
    print_table(
        ["table", "status", "mode", "schedule", "staleness", "last refresh", "next run", "error"],
        [
            (
                stream,
                stream.status,
                _mode(stream),
                "by writers" if _is_kept_by_writers(stream) else stream.schedule or "calculated",
                duration(_staleness(stream)),
                stream.last_refresh_at,
                stream.next_run,
                stream.last_error,
            )
            for stream in streams
        ],
        numbers=["staleness"],
    )


def history(
    context: typer.Context,
    name: Name,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Number of refreshes to show.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the last refreshes of a stream table. Newest first, each with its reason, the time it took, and the CPU time
    that PostgreSQL spent on it, where that is known."""
    with target(context).trickle("reading the history") as trickle:
        rows = trickle.history(name, limit)
    if as_json:
        print_json([_history(row) for row in rows])
        return
    print_table(
        ["started", "by", "status", "action", "+rows", "-rows", "ms", "server ms", "reason"],
        [
            (
                row.started_at,
                row.initiated_by,
                row.status,
                row.action,
                row.rows_inserted,
                row.rows_deleted,
                None if row.duration_ms is None else round(row.duration_ms),
                None if row.server_cpu_ms is None else round(row.server_cpu_ms),
                f"{row.error_code}: {row.error}" if row.error else row.reason,
            )
            for row in rows
        ],
        numbers=["+rows", "-rows", "ms", "server ms"],
    )
    for hint in dict.fromkeys(row.hint for row in rows if row.hint):
        typer.echo(f"hint: {hint}")


def explain(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Name of the stream table.")] = None,
    query: OptionalQuery = None,
    analyze: Annotated[
        bool, typer.Option("--analyze", help="Run it for the changes now waiting, undo that, and show rows and times.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Explain how a stream table, or a query, is maintained."""
    with reported():
        text = None if query is None else query_text(query)
    with target(context).trickle("explaining") as trickle:
        said = trickle.explain(name, query=text, analyze=analyze)
        table = None if name is None else str(trickle.status(name)[0])
    if as_json:
        print_json({"table": table, "query": text, "text": said})
    else:
        typer.echo(said, nl=False)


def verify(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="Names of stream tables. Default: all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare stream tables with their queries. Exit code 1 if any differs. PostgreSQL evaluates the queries."""
    with target(context).trickle("verifying") as trickle:
        found = trickle.verify(*(names or ()))
    if as_json:
        print_json([{**asdict(each), "equal": each.equal} for each in found])
    elif not found:
        typer.echo("there are no stream tables; `pgtrickle create` makes one")
    else:
        print_table(
            ["table", "verdict", "missing", "extra", "looks", "compared with its query at"],
            [
                (each.table, _verdict(each), each.missing, each.extra, each.different_looks, each.compared_with)
                for each in found
            ],
            numbers=["missing", "extra", "looks"],
        )
        for each in found:
            if each.error is not None:
                typer.echo(f"error: {each.table}: {each.error}", err=True)
    if not all(each.equal for each in found):
        raise typer.Exit(NO)


def _verdict(found: Verification) -> str:
    if found.error is not None:
        return "ERROR"
    if found.missing or found.extra:
        return "DIFFERENT"
    return "LOOKS DIFFERENT" if found.different_looks else "equal"


def _mode(stream: StreamTable) -> str:
    """The mode asked for, and the one in effect where it is not the same."""
    if stream.refresh_mode == stream.effective_mode:
        return stream.refresh_mode
    return f"{stream.refresh_mode} ({stream.effective_mode})"


def _sentence(result: RefreshResult) -> str:
    rows = f"+{result.rows_inserted} -{result.rows_deleted} rows"
    return f"{result.action}: {rows} in {result.duration_ms:.0f} ms ({result.reason})"


def _is_kept_by_writers(stream: StreamTable) -> bool:
    return stream.effective_mode == "IMMEDIATE" and stream.is_populated and not stream.needs_reinit


def _staleness(stream: StreamTable) -> float | None:
    return 0.0 if _is_kept_by_writers(stream) else age(stream.data_timestamp)


def _status(stream: StreamTable) -> Json:
    return {
        "table": str(stream),
        "owner": stream.owner,
        "status": stream.status,
        "refresh_mode": stream.refresh_mode,
        "effective_mode": stream.effective_mode,
        "mode_reason": stream.mode_reason,
        "schedule": stream.schedule,
        "cdc_mode": stream.requested_cdc_mode,
        "is_populated": stream.is_populated,
        "needs_reinit": stream.needs_reinit,
        "reinit_reason": stream.reinit_reason,
        "data_timestamp": stream.data_timestamp,
        "staleness_seconds": _staleness(stream),
        "last_refresh_at": stream.last_refresh_at,
        "next_run": stream.next_run,
        "consecutive_errors": stream.consecutive_errors,
        "last_error": stream.last_error,
        "query": stream.defining_query,
    }


def _refresh(stream: StreamTable, result: RefreshResult) -> Json:
    return {
        "table": str(stream),
        "action": str(result.action),
        "reason": result.reason,
        "rows_inserted": result.rows_inserted,
        "rows_deleted": result.rows_deleted,
        "changes_read": result.changes_read,
        "duration_ms": result.duration_ms,
        "phases": dict(result.phases),
    }


def _history(row: HistoryRow) -> Mapping[str, object]:
    return {name: value for name, value in asdict(row).items() if name != "pgt_id"}
