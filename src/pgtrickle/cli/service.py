"""`pgtrickle run`: the service in this process, until SIGTERM or SIGINT; SIGHUP has it read its settings again."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from pgtrickle.cli.outcome import reported
from pgtrickle.cli.target import target

if TYPE_CHECKING:
    from pgtrickle.scheduler.service import Controls, Service


def run(
    context: typer.Context,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Serve /metrics, /healthz and /readyz at this port.")
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="The address for that; others can reach it only if told so.")
    ] = "127.0.0.1",
) -> None:
    """Keep every stream table of the database fresh: the service. Its log is on stderr, one JSON object a line."""
    from pgtrickle.api import connect  # here: the other verbs start without
    from pgtrickle.scheduler import events
    from pgtrickle.scheduler.desk import Desk
    from pgtrickle.scheduler.refreshes import Refreshes
    from pgtrickle.scheduler.service import Controls, Service

    events.to_stderr()
    with reported():
        dsn = target(context).dsn()
        if metrics_port is not None:
            from pgtrickle.monitor import endpoint

            endpoint.serve(dsn, metrics_port, metrics_host)
        controls = Controls()
        service = Service(
            dsn,
            refreshes=lambda fence: Refreshes(dsn, fence),
            requests=lambda fence: Desk(dsn, lambda settings: connect(dsn, master=settings.spark_master), fence),
            controls=controls,
        )
        _until_signalled(service, controls)


def _until_signalled(service: Service, controls: Controls) -> None:
    """Run the service in a thread, so that this one, which gets the signals, waits for nothing that a handler touches:
    a handler that interrupts whoever waits for an event must not set that event."""
    arrived: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, note)
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            service.run()
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    thread = threading.Thread(target=serve, name="service", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
        while arrived:
            (controls.reload if arrived.pop(0) == signal.SIGHUP else controls.stop).set()
    if failures:
        raise failures[0]
