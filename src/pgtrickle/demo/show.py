"""The demo itself: set up, write and refresh for a while, then check every stream table against its query."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

from pgtrickle import db
from pgtrickle.api import Trickle, connect
from pgtrickle.demo import shop
from pgtrickle.demo.capture import Capture, capturing
from pgtrickle.demo.shop import STREAMS, Stream
from pgtrickle.demo.view import View
from pgtrickle.demo.writers import Writers, writing
from pgtrickle.refresh.verification.verify import Verification


def show(dsn: str, seconds: float, console: Console) -> bool:
    """Run on an empty database; true if every stream table equals its query at the end."""
    view = View(console, seconds)
    with view.working("opening the shop"), db.open_session(dsn) as connection:
        shop.build(connection)
    with connect(dsn) as trickle:
        for position, stream in enumerate(STREAMS):
            note = " (the first one starts Spark)" if position == 0 else ""
            with view.working(f"creating {stream.name}: {stream.shows}{note}"):
                _create(trickle, stream, view)
        with capturing(dsn) as capture:
            with writing(dsn) as writers, view.live(writers) as tick:
                _follow(trickle, view, writers, capture, tick)
            with view.working("writers stopped; refreshing all once more"):
                capture.settle()
                for stream in STREAMS:
                    _refresh(trickle, stream, view)
            with view.working("comparing every stream table with its query, evaluated by PostgreSQL"):
                found = trickle.verify()
            told = capture.told()
    return _verdict(view, writers, found, told)


def _create(trickle: Trickle, stream: Stream, view: View) -> None:
    began = time.monotonic()
    result = trickle.create_stream_table(
        stream.name, stream.query, schedule=f"{stream.every}s", refresh_mode=stream.mode
    )
    if result is not None:
        view.seen[stream.name].take(result, began)


def _refresh(trickle: Trickle, stream: Stream, view: View) -> None:
    view.busy = stream.name
    began = time.monotonic()
    view.seen[stream.name].take(trickle.refresh_stream_table(stream.name), began)
    view.busy = None


def _follow(trickle: Trickle, view: View, writers: Writers, capture: Capture, tick: Callable[[], None]) -> None:
    """Refreshes what is due, the most overdue first, until the time is up or a writer failed."""
    end = time.monotonic() + view.seconds
    while time.monotonic() < end and not writers.stop.is_set():
        overdue, stream = max(
            ((time.monotonic() - view.seen[s.name].fresh_at - s.every, s) for s in STREAMS), key=lambda due: due[0]
        )
        if overdue >= 0:
            _refresh(trickle, stream, view)
        else:
            writers.stop.wait(min(-overdue, 0.2))
        view.modes = capture.modes()
        tick()


def _verdict(view: View, writers: Writers, found: list[Verification], captured: list[str]) -> bool:
    view.say("")
    for each in found:
        seen = view.seen[each.table.removeprefix("public.")]
        differing = f"{each.missing} rows missing, {each.extra} too many, {each.different_looks} that look different"
        verdict = "equal" if each.equal else f"DIFFERENT: {each.error or differing}"
        view.say(f"  {each.table:<24} {seen.refreshes:>3} refreshes {seen.changed:>7} rows changed   {verdict}")
    view.say("\nsources, and how their changes were captured at the end:")
    for line in captured:
        view.say(line)
    right = len(found) == len(STREAMS) and all(each.equal for each in found)
    view.say("")
    if right:
        view.say(f"{len(found)} stream tables equal their queries after {writers.transactions} transactions.")
    else:
        view.say("Some stream tables differ from their queries: this is a bug of pgtrickle.")
    return right
