"""The settings that a query is evaluated under in a writer's session. Pure; called by `functions.py`."""

from __future__ import annotations

from typing import Final

from pgtrickle.answers import PINNED, STORED
from pgtrickle.refresh.immediate.subject import Subject, quoted

_SET: Final = (
    "DateStyle",
    "IntervalStyle",
    "extra_float_digits",
    "bytea_output",
    "xmlbinary",
    "xmloption",
    "quote_all_identifiers",
    "array_nulls",
    "transform_null_equals",
    "standard_conforming_strings",
    "backslash_quote",
    "row_security",
    "gin_fuzzy_search_limit",
    "jit",
)
"""What is pinned and can be another way in the session of a writer."""
ALWAYS_SET: Final = frozenset(
    {"DateStyle", "IntervalStyle", "TimeZone", "standard_conforming_strings", "backslash_quote"}
)
"""What sessions often have another way, since drivers and frameworks set it; and what the text of a function is read
by, which has the query's literals."""


def settings(subject: Subject) -> dict[str, str]:
    """The settings that a query is evaluated under."""
    return {name: PINNED[name] for name in _SET} | dict(subject.settings)


def as_pinned(subject: Subject) -> str:
    """The condition that the writer's session has those settings that are not set for each call, which takes time."""
    found = [
        f"current_setting({quoted(name)}) = {quoted(value)}"
        for name, value in settings(subject).items()
        if name not in ALWAYS_SET and name not in {"jit", "extra_float_digits"}
    ]
    digits = "current_setting('extra_float_digits')::integer >= 1"  # one and more show the same
    return " AND ".join([*found, digits])


def checked(name: str) -> str:
    if name not in (*_SET, *STORED, "enable_seqscan"):
        raise ValueError(f"not a setting of a query: {name}")
    return name
