"""What is promised about the suite: `make test` draws the same examples every time, and what it lists exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import RANDOM
from tests.suite import BOTH_VERSIONS, HEAVY, SPLIT, scope

ROOT = Path(__file__).parent.parent


def drawn() -> list[int]:
    found = []

    @given(st.integers())
    def take(number: int) -> None:
        found.append(number)

    take()
    return found


@pytest.mark.skipif(not settings().derandomize, reason="this run explores")
def test_the_same_examples_every_time() -> None:
    assert drawn() == drawn()
    assert settings().database is None, "what failed in another run does not come first in this one"


def test_no_chance_without_a_seed() -> None:
    """`random` itself is seeded before each test; a generator of one's own is seeded by hand."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.name != "fuzz.py":
            unseeded = re.findall(
                r"\bRandom\(\)|\bSystemRandom\b|^import secrets|^from secrets", path.read_text(), re.M
            )
            assert unseeded == [] or path == Path(__file__), path


@pytest.mark.parametrize("listed", sorted({*BOTH_VERSIONS, *HEAVY, SPLIT, *RANDOM}))
def test_what_is_listed_exists(listed: str) -> None:
    path, _, test = listed.partition("::")
    assert (ROOT / path).exists()
    assert not test or f"def {test}(" in (ROOT / path).read_text()


def asks_postgresql(test: ast.FunctionDef) -> bool:
    """Whether a random test takes a fixture too: a server, which is its oracle."""
    given = [each for each in test.decorator_list if isinstance(each, ast.Call) and ast.unparse(each.func) == "given"]
    drawn = {keyword.arg for each in given for keyword in each.keywords}
    places = sum(len(each.args) for each in given)
    return bool(given) and len([each for each in test.args.args if each.arg not in drawn]) > places


def test_every_random_test_with_an_oracle_is_explored() -> None:
    """Those that `make fuzz` repeats with fresh seeds: of a file that it lists, or itself."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            # what the scheduler decides by itself has no oracle
            if isinstance(node, ast.FunctionDef) and asks_postgresql(node) and not file.startswith("tests/scheduler/"):
                found.append(f"{file}::{node.name}")
    assert len(found) > 10
    assert [each for each in found if not {each, each.partition("::")[0]} & {*RANDOM}] == []


def test_a_worker_takes_a_file_or_a_folder_of_steps() -> None:
    assert scope("tests/a/test_b.py::test_c[x/y]") == "tests/a/test_b.py"
    assert scope("tests/dbt/test_models.py::test_a") == scope("tests/dbt/test_trouble.py::test_b")
    assert scope(f"{SPLIT}::test_c[joins/one]") == scope(f"{SPLIT}::test_c[joins/two]")
    assert scope(f"{SPLIT}::test_c[joins/one]") != scope(f"{SPLIT}::test_c[top/one]")
