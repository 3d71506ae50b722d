"""`pgtrickle cdc`, `health` and `doctor`: how sources are captured, whether something is wrong, and is all ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from pgtrickle.catalog.health import SlotHealth
from pgtrickle.cli.outcome import NO
from pgtrickle.cli.output import print_json, print_table
from pgtrickle.cli.target import AsJson, target
from pgtrickle.monitor import readiness


def cdc(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Number of mode changes to show.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show how the changes of each source are captured. Also shows the replication slot and the last mode changes."""
    with target(context).trickle("asking about capture") as trickle:
        sources, slot, history = trickle.cdc_status(), trickle.slot_health(), trickle.cdc_history(limit)
        advice, immediate = trickle.capture_advice(), trickle.immediate_sources()
    if as_json:
        print_json(
            {
                "sources": [asdict(source) for source in sources],
                "immediate": [asdict(source) for source in immediate],
                "slot": None if slot is None else asdict(slot),
                "history": [asdict(change) for change in history],
            }
        )
        return
    if not sources and not immediate:
        typer.echo("no source is captured; `pgtrickle create` makes a stream table")
    if sources:
        print_table(
            ["source", "mode", "asked for", "since", "lag", "decoded to", "decoder", "eligible", "reason"],
            [
                (
                    source.source_table,
                    source.cdc_mode,
                    source.requested,
                    source.mode_since,
                    _size(source.slot_lag_bytes),
                    source.confirmed_lsn if source.slot_name else None,
                    source.decoder_status if source.slot_name else None,
                    source.eligible,
                    source.reason,
                )
                for source in sources
            ],
            numbers=["lag"],
        )
    for each in immediate:
        typer.echo(f"IMMEDIATE: writers of {each.source_table} keep {', '.join(each.stream_tables)}")
    _advise(advice)
    typer.echo(f"\nslot: {_slot(slot)}")
    if history:
        typer.echo("\nlast changes of mode:")
        print_table(
            ["at", "source", "from", "to", "reason"],
            [(each.at, each.source_table, each.old_mode, each.new_mode, each.reason) for each in history],
        )


def health(context: typer.Context, as_json: AsJson = False) -> None:
    """Check the health of tables, service and capture. Exit code 1 if there is an error; warnings do not count."""
    with target(context).trickle("checking") as trickle:
        checks, advice = trickle.health(), trickle.capture_advice()
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        print_table(
            ["check", "severity", "detail"],
            [(check.check_name, check.severity, check.detail) for check in checks],
            folded="detail",
        )
        cures = dict.fromkeys((check.check_name, check.hint) for check in checks if check.hint is not None)
        if cures:
            typer.echo("\nwhat to do:")
        for name, hint in cures:
            typer.echo(f"  {name}: {hint}")
        _advise(advice)
    if any(check.severity == "ERROR" for check in checks):
        raise typer.Exit(NO)


def doctor(context: typer.Context, as_json: AsJson = False) -> None:
    """Check whether the server is ready. Prints the statements that put right what is not. Exit code 1 on an error."""
    with target(context).connection("examining the server") as connection:
        findings = readiness.examine(connection)
    if as_json:
        print_json([asdict(each) for each in findings])
    else:
        print_table(
            ["check", "severity", "detail"],
            [(each.check_name, each.severity, each.detail) for each in findings],
            folded="detail",
        )
        mends = list(dict.fromkeys(each.mend for each in findings if each.mend is not None))
        if mends:
            typer.echo("\nto put it right:")
        for mend in mends:  # in full, so that it can be copied
            typer.echo(f"  {mend}")
    if any(each.severity == "ERROR" for each in findings):
        raise typer.Exit(NO)


def _advise(lines: Sequence[str]) -> None:
    """In full, so that what is to be run can be copied."""
    if lines:
        typer.echo()
    for line in lines:
        typer.echo(f"note: {line}")


def _slot(slot: SlotHealth | None) -> str:
    if slot is None:
        return "none"
    parts = [
        slot.slot_name,
        "being read" if slot.active else "not read by anyone",
        f"{slot.sources} sources",
        f"lag {_size(slot.lag_bytes)}",
        f"holds back {_size(slot.retained_wal_bytes)} of WAL",
        f"confirmed {slot.confirmed_lsn}",
        f"decoder {slot.decoder_status}",
    ]
    problem = slot.decoder_error or slot.invalidation_reason
    return ", ".join(parts) + (f": {slot.alert}" if slot.alert else "") + (f" ({problem})" if problem else "")


def _size(size: int | None) -> str | None:
    """`512 B`, `3.4 MB`."""
    if size is None:
        return None
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TB"
