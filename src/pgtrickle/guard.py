"""What every call of the public Python interface has in common. Used by `api`.

Calls of several threads take turns. Arguments are of the right kind, or it is said which is not. A closed interface,
and one that a forked process has inherited, say so. Whatever fails is raised as one of our errors, with its cause.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import NoneType
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

import psycopg

from pgtrickle.errors import EnvironmentProblem, Error, Fault, StateError, UsageError
from pgtrickle.refresh.failure import as_ours, from_server, is_known
from pgtrickle.spark.java_errors import text_of

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_KINDS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "str": ((str,), "a text"),
    "str | None": ((str, NoneType), "a text or None"),
    "Sequence[str] | None": ((list, tuple, NoneType), "a list of texts or None"),
    "bool": ((bool,), "True or False"),
    "int": ((int,), "a whole number from 1 to 2147483647"),
}
"""What an argument may be, by its annotation. What has another annotation is checked where it is used."""
_LARGEST: Final = 2**31 - 1


class Gate:
    """Lets one thread in at a time, and no one once it is closed."""

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._process = os.getpid()
        self.closed = False

    @contextmanager
    def passed(self, *, even_closed: bool = False) -> Iterator[None]:
        """For the time of one call; a call within a call is let through."""
        if os.getpid() != self._process:  # before the lock: a thread that is not here may have had it
            raise StateError(
                "this Trickle belongs to the process that this one was forked from",
                code="PT482",
                hint="call pgtrickle.connect() in each process",
            )
        with self._turn:
            if self.closed and not even_closed:
                raise StateError(
                    "this Trickle is closed", code="PT480", hint="call pgtrickle.connect() again, or close it later"
                )
            yield


class Gated(Protocol):
    """An interface whose calls take turns."""

    @property
    def _gate(self) -> Gate: ...

    def _ready(self) -> None:
        """Brings its sessions back to life, if they are not."""


G = TypeVar("G", bound=Gated)


def guarded(interface: type[T]) -> type[T]:
    """A class decorator: every public method of it is guarded, also one that is added later."""
    for name, member in list(vars(interface).items()):
        if inspect.isfunction(member) and (name == "__enter__" or not name.startswith("_")):
            setattr(interface, name, _guarded_method(member, even_closed=name == "close"))
    return interface


def _guarded_method(method: Callable[Concatenate[G, P], R], *, even_closed: bool) -> Callable[Concatenate[G, P], R]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: G, /, *given: P.args, **named: P.kwargs) -> R:
        with _told(), self._gate.passed(even_closed=even_closed):
            _check(signature, (self, *given), named)
            if not even_closed:
                self._ready()
            return method(self, *given, **named)

    return call


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The same for what opens an interface: its arguments, and the errors that it raises."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*given: P.args, **named: P.kwargs) -> R:
        with _told():
            _check(signature, given, named)
            return function(*given, **named)

    return call


def _check(signature: inspect.Signature, given: tuple[object, ...], named: Mapping[str, object]) -> None:
    """A wrong number or name of arguments is a TypeError, as in every call in Python."""
    for name, value in signature.bind(*given, **named).arguments.items():
        parameter = signature.parameters[name]
        several = value if parameter.kind is parameter.VAR_POSITIONAL and isinstance(value, tuple) else (value,)
        for each in several:
            _check_one(name, each, str(parameter.annotation))


def _check_one(name: str, value: object, annotation: str) -> None:
    types, wanted = _KINDS.get(annotation, ((object,), "something else"))
    right = isinstance(value, types)
    if right and annotation == "int":
        right = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _LARGEST
    if not right:
        shown = f"{value!r}"
        raise UsageError(
            f"{name} must be {wanted}, not {shown if len(shown) <= 50 else type(value).__name__}",
            code="PT481",
            hint=f"see help(pgtrickle.Trickle) for what {name} is",
        )
    if isinstance(value, str) and not _can_be_stored(value):
        raise UsageError(
            f"{name} holds a character that PostgreSQL cannot store",
            code="PT481",
            hint="leave out NUL characters and unpaired surrogates",
        )


def _can_be_stored(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


@contextmanager
def _told() -> Iterator[None]:
    """What fails inside is raised as one of ours. (Warnings are errors only to who wants them as they are.)"""
    try:
        yield
    except (Error, Warning, TypeError) as error:
        if isinstance(error, TypeError) and not _is_of_the_call(error):
            raise as_error(error) from error
        raise
    except Exception as error:
        raise as_error(error) from error


def _is_of_the_call(error: TypeError) -> bool:
    """Whether the arguments did not fit the signature: raised by `bind`, before anything was done."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_filename == inspect.__file__


def as_error(raised: Exception) -> Error:
    """Any exception as one of our errors."""
    if isinstance(raised, Error):
        return raised
    if isinstance(raised, psycopg.Error):
        return from_server(raised)
    if "pyspark" in sys.modules and is_known(raised):
        return as_ours(raised)
    if isinstance(raised, OSError | EOFError):
        return EnvironmentProblem(
            f"the machine refused: {_in_one_line(raised)}",
            code="PT488",
            hint="check disk space, rights on PGTRICKLE_HOME and /tmp, and whether Spark was ended; then try again",
        )
    return Fault(
        f"unexpected {type(raised).__name__}: {_in_one_line(raised)}",
        hint="this is a fault of pgtrickle: report it with the traceback, which is this error's cause",
    )


def _in_one_line(error: Exception) -> str:
    return " ".join(text_of(error).split()) or type(error).__name__
