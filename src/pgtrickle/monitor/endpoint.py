"""The HTTP side of monitoring: /metrics, /healthz and /readyz. Started by `pgtrickle run --metrics-port`.

/healthz answers while the process lives, /readyz says 503 while no database that it serves can be asked; one that is
down does not harm the others. A scrape always has an answer: of a database that is down it says just that
(`pgtrickle_up 0`).
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from socketserver import ThreadingMixIn
from typing import Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

from pgtrickle.errors import EnvironmentProblem
from pgtrickle.monitor.databases import DatabaseMetrics
from pgtrickle.scheduler.events import say

LOOPBACK: Final = "127.0.0.1"
_TEXT: Final = [("Content-Type", "text/plain; charset=utf-8")]


class _Server(ThreadingMixIn, WSGIServer):
    """A thread a request, none of which keeps the process alive."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away in the middle of an answer is its own affair, and not worth a traceback."""
        say("metrics_not_answered", logging.WARNING, client=client_address, error=sys.exc_info()[1])


class _Handler(WSGIRequestHandler):
    """Says nothing of requests: the service's log has one JSON object a line."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def serve(dsns: Sequence[str], port: int, host: str = LOOPBACK) -> None:
    """Answer in a thread that ends with the process."""
    try:
        server = make_server(host, port, _application(DatabaseMetrics(dsns)), _Server, _Handler)
    except OSError as error:
        raise EnvironmentProblem(
            f"{host}:{port} cannot be used for metrics: {error.strerror}",
            code="PT521",
            hint="Choose another port, or an address of this machine.",
        ) from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()


def _application(metrics: DatabaseMetrics) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    registry = CollectorRegistry()
    registry.register(metrics)
    exposition = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            found: Iterable[bytes] = exposition(environ, start_response)
            return found
        status, body = _status(path, metrics)
        start_response(status, _TEXT)
        return [body.encode()]

    return answer


def _status(path: str, metrics: DatabaseMetrics) -> tuple[str, str]:
    if path == "/healthz":
        return "200 OK", "alive\n"
    if path == "/readyz":
        problems = metrics.problems()
        told = "".join(f"{name}: {problem}\n" for name, problem in problems.items())
        return ("503 Service Unavailable", told) if metrics.are_all(problems) else ("200 OK", f"ready\n{told}")
    return "404 Not Found", "there are /metrics, /healthz and /readyz\n"
