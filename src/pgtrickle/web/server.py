"""The web server of the dashboard: Python's own, a few routes. Started by `pgtrickle run --web`.

It runs in threads of the service that never hold up the others: so many requests at once and no more, each with a limit
in time. `access.py` says who may, `watch.py` reads; here is only how they are asked by HTTP.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from pgtrickle.errors import EnvironmentProblem, Error, ServerError
from pgtrickle.record import Record
from pgtrickle.scheduler.events import say, trouble
from pgtrickle.web.access import HEADERS, Access, Address, Refusal
from pgtrickle.web.watch import ACTIONS, Json, Watch, told

MOST_AT_ONCE: Final = 32
SLOWEST_CLIENT_S: Final = 10.0
MOST_BYTES: Final = 4096
_STATIC: Final = {
    "/": ("dashboard.html", "text/html; charset=utf-8"),
    "/dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
    "/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def serve(dsns: Sequence[str], access: Access) -> None:
    """Answer in a thread that ends with the process."""
    try:
        server = _Server(access.address, _handler(access, [Watch(dsn) for dsn in dsns]))
    except OSError as error:
        raise EnvironmentProblem(
            f"{access.address} cannot be used for the dashboard: {error.strerror}",
            code="PT522",
            hint="Choose another port, or an address of this machine.",
        ) from error
    threading.Thread(target=server.serve_forever, name="web", daemon=True).start()
    say("web_started", address=f"http://{access.address}/", can_steer=access.token is not None)


class _Server(ThreadingHTTPServer):
    """A thread a request, none of which keeps the process alive, and not more of them than it can have."""

    daemon_threads = True

    def __init__(self, address: Address, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__((address.host, address.port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """One too many is turned away at once."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away in the middle of an answer is its own affair, and not worth a traceback."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            say("web_not_answered", logging.DEBUG, client=client_address, error=error)
        elif error is not None:
            trouble("web_broken", error, client=client_address)


class _Wrong(Exception):
    """A request that is not answered as asked."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def _handler(access: Access, watches: Sequence[Watch]) -> type[BaseHTTPRequestHandler]:
    """The handler of this server's requests."""

    class Handler(BaseHTTPRequestHandler):
        """One request, then the connection is closed."""

        timeout = SLOWEST_CLIENT_S
        server_version = "pgtrickle"
        sys_version = ""

        def do_GET(self) -> None:
            self._answer(self._get)

        def do_POST(self) -> None:
            self._answer(self._post)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the service's log has one JSON object a line, and no line for who only looks."""

        def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
            """What the base class refuses, in our form."""
            self._send(code, "application/json", _json({"problem": {"message": message or "not a request"}}))

        def _answer(self, route: Callable[[str, dict[str, str]], tuple[str, bytes]]) -> None:
            try:
                self._require(access.refused(self.headers))
                parts = urlsplit(self.path)
                kind, body = route(parts.path, {name: values[-1] for name, values in parse_qs(parts.query).items()})
                self._send(200, kind, body)
            except _Wrong as wrong:
                problem = {"code": None, "message": wrong.refusal.message, "hint": None}
                self._send(wrong.refusal.status, "application/json", _json({"problem": problem}))
            except Error as error:
                status = 503 if isinstance(error, ServerError) and error.code != "PT402" else 409
                self._send(status, "application/json", _json({"problem": told(error)}))

        def _get(self, path: str, given: dict[str, str]) -> tuple[str, bytes]:
            if path in _STATIC:
                name, kind = _STATIC[path]
                return kind, (files("pgtrickle.web") / "static" / name).read_bytes()
            if not path.startswith("/api/"):
                raise _Wrong(Refusal(404, "there is no such page"))
            self._require(access.refused_data(self.headers))
            watch = watches[_number(given.get("of", "0"), len(watches))]
            match path.removeprefix("/api/"):
                case "overview":
                    shown = {"can_steer": access.token is not None, "logins": [each.title for each in watches]}
                    return "application/json", _json(shown | watch.overview())
                case "table":
                    return "application/json", _json(watch.table(_number(given.get("id"))))
                case "explain":
                    return "application/json", _json(watch.explain(_number(given.get("id"))))
                case "request":
                    return "application/json", _json(watch.request(_number(given.get("id"))))
            raise _Wrong(Refusal(404, "there is no such thing"))

        def _post(self, path: str, given: dict[str, str]) -> tuple[str, bytes]:
            what = path.removeprefix("/api/")
            if what not in ACTIONS:
                raise _Wrong(Refusal(404, f"there are {', '.join(ACTIONS)}"))
            self._require(access.refused_change(self.headers))
            asked = self._body()
            watch = watches[_number(given.get("of", "0"), len(watches))]
            done = watch.act(what, _number(asked.get("id")))
            say("web_asked", what=what, client=self.client_address[0], **done)
            return "application/json", _json(done)

        def _body(self) -> Json:
            length = _number(self.headers.get("Content-Length"), MOST_BYTES)
            try:
                found = json.loads(self.rfile.read(length))
            except ValueError:
                found = None
            if not isinstance(found, dict):
                raise _Wrong(Refusal(400, "a JSON object is needed"))
            return found

        def _require(self, refusal: Refusal | None) -> None:
            if refusal is not None:
                if refusal.status == 401:  # someone tries, or has forgotten it
                    say("web_refused", logging.WARNING, client=self.client_address[0], reason=refusal.message)
                raise _Wrong(refusal)

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            for name, value in HEADERS:
                self.send_header(name, value)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _number(given: object, below: int = 2**62) -> int:
    """A whole number that was given, in its bounds."""
    text = str(given)
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) >= below:
        raise _Wrong(Refusal(400, "a number is missing, or too large"))
    return int(text)


def _json(value: object) -> bytes:
    return json.dumps(value, default=_plain, ensure_ascii=False).encode("utf-8", "replace")


def _plain(value: object) -> object:
    if isinstance(value, Record):
        return value.to_dict()
    return value.isoformat() if isinstance(value, datetime) else str(value)
