"""What an exception of Spark or Java says, without its trace. For messages: a terminal shows one line."""

from __future__ import annotations

import re
from typing import Final

_OF_A_STACK: Final = ("at ", "...")  # how lines of Java's stacks begin
_LONGEST: Final = 300
_STOPS: Final = re.compile(
    r"\[((?:[A-Z]+_)?(?:ARITHMETIC_OVERFLOW|CAST_OVERFLOW|CAST_INVALID_INPUT|DIVIDE_BY_ZERO|REMAINDER_BY_ZERO"
    r"|NUMERIC_VALUE_OUT_OF_RANGE|USER_RAISED_EXCEPTION)[A-Z_.]*)\]"
)
"""What Spark calls a value that it has no answer for."""
GONE: Final = "its Java process has ended"


def text_of(error: BaseException) -> str:
    """Its text. One that Java raised asks Java for it, which may have ended meanwhile."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - py4j raises whatever its socket does
        return GONE


def _got_no_answer(error: BaseException) -> bool:
    """Whether the socket to Java broke. py4j says so, or only that an error occurred in a call, with no reason of
    Java's. By name: whoever has no Spark need not load it."""
    if isinstance(error, ConnectionError | EOFError) or type(error).__name__ == "Py4JNetworkError":
        return True
    return (
        type(error).__name__ == "Py4JError"
        and re.fullmatch(r"An error occurred while calling \S+", str(error)) is not None
    )


def in_one_line(error: BaseException) -> str:
    """The line that says most: Spark's own reason if there is one, else the last that is not of a stack."""
    if _got_no_answer(error):
        return GONE
    lines = [line.strip() for line in text_of(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(_OF_A_STACK)]
    by_spark = [line for line in told if "SparkException: " in line]  # of what Java has to say, the part that helps
    said = (by_spark or told or [type(error).__name__])[-1]
    said = re.sub(r"^(?:: )?[\w.$]+(?:Exception|Error): ", "", said)
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"


def stopped_at(error: BaseException) -> str | None:
    """What Spark calls the value at which it stopped, if that is why a job failed."""
    found = _STOPS.search(text_of(error))
    return found and found[1]
