"""The page of the Python interface, from its signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any, Final

import pgtrickle
from pgtrickle import errors
from pgtrickle.catalog.health import Check, SlotHealth
from pgtrickle.catalog.reader import CdcChange, CdcStatus, HistoryRow, StreamTable
from pgtrickle.monitor.finding import Finding
from pgtrickle.refresh.definition.repair import Repair
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.verification.verify import Verification
from tools.reference import markdown

RECORDS: Final = (
    RefreshResult, StreamTable, HistoryRow, CdcStatus, CdcChange, SlotHealth, Check, Finding, Verification, Repair
)  # fmt: skip
"""What the methods return."""


def page() -> str:
    methods = [
        _method(f"Trickle.{name}", member)
        for name, member in vars(pgtrickle.Trickle).items()
        if not name.startswith("_") and inspect.isfunction(member)
    ]
    kinds = [
        (f"`{kind.__name__}`", f"`{kind.__mro__[1].__name__}`", markdown.prose(kind.__doc__))
        for name in pgtrickle.__all__
        if inspect.isclass(kind := getattr(pgtrickle, name)) and issubclass(kind, Exception)
    ]
    return markdown.page(
        "Python interface",
        "`import pgtrickle` loads neither the driver nor Spark; they are loaded when they are needed.",
        _method("pgtrickle.connect", pgtrickle.connect),
        f"## Trickle\n\n{markdown.prose(pgtrickle.Trickle.__doc__)}",
        *methods,
        "## Results",
        "All are frozen dataclasses.",
        *(_record(each) for each in RECORDS),
        "## Errors and warnings",
        f"{markdown.prose(errors.Error.__doc__)} `error.code` is stable: see [errors](errors.md).",
        markdown.table(("class", "base", "meaning"), kinds),
    )


def _method(title: str, member: Callable[..., Any]) -> str:
    plain = inspect.unwrap(member)
    signature = inspect.signature(plain)
    given = [each for each in signature.parameters.values() if each.name != "self"]
    shown = re.sub(r"<object object at \w+>", "…", str(signature.replace(parameters=given))).replace("'", '"')
    shown = re.sub(r': "([^"]*)"', r": \1", shown)
    shown = re.sub(r'-> "([^"]*)"', r"-> \1", shown)
    call = f"{title}{shown}"
    if len(call) > 100:
        call = f"{title}(\n    " + ",\n    ".join(_arguments(shown)) + "\n)" + shown[shown.rindex(")") + 1 :]
    level = "##" if title == "pgtrickle.connect" else "###"
    return f"{level} {title.removeprefix('Trickle.')}\n\n```python\n{call}\n```\n\n{markdown.prose(member.__doc__)}"


def _arguments(shown: str) -> list[str]:
    return re.split(r", (?=\*|\w+:)", shown[1 : shown.rindex(")")])


def _record(kind: type) -> str:
    rows = [(f"`{each.name}`", f"`{each.type}`") for each in dataclasses.fields(kind)]
    return f"### {kind.__name__}\n\n{markdown.prose(kind.__doc__)}\n\n{markdown.table(('field', 'type'), rows)}"
