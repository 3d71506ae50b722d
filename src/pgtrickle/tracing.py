"""Spans of OpenTelemetry, for a process that uses it; in any other nothing is imported, and a span is nothing.

A refresh is a span `pgtrickle.refresh`, and its steps are spans below it. Where they go the process says, as it sets
OpenTelemetry up. Called by `refresh/`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

Attribute: TypeAlias = str | int | float | bool | None
PREFIX: Final = "pgtrickle."


class Span:
    """A span that is open, or nothing."""

    def __init__(self, open_span: Any = None) -> None:
        self._span = open_span

    def note(self, **attributes: Attribute) -> None:
        """Adds attributes, those that have a value."""
        if self._span is not None:
            self._span.set_attributes(_named(attributes))

    def failed(self, error: BaseException, code: object) -> None:
        """Records the error, and that it is one."""
        if self._span is not None:
            api = sys.modules["opentelemetry.trace"]
            self._span.record_exception(error)
            self._span.set_status(api.Status(api.StatusCode.ERROR, str(error)))
            self.note(error_code=None if code is None else str(code))


@contextmanager
def span(name: str, expected: type[BaseException] | None = None, **attributes: Attribute) -> Iterator[Span]:
    """A span for as long as the block lasts. What is `expected` to be raised is no error."""
    tracer = _tracer()
    if tracer is None:
        yield Span()
        return
    given = _named(attributes)
    with tracer.start_as_current_span(
        PREFIX + name, attributes=given, record_exception=False, set_status_on_exception=False
    ) as open_span:
        found = Span(open_span)
        try:
            yield found
        except BaseException as error:
            if expected is None or not isinstance(error, expected):
                found.failed(error, getattr(error, "code", None))
            raise


def step(name: str, begun_ns: int) -> int:
    """A span of what has been done since then, below the one that is open. Returns when it ended."""
    now, tracer = time.time_ns(), _tracer()
    if tracer is not None:
        tracer.start_span(PREFIX + name, start_time=begun_ns).end(now)
    return now


def _tracer() -> Any:
    """None if the process does not use OpenTelemetry."""
    api = sys.modules.get("opentelemetry.trace")
    return None if api is None else api.get_tracer("pgtrickle")


def _named(attributes: dict[str, Attribute]) -> dict[str, str | int | float | bool]:
    return {PREFIX + name: value for name, value in attributes.items() if value is not None}
