"""Hands the work of `create`, `alter --query` and `refresh` to the running service, whose Spark is warm, and waits.

`target` makes a `Worker` for these verbs. It has the methods of `api.Trickle` that they call, so that they need not
know who does the work. Where no running service serves the login or the table's owner, this process does it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pgtrickle import db
from pgtrickle.capture.advice import advice
from pgtrickle.catalog import install, requests
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog.names import Name, parse_name, qualify
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.catalog.requests import Progress
from pgtrickle.cli.outcome import Interrupted
from pgtrickle.cli.progress import Doing
from pgtrickle.config import Settings
from pgtrickle.errors import Error, ServerError, SessionWarning, StateError
from pgtrickle.refresh.decide import Action
from pgtrickle.refresh.result import RefreshResult

if TYPE_CHECKING:
    from pgtrickle.api import Trickle

SHORTEST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.25
GONE_AFTER_S = 30.0
"""How long a request waits for a service that was there when it was made, before this is an error."""


class Worker:
    """Does what is asked through the service where it can, and else in this process."""

    def __init__(self, connection: db.Connection, here: Callable[[], Trickle], doing: Doing) -> None:
        self._connection = connection
        self._open = here
        self._doing = doing
        self._opened: Trickle | None = None
        self._knows_catalog = _is_current(connection)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def exists(self, name: str) -> bool:
        return self._knows_catalog and self._named(name) is not None

    def create_stream_table(
        self, name: str, query: str, *, auto_replica_identity: bool = False, **options: object
    ) -> RefreshResult | None:
        """To change the sources is asked of no service: that is left to who asks for it."""
        if auto_replica_identity or not self._may_hand(None, defining=True):
            options["auto_replica_identity"] = auto_replica_identity
            return self._here().create_stream_table(name, query, **options)  # type: ignore[arg-type]  # as they came
        full_name = str(Name(*qualify(self._connection, parse_name(name))))
        return _result(self._ask(name, "create", {"name": full_name, "query": query, **_given(options)}))

    def create_or_replace_stream_table(
        self,
        name: str,
        query: str,
        *,
        initialize: bool = True,
        auto_replica_identity: bool = False,
        **options: object,
    ) -> RefreshResult | None:
        if not self.exists(name):
            return self.create_stream_table(
                name, query, initialize=initialize, auto_replica_identity=auto_replica_identity, **options
            )
        self.alter_stream_table(name, query=query, **options)
        return None

    def alter_stream_table(self, name: str, **changes: object) -> None:
        """Only another query is worth it: all else needs no Spark."""
        stream = self._named(name) if self._knows_catalog and changes.get("query") is not None else None
        if stream is None or not self._may_hand(stream, defining=True):
            self._here().alter_stream_table(name, **changes)  # type: ignore[arg-type]  # as they came
            return
        self._ask(name, "alter", {"name": requests.full_name(self._connection, stream), **_given(changes)})

    def refresh_stream_table(self, name: str, *, full: bool = False) -> RefreshResult:
        stream = self._named(name) if self._knows_catalog else None
        if stream is None or not self._may_hand(stream, defining=False):
            return self._here().refresh_stream_table(name, full=full)
        args = {"name": requests.full_name(self._connection, stream), "full": full or None}
        answer = self._ask(name, "refresh", _given(args))
        result = _result(answer)
        assert result is not None, "a refresh says what it did"
        return result

    def status(self, name: str) -> Sequence[StreamTable]:
        return self._opened.status(name) if self._opened is not None else (catalog.resolve(self._connection, name),)

    def capture_advice(self, name: str) -> tuple[str, ...]:
        """What to run for sources that only their replica identity keeps from the WAL: one line each."""
        pgt_id = catalog.resolve(self._connection, name).pgt_id
        sources = {each.source_relid for each in catalog.dependencies(self._connection, pgt_id)}
        return advice(self._connection, Settings.load(self._connection), sources)

    def in_order(self) -> Sequence[StreamTable]:
        """All stream tables, each after those that it reads."""
        return self._here().in_order()

    def _here(self) -> Trickle:
        """This process; Spark is started when there is something for it to do."""
        self._doing.phase = None
        self._opened = self._opened or self._open()
        return self._opened

    def _may_hand(self, stream: StreamTable | None, *, defining: bool) -> bool:
        return self._knows_catalog and requests.would_be_taken(self._connection, stream, defining=defining)

    def _named(self, name: str) -> StreamTable | None:
        """The stream table of that name, if there is one; that there is none, whoever does the work says."""
        try:
            return catalog.resolve(self._connection, name)
        except StateError as error:
            if error.code != "PT301":
                raise
            return None

    def _ask(self, name: str, kind: str, args: Mapping[str, object]) -> Mapping[str, object]:
        """Makes the request, and waits until it is carried out; raises its error."""
        self._doing.phase = "asking the service"
        request_id = requests.make(self._connection, kind, args)
        try:
            self._await(request_id)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(
                f"interrupted; the service goes on with request {request_id}",
                hint=f"SELECT state, error FROM pgtrickle.pgt_requests WHERE id = {request_id} tells how it ends.",
            ) from interrupt
        answer = requests.result(self._connection, request_id)
        known = self.capture_advice(name)  # which `create` itself tells of
        for note in (each for each in _texts(answer.get("notes")) if each not in known):
            warnings.warn(f"{name}: {note}", SessionWarning, stacklevel=2)
        return answer

    def _await(self, request_id: int) -> None:
        pause, served_at = SHORTEST_PAUSE_S, time.monotonic()
        while (seen := requests.progress(self._connection, request_id)).state not in {"DONE", "FAILED"}:
            self._doing.phase = described(seen)
            if seen.is_served:
                served_at = time.monotonic()
            elif time.monotonic() - served_at > GONE_AFTER_S:
                raise _gone(request_id)
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE_S)


def described(seen: Progress) -> str:
    """What the service does for a request, in words for the terminal."""
    if not seen.is_served:
        return f"waiting: {seen.waits or 'the service is gone, and another has to take over'}"
    if seen.state == "PENDING":
        return f"waiting for the service, {seen.ahead} before it" if seen.ahead else "waiting for the service"
    if seen.rows_so_far:
        of = f" of about {seen.rows_expected:,}" if seen.rows_expected else ""
        return f"the service is refreshing, {seen.rows_so_far:,}{of} rows so far"
    return "the service is refreshing" if seen.refreshing else "the service is at it"


def _is_current(connection: db.Connection) -> bool:
    """Whether there is a catalog of our version. If not, the program itself says so, or installs it."""
    try:
        install.require(connection)
    except Error:
        return False
    return True


def _gone(request_id: int) -> ServerError:
    return ServerError(
        f"the service is gone; request {request_id} waits for the next one",
        code="PT451",
        hint="Start it with `pgtrickle run`: it carries the request out. --here would do the work a second time.",
    )


def _given(options: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}


def _result(answer: Mapping[str, object]) -> RefreshResult | None:
    """The refresh that a request tells of; None where there was none."""
    if "action" not in answer:
        return None
    phases = answer.get("phases")
    return RefreshResult(
        action=Action(str(answer["action"])),
        reason=str(answer["reason"]),
        rows_inserted=int(str(answer["rows_inserted"])),
        rows_deleted=int(str(answer["rows_deleted"])),
        changes_read=int(str(answer["changes_read"])),
        duration_ms=float(str(answer["duration_ms"])),
        phases={str(name): float(ms) for name, ms in phases.items()} if isinstance(phases, dict) else {},
    )


def _texts(notes: object) -> list[str]:
    return [str(note) for note in notes] if isinstance(notes, list) else []
