"""Files that declare stream tables, one each: comment lines `-- key: value`, then the query. Read, written, compared.

Pure, but for reading the files. `apply` and `dump` (`cli/declare.py`) use it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from pgtrickle import options
from pgtrickle.catalog.declarations import Declaration, in_order
from pgtrickle.catalog.names import Name, parse_columns, parse_name, shown_columns
from pgtrickle.errors import UsageError
from pgtrickle.index_text import parse_indexes
from pgtrickle.schedule import check_schedule

OPTIONS: Final = (
    "schedule",
    "refresh_mode",
    "cdc_mode",
    "diamond_consistency",
    "diamond_schedule_policy",
    "primary_key",
    "protect",
)
_INDEX: Final = "index"
_KEYS: Final = ("name", *OPTIONS, _INDEX, "search_path")
_HEADER: Final = re.compile(r"--\s*(\w+):\s*(.*?)\s*")
_DEFAULT: Final = Declaration(Name(None, ""), "")


@dataclass(frozen=True, slots=True)
class Step:
    """What `apply` does for one stream table: `create`, `alter`, `keep` or `drop`. `changes` are the options, and
    `query`, in which an existing table differs."""

    verb: str
    declaration: Declaration
    file: str | None
    changes: tuple[str, ...] = ()
    told: tuple[str, ...] = ()

    def __str__(self) -> str:
        why = f": {', '.join(self.told)}" if self.told else ""
        return f"{self.verb:<6} {shown(self.declaration.name)}{why}"


def shown(name: Name) -> str:
    """A name as one would write it: quoted only where it must be."""
    parts = [each for each in (name.schema, name.name) if each is not None]
    return ".".join(each if re.fullmatch(r"[a-z_][a-z0-9_$]*", each) else str(Name(None, each)) for each in parts)


def file_name(name: Name) -> str:
    return "".join(each if each.isalnum() or each in "_.-" else "_" for each in shown(name)) + ".sql"


def text_of(declaration: Declaration) -> str:
    """The file that declares a stream table. What is as it would be anyway is left out."""
    lines = [f"-- name: {shown(declaration.name)}", f"-- schedule: {declaration.schedule}"]
    for key in OPTIONS[1:]:
        if (value := getattr(declaration, key)) != getattr(_DEFAULT, key):
            lines.append(f"-- {key}: {value}")
    lines += [f"-- {_INDEX}: {index}" for index in declaration.indexes]
    if declaration.search_path is not None:
        lines.append(f"-- search_path: {declaration.search_path}")
    return "\n".join([*lines, "", bare(declaration.query), ""])


def read_directory(directory: Path, qualified: Callable[[Name], Name]) -> list[tuple[str, Declaration]]:
    """The declarations of a directory by file, each after those that it reads; `qualified` finds the schema of a name
    without one."""
    files = sorted(directory.glob("*.sql")) if directory.is_dir() else []
    if not files:
        raise UsageError(
            f"{directory} has no files of stream tables", code="PT671", hint="`pgtrickle dump DIR` writes one for each."
        )
    found: dict[Name, tuple[str, Declaration]] = {}
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"cannot read {file}: {error}", code="PT672", hint="give files that can be read, in UTF-8"
            ) from error
        given = parse(text, file.name)
        each = replace(given, name=qualified(given.name), reads=frozenset(map(qualified, given.reads)))
        if each.name in found:
            raise UsageError(
                f"{file.name} and {found[each.name][0]} both declare {shown(each.name)}",
                code="PT673",
                hint="keep one of them",
            )
        found[each.name] = (file.name, each)
    return [found[each.name] for each in in_order([each for _, each in found.values()])]


def parse(text: str, file: str) -> Declaration:
    """What a file declares. Its name is that of the file, unless it says another one."""
    given: dict[str, str] = {}
    indexes: list[str] = []
    lines = text.splitlines()
    while lines and lines[0].startswith("--"):
        line = _HEADER.fullmatch(lines.pop(0))
        if line is None:
            continue  # a comment of another kind
        if line[1] == _INDEX:  # a line for each
            indexes.append(line[2])
            continue
        if line[1] not in _KEYS or line[1] in given:
            what = "twice" if line[1] in given else "which there is not"
            raise UsageError(
                f"{file} gives {line[1]}, {what}",
                code="PT670",
                hint=f"there are {', '.join(_KEYS)}; other comments go below an empty line",
            )
        given[line[1]] = line[2]
    query = bare("\n".join(lines))
    if not query:
        raise UsageError(f"{file} has no query", code="PT674", hint="write it below the comment lines")
    name = parse_name(given.pop("name", file.removesuffix(".sql")))
    return Declaration(name, query, **_checked(given), indexes=parse_indexes(indexes), reads=_reads(query))


def plan(files: Sequence[tuple[str, Declaration]], there: Sequence[Declaration], *, prune: bool) -> list[Step]:
    """What makes the stream tables that are there be as the files declare them. Others are dropped only if asked."""
    known = {each.name: each for each in there}
    steps = [_step(file, wanted, known.get(wanted.name)) for file, wanted in files]
    wanted_names = {wanted.name for _, wanted in files}
    others = [each for each in in_order(list(there)) if each.name not in wanted_names]
    gone = [Step("drop", each, None, told=("no file declares it",)) for each in reversed(others)] if prune else []
    return [*gone, *steps]


def _step(file: str, wanted: Declaration, known: Declaration | None) -> Step:
    if known is None:
        return Step("create", wanted, file, told=(f"schedule {wanted.schedule}", wanted.refresh_mode))
    changes = [key for key in OPTIONS if getattr(known, key) != getattr(wanted, key)]
    told = [f"{key} {getattr(known, key)} → {getattr(wanted, key)}" for key in changes]
    if set(known.indexes) != set(wanted.indexes):
        changes.append("indexes")
        told += [f"no index {each}" for each in known.indexes if each not in wanted.indexes]
        told += [f"index {each}" for each in wanted.indexes if each not in known.indexes]
    if bare(known.query) != wanted.query:
        changes.append("query")
        told.append("another query")
    return Step("alter" if changes else "keep", wanted, file, tuple(changes), tuple(told))


def _checked(given: dict[str, str]) -> dict[str, str]:
    """The options in the catalog's spelling."""
    found = {key: value for key, value in given.items() if key == "search_path"}
    if "schedule" in given:
        found["schedule"] = check_schedule(given["schedule"], 1) or "calculated"
    if "refresh_mode" in given:
        found["refresh_mode"] = given["refresh_mode"].upper()
    if "cdc_mode" in given:
        found["cdc_mode"] = options.cdc_mode(given["cdc_mode"]) or options.INHERIT
    of_diamonds = options.of_diamonds(given.get("diamond_consistency"), given.get("diamond_schedule_policy"))
    found.update({key: value for key, value in zip(OPTIONS[3:5], of_diamonds, strict=True) if value is not None})
    if "primary_key" in given:
        found["primary_key"] = shown_columns(parse_columns(given["primary_key"]))
    if "protect" in given:
        if given["protect"].lower() not in {"true", "false"}:
            raise UsageError(f"protect cannot be {given['protect']!r}", code="PT678", hint="write true or false")
        found["protect"] = given["protect"].lower()
    return found


def bare(query: str) -> str:
    """A query without the white space around it and the semicolon at its end."""
    return query.strip().removesuffix(";").rstrip()


def _reads(query: str) -> frozenset[Name]:
    """The names that the query reads, for the order alone: PostgreSQL says what is wrong with a query."""
    try:
        tree = sqlglot.parse_one(query, read="postgres")
    except SqlglotError:
        return frozenset()
    return frozenset(
        Name(_folded(table.args.get("db")), _folded(table.this) or "") for table in tree.find_all(exp.Table)
    )


def _folded(part: object) -> str | None:
    if not isinstance(part, exp.Identifier):
        return None
    return part.name if part.quoted else part.name.lower()
