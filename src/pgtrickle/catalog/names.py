"""Names of stream tables as users write them: `name`, `schema.name`, quoted where SQL would need quotes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import psycopg

from pgtrickle.db import caller, schemas_of
from pgtrickle.errors import UsageError
from pgtrickle.model import folded, quote

_PART = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^\W\d][\w$]*))\s*')
_LONGEST = 63


@dataclass(frozen=True, slots=True)
class Name:
    """A relation's name; `schema` is None when the user left it out."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return quote(self.name) if self.schema is None else f"{quote(self.schema)}.{quote(self.name)}"


def parse_name(text: str) -> Name:
    """Read a name by PostgreSQL's rules: unquoted parts fold to lower case, at most 63 bytes each."""
    parts: list[str] = []
    place = 0
    while True:
        part = _PART.match(text, place)
        if part is None:
            raise _wrong(text)
        quoted, plain = part["quoted"], part["plain"]
        parts.append(quoted.replace('""', '"') if quoted is not None else folded(plain))
        place = part.end()
        if place == len(text):
            break
        if text[place] != ".":
            raise _wrong(text)
        place += 1
    if len(parts) > 2:
        raise _wrong(text)
    for each in parts:
        if len(each.encode()) > _LONGEST or "\0" in each:
            raise UsageError(
                f"the name {each!r} is too long", code="PT004", hint=f"PostgreSQL keeps {_LONGEST} bytes of a name."
            )
    return Name(parts[0] if len(parts) == 2 else None, parts[-1])


def parse_columns(text: str) -> tuple[str, ...]:
    """Read a list of columns, `region, day`, by the same rules. `none` are none."""
    if text.strip().lower() == "none":
        return ()
    columns: list[str] = []
    place = -1
    while place < len(text):
        part = _PART.match(text, place + 1)
        if part is None or text[part.end() : part.end() + 1] not in {"", ","}:
            raise UsageError(
                f"{text!r} is not a list of columns", code="PT018", hint="write region, day, or none to have no key"
            )
        quoted = part["quoted"]
        columns.append(quoted.replace('""', '"') if quoted is not None else folded(part["plain"]))
        place = part.end()
    return tuple(columns)


def shown_columns(columns: tuple[str, ...]) -> str:
    """The list as one would write it: quoted only where it must be."""
    plain = (each if re.fullmatch(r"[a-z_][a-z0-9_$]*", each) and each != "none" else quote(each) for each in columns)
    return ", ".join(plain) or "none"


def qualify(conn: psycopg.Connection[Any], name: Name) -> tuple[str, str]:
    """Schema and name of a table to be created: without a schema, the first of the search path that exists."""
    if name.schema is not None:
        return name.schema, name.name
    schemas = schemas_of(conn, caller(conn).search_path)
    if not schemas:
        raise UsageError(
            f"no schema to create {name} in", code="PT005", hint="Write schema.name, or set search_path to a schema."
        )
    return schemas[0], name.name


def _wrong(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is not a table's name", code="PT004", hint='Write name, schema.name, or "Quoted"."Name".'
    )
