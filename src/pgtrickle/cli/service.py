"""`pgtrickle run`: the service in this process, until SIGTERM or SIGINT; SIGHUP has it read its settings again.

A service computes what its login owns. For several owners it is given several logins: one service each, in threads of
this process, with one Spark.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from pgtrickle.cli.choices import OptionalLogLevel
from pgtrickle.cli.outcome import reported, told
from pgtrickle.cli.target import EXPOSED, target

if TYPE_CHECKING:
    from pgtrickle.api import Trickle
    from pgtrickle.config import Settings
    from pgtrickle.scheduler.service import Controls, Service


def run(
    context: typer.Context,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, metavar="PORT", help="Serve /metrics, /healthz and /readyz on this port."),
    ] = None,
    metrics_host: Annotated[str, typer.Option(metavar="HOST", help="Address to serve them on.")] = "127.0.0.1",
    web: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve the dashboard there. A port alone is one of this machine only."),
    ] = None,
    web_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The token that the dashboard asks for; also PGTRICKLE_WEB_TOKEN. Needed beyond this machine, and to"
            " refresh, suspend and resume.",
        ),
    ] = None,
    web_name: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A name by which browsers reach the dashboard, if any.")
    ] = None,
    log_level: OptionalLogLevel = None,
    dsn_file: Annotated[
        Path | None, typer.Option("--dsn-file", metavar="FILE", help="A file with a connection string a line.")
    ] = None,
) -> None:
    """Run the service. It refreshes all stream tables that the login owns, by schedule.

    It logs to stderr, one JSON object per line. For several databases or owners, give --dsn once for each, or a file.
    """
    from pgtrickle.config import Settings
    from pgtrickle.monitor import databases
    from pgtrickle.scheduler import events

    flags: dict[str, str | None] = {"log_level": log_level, "spark_conf": target(context).spark_conf}
    with reported():
        events.to_stderr(Settings.load(flags=flags).log_level)
    if target(context).exposed:
        events.say("password_exposed", logging.WARNING, warning=EXPOSED)
    with told(lambda error, hint: events.say("service_failed", logging.ERROR, error=error, code=error.code, hint=hint)):
        access = None
        if web is not None:
            from pgtrickle.web.access import Access, parse_address, read_token

            access = Access(parse_address(web), read_token(web_token_file), tuple(web_name or ()))
        served = target(context).and_of(dsn_file).dsns()
        names = databases.names_of(served)
        if access is not None:
            from pgtrickle.web import server

            server.serve(served, access)
        if metrics_port is not None:
            from pgtrickle.monitor import endpoint

            endpoint.serve(served, metrics_port, metrics_host)
        _until_signalled([_service(dsn, flags, name) for dsn, name in zip(served, names, strict=True)])


def _service(dsn: str, flags: Mapping[str, str | None], name: str | None) -> tuple[Service, Controls]:
    from pgtrickle.scheduler.refresh_loop import RefreshLoop
    from pgtrickle.scheduler.request_loop import RequestLoop
    from pgtrickle.scheduler.service import Controls, Service

    controls = Controls()
    service = Service(
        dsn,
        refreshes=lambda fence: RefreshLoop(dsn, fence),
        requests=lambda fence: RequestLoop(dsn, lambda settings: _connect(dsn, settings), fence),
        controls=controls,
        flags=flags,
        name=name,
    )
    return service, controls


def _connect(dsn: str, settings: Settings) -> Trickle:
    """The Python interface, with the Spark that the service has."""
    from pgtrickle.api import connect  # here: the other verbs start without
    from pgtrickle.config import spark_settings

    return connect(dsn, master=settings.spark_master, spark_conf=spark_settings(settings.spark_conf))


def _until_signalled(services: Sequence[tuple[Service, Controls]]) -> None:
    """Run each service in a thread, so that this one, which gets the signals, waits for nothing that a handler touches:
    a handler that interrupts whoever waits for an event must not set that event. One that fails ends by itself; what
    it failed with is raised when all have ended."""
    from pgtrickle.scheduler import events

    arrived: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, note)
    failures: list[BaseException] = []

    def serve(service: Service) -> None:
        try:
            service.run()
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)
            if len(services) > 1:
                events.say("service_ended", logging.ERROR, error=error, hint=getattr(error, "hint", None))

    threads = [threading.Thread(target=serve, args=(each,), name="service", daemon=True) for each, _ in services]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        next(thread for thread in threads if thread.is_alive()).join(0.1)
        while arrived:
            again = arrived.pop(0) == signal.SIGHUP
            for _, controls in services:
                (controls.reload if again else controls.stop).set()
    if failures:
        raise failures[0]
