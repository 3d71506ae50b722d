"""What a write of one row reads: every statement of our functions run under EXPLAIN (ANALYZE, BUFFERS), as PostgreSQL
tells it. Used by `test_keyed.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pgtrickle.db import Connection, statement
from pgtrickle.refresh.immediate.subject import EVENTS

_STATEMENT = re.compile(r"^ +WITH \"pgt_[^\n]*[^;\n]$.*?\n +INTO [a-z0-9_, ]+;$", re.DOTALL | re.MULTILINE)
_ONE_GROUP = "IF how_many = 1 THEN"
_MAINTENANCE = "proname LIKE 'i\\_%\\_on\\_%' AND pronamespace = 'pgtrickle_state'::regnamespace"


@dataclass(frozen=True, slots=True)
class Read:
    """One scan of a table: how, the rows it came by (kept and thrown away), and how often."""

    how: str
    table: str
    rows: float


@dataclass(frozen=True, slots=True)
class Told:
    """What one statement read, and the pages it touched for that."""

    reads: tuple[Read, ...]
    pages: int


def explain_from_now_on(connection: Connection) -> int:
    """Has our functions leave in `told` what PostgreSQL says of each of their statements, and counts these. The small
    ones for one group are left out, so that the one for any number of groups runs."""
    connection.execute("CREATE TABLE told (pgt_id int, plan json)")
    found = 0
    for name, text in connection.execute(
        statement(f"SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE {_MAINTENANCE}")
    ).fetchall():
        changed, here = _STATEMENT.subn(
            partial(_explained, str(name).split("_")[1]), str(text).replace(_ONE_GROUP, "IF false THEN")
        )
        assert here in {0, len(EVENTS) - 1}, (name, here)  # recursion takes several statements
        connection.execute(statement(changed))
        found += here
    return found


def told(connection: Connection) -> list[tuple[int, Told]]:
    """What was left there since the last time, with the number of the stream table."""
    plans = connection.execute("DELETE FROM told RETURNING pgt_id, plan").fetchall()
    return [(int(str(pgt_id)), _told(plan[0]["Plan"])) for pgt_id, plan in plans]  # type: ignore[index]


def _explained(pgt_id: str, match: re.Match[str]) -> str:
    """The statement is run once, under EXPLAIN: what it answers is not looked at, what it writes is written."""
    text, _, into = match[0].rpartition("\n")
    names = into.strip().removeprefix("INTO ").removesuffix(";").split(", ")
    keep = "DECLARE plan json; BEGIN FOR plan IN EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)\n"
    holds = " ".join(f"{name} := true;" for name in names)
    return f"{keep}{text}\n LOOP INSERT INTO public.told VALUES ({pgt_id}, plan); END LOOP; {holds} END;"


def _told(plan: dict[str, Any]) -> Told:
    return Told(tuple(_reads(plan)), int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"]))


def _reads(node: dict[str, Any]) -> Iterator[Read]:
    if "Relation Name" in node and node["Node Type"] != "ModifyTable":
        loops = float(node["Actual Loops"])
        rows = float(node["Actual Rows"]) + sum(float(node.get(f"Rows Removed by {why}", 0)) for why in _THROWN_AWAY)
        yield Read(str(node["Node Type"]), str(node["Relation Name"]), rows * loops)
    for below in node.get("Plans", ()):
        yield from _reads(below)


_THROWN_AWAY = ("Filter", "Index Recheck", "Join Filter")
