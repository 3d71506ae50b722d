"""Who may look at the dashboard, and who may steer. Pure, but for reading the token; `server.py` asks at each request.

Three walls. An address beyond this machine needs a token, which comes in a header and is never part of an address. The
Host header must name us: a page elsewhere whose name is made to lead to our address (DNS rebinding) names itself there.
What changes something needs the token, and must not come from a page of another origin.
"""

from __future__ import annotations

import hmac
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Protocol

from pgtrickle.errors import UsageError

TOKEN: Final = "PGTRICKLE_WEB_TOKEN"  # noqa: S105 - the name of the variable
SHORTEST: Final = 16
LOOPBACK: Final = "127.0.0.1"
_MAKE_ONE: Final = "python3 -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"

HEADERS: Final = (
    (
        "Content-Security-Policy",
        (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
            " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
"""Of every answer: nothing from elsewhere, nothing inline, in no frame, kept nowhere."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it. A name may lead anywhere, but for the one that every machine has."""
        return self.host == "localhost" or (_is_ip(self.host) and ip_address(self.host).is_loopback)


def parse_address(text: str) -> Address:
    """`HOST:PORT`, `[IPv6]:PORT`, or a port alone, which is one of this machine."""
    found = re.fullmatch(r"(?:(?:\[(?P<six>[0-9a-fA-F:.%]+)\]|(?P<host>[^\s:\[\]/]+)):)?(?P<port>\d{1,5})", text)
    port = int(found["port"]) if found else 0
    if found is None or not 1 <= port <= 65535:
        raise UsageError(
            f"{text!r} is not an address to serve the dashboard on",
            code="PT035",
            hint="write HOST:PORT, as in 127.0.0.1:8080",
        )
    return Address(found["six"] or found["host"] or LOOPBACK, port)


def read_token(file: Path | None) -> str | None:
    """The token in the file, else that of the environment, if there is one. It is in no setting: all can read those."""
    if file is None:
        given = os.environ.get(TOKEN)
    else:
        try:
            given = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise UsageError(
                f"cannot read the token from {file}: {reason}",
                code="PT036",
                hint="give a file with one line, the token",
            ) from error
    token = (given or "").strip()
    if not token and file is None:
        return None
    if len(token) < SHORTEST or not re.fullmatch(r"[!-~]+", token):
        raise UsageError(
            f"the token of the dashboard is not one line of {SHORTEST} or more printable ASCII characters",
            code="PT037",
            hint=_MAKE_ONE,
        )
    return token


class Headers(Protocol):
    """The headers of a request, by name in any case."""

    def get(self, name: str, /) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not answered: the status of HTTP, and what the page says."""

    status: int
    message: str


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one dashboard. Without a token it can only be looked at, and only from this machine."""

    address: Address
    token: str | None = field(repr=False)
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.token is None and not self.address.is_loopback:
            raise UsageError(
                f"{self.address} can be reached from other machines, and the dashboard has no token",
                code="PT038",
                hint=f"give one by --web-token-file or {TOKEN} ({_MAKE_ONE}), or serve it on 127.0.0.1",
            )

    def refused(self, headers: Headers) -> Refusal | None:
        """Why a request for anything, also the page itself, is refused; None if it is not."""
        host = headers.get("Host")
        if host is None or not self._is_us(host):
            return Refusal(403, f"this is not {host or 'a host'}: give the name by --web-name if it should be")
        origin = headers.get("Origin")
        if origin is not None and origin.split("://")[-1].lower() != host.lower():
            return Refusal(403, "a page of another origin asks")
        elsewhere = headers.get("Sec-Fetch-Site") not in {None, "same-origin", "none"}
        if elsewhere and headers.get("Sec-Fetch-Mode") != "navigate":  # a link may lead here
            return Refusal(403, "a page of another site asks")
        return None

    def refused_data(self, headers: Headers) -> Refusal | None:
        """Why a request for data is refused."""
        if self.token is None or self._has_token(headers):
            return None
        return Refusal(401, "the token is missing or wrong")

    def refused_change(self, headers: Headers) -> Refusal | None:
        """Why a request to change something is refused. A form of another page can send neither header."""
        if self.token is None:
            return Refusal(403, f"read-only: start it with --web-token-file or {TOKEN} to steer from here")
        if (headers.get("Content-Type") or "").partition(";")[0].strip() != "application/json":
            return Refusal(415, "JSON is needed")
        return self.refused_data(headers)

    def _has_token(self, headers: Headers) -> bool:
        kind, _, given = (headers.get("Authorization") or "").partition(" ")
        assert self.token is not None
        # compared whatever the kind is, and in the same time wherever they differ
        same = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), self.token.encode())
        return same and kind.lower() == "bearer"

    def _is_us(self, host: str) -> bool:
        """An IP address cannot be made to lead elsewhere; of names, only those that are ours."""
        name = re.sub(r":\d+$", "", host).strip("[]").lower().rstrip(".")
        known = {"localhost", self.address.host.lower(), *(each.lower() for each in self.names)}
        if not self.address.is_loopback:
            known |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        return name in known or _is_ip(name)


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
