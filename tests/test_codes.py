"""Error codes are stable, so each means one thing: no two modules give the same code to different errors."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pgtrickle

ROOT = Path(pgtrickle.__file__).parent
SHARED = {
    "PT005": "no such schema",
    "PT100": "PostgreSQL refuses the query",
    "PT301": "no such stream table",
    "PT302": "the name is taken",
    "PT340": "PostgreSQL refused a statement",
    "PT402": "the role may not",
    "PT503": "the data directory cannot be used",
    "PT511": "Spark does not start",
}
"""Codes that several modules raise, with the one thing each means."""


def test_codes_are_not_used_twice() -> None:
    modules: defaultdict[str, set[str]] = defaultdict(set)
    for path in ROOT.rglob("*.py"):
        for code in re.findall(r'"(PT\d{3})"', path.read_text()):
            modules[code].add(str(path.relative_to(ROOT)))
    several = {code: sorted(found) for code, found in modules.items() if len(found) > 1}
    assert {code: found for code, found in several.items() if code not in SHARED} == {}
    assert sorted(set(SHARED) - set(several)) == []
