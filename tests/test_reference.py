"""The pages of docs/reference are what the source says now, and every error code has a cause and a cure."""

from __future__ import annotations

import re

from tools.reference import errors
from tools.reference.pages import DIRECTORY, written
from tools.reference.words import WORDS


def test_the_pages_are_as_the_source_is(database18: str) -> None:
    found = {path.name: path.read_text() for path in DIRECTORY.glob("*.md")}
    now = written(database18)
    stale = {name for name in {*found, *now} if found.get(name) != now.get(name)}
    assert stale == set(), "run `make reference`"


def test_every_code_has_a_cause_and_a_cure() -> None:
    told = errors.told()
    assert {code for code, words in told.items() if not words} == set(), "add them to tools/reference/words.py"
    page = errors.page()
    assert set(re.findall(r"^\| `(PT\d{3})`", page, re.MULTILINE)) == errors.codes()
    for code, words in told.items():
        for each in words:
            assert re.search(r"[a-z]{3}", each.cause), code
            assert re.search(r"[A-Za-z]{3}", re.sub(r"\{[^}]*\}", "", each.cure)), code


def test_words_are_given_only_for_codes_that_there_are() -> None:
    assert set(WORDS) - errors.codes() == set()
