"""Which of PostgreSQL's settings can change an answer, and what becomes of them.

Pinned: the same in every session of ours, since values travel and compare in their text form. Stored: kept with the
stream table as they were for who defined it, and in effect wherever its query is evaluated. All others cannot change
the rows of a query; `tests/sessions/reviewed.txt` has them one by one, for each version of PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PINNED: Final[Mapping[str, str]] = {
    # Text forms: lossless and the same in every session, since values travel and compare as text.
    # (`ISO` alone leaves the order in which casts read dates as it is: that is stored.)
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "xmloption": "content",  # what is read back of its text form need not be a document
    "quote_all_identifiers": "off",
    "client_encoding": "UTF8",
    # What a text means: queries are read again and again, and arrays are made of the texts of their elements.
    "array_nulls": "on",
    "transform_null_equals": "off",
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    # All rows that the role may read, and no others.
    "row_security": "on",
    "gin_fuzzy_search_limit": "0",
    # What we read must be what was committed before each statement, whatever the database's defaults.
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # A refresh may be long and its reader idle in its transaction: no limit of a role may end it half-way.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",  # the service's sessions may have nothing to do for long
    "transaction_timeout": "0",
    # Our statements are many, long of text and short of work: compiling one costs more than running it.
    "jit": "off",
}
"""What every session sets first, whatever driver opened it."""

STORED: Final = (
    "DateStyle",
    "TimeZone",
    "timezone_abbreviations",
    "default_text_search_config",
    "lc_monetary",
    "lc_numeric",
    "lc_time",
)
"""Kept with each stream table; of DateStyle, the order of day and month."""

NOW: Final = "pgtrickle.now"
BEFORE: Final = "pgtrickle.before"
CLOCK: Final = (NOW, BEFORE)
"""What a refresh says that the time is, and was at the table's last refresh: of a query that reads the clock."""

TRUSTING: Final = "pg_trickle.trust_stable_functions"
"""Kept with a stream table if who defined it promised what bodies of functions do not prove."""

IN_TEXTS: Final = ("array_nulls", "transform_null_equals", "standard_conforming_strings", "backslash_quote")
"""Pinned ones by which the same text may be another query. IntervalStyle is both of these and a look."""

IN_LOOKS: Final = (
    "DateStyle",
    "IntervalStyle",
    "extra_float_digits",
    "bytea_output",
    "xmlbinary",
    "xmloption",
    "quote_all_identifiers",
    "gin_fuzzy_search_limit",
)
"""Pinned ones by which a value may look different to who defined the table."""

OF_INTEREST: Final = tuple(dict.fromkeys((*STORED, *IN_TEXTS, *IN_LOOKS)))
"""What is to be known of the session of who defines a table; `pgtrickle_internal.session_settings()` has the same."""


def stored(given: Mapping[str, str]) -> dict[str, str]:
    """What is put in effect for a table, of the settings of who defined it; and the time, in a refresh."""
    return {name: _in_effect(name, given[name]) for name in (*STORED, *CLOCK) if name in given}


def kept(given: Mapping[str, str]) -> dict[str, str]:
    """What the catalog keeps: that, and what else the session had that is not so with us, to tell of it."""
    return {name: given[name] for name in (*unlike(given), *STORED, TRUSTING) if name in given}


def unlike(given: Mapping[str, str]) -> tuple[str, ...]:
    """The settings that are another way in the given session than they are pinned."""
    return tuple(name for name in (*IN_TEXTS, *IN_LOOKS) if name in given and _differs(name, given[name]))


def notes(given: Mapping[str, str]) -> tuple[str, ...]:
    """What a person should know whose session has other values than ours, one sentence a setting. By what matters only
    where a query is read, it is refused (`query/analyse/session_settings.py`); array_nulls matters to what it reads,
    too."""
    return tuple(
        f"{name} is {given[name]} in the session that defined it, and {PINNED[name]} wherever it is computed:"
        " values that the query turns into text, or reads from text, may look different"
        for name in unlike(given)
        if name in IN_LOOKS or name == "array_nulls"
    )


def _differs(name: str, value: str) -> bool:
    if name == "DateStyle":
        return not value.lower().startswith("iso")
    if name == "extra_float_digits":
        return int(value) < 1  # 1 and more show the same digits
    if name == "backslash_quote":
        return value.lower() == "off"
    return value.lower() != PINNED[name]


def _in_effect(name: str, value: str) -> str:
    """Of DateStyle, only the order is another from table to table."""
    return f"ISO, {value.rpartition(',')[2].strip()}" if name == "DateStyle" else value
