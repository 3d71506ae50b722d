"""The project as a whole: what is promised about its files holds."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = sorted(ROOT.glob("requirements*.lock"))
MODULES = [path for path in sorted((ROOT / "src" / "pgtrickle").rglob("*.py")) if path.stat().st_size]


def pins(lock: Path) -> list[tuple[Requirement, list[str]]]:
    joined = lock.read_text().replace("\\\n", " ")
    entries = [line.split(" --hash=") for line in joined.splitlines() if line.strip()]
    return [(Requirement(entry[0].strip()), [digest.strip() for digest in entry[1:]]) for entry in entries]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda p: p.name)
def test_a_lock_holds_versions_and_hashes_and_no_addresses(lock: Path) -> None:
    text = lock.read_text()
    assert "/" not in text
    assert "index" not in text
    for pin, digests in pins(lock):
        assert re.fullmatch(r"==[^,*]+", str(pin.specifier)), pin
        assert digests, f"{pin} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in digests)


def test_the_lock_covers_every_dependency_and_is_what_is_installed() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = [Requirement(text) for text in (*PROJECT["dependencies"], *extras["embedded"], *extras["dev"])]
    locked = {
        pin.name: pin for pin, _ in pins(ROOT / "requirements.lock") if pin.marker is None or pin.marker.evaluate()
    }
    for requirement in wanted:
        version = str(locked[requirement.name].specifier).removeprefix("==")
        assert requirement.specifier.contains(version), requirement
        assert importlib.metadata.version(requirement.name) == version


def test_every_dependency_is_bounded_on_both_sides() -> None:
    extras = PROJECT["optional-dependencies"]
    for text in (*PROJECT["dependencies"], *(item for items in extras.values() for item in items)):
        operators = {specifier.operator for specifier in Requirement(text).specifier}
        assert operators == {">=", "<"}, text


def test_every_dependency_is_used() -> None:
    text = "\n".join(path.read_text() for path in MODULES)
    imported = set(re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE))
    wanted = {Requirement(each).name.replace("-", "_") for each in PROJECT["dependencies"]}
    assert wanted - imported == {"pandas"}, "PySpark's mapInArrow asks for pandas; the others we must import"


def test_the_makefile_has_the_targets_of_the_contract() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {
        "demo",
        "setup",
        "test",
        "test-long",
        "fuzz",
        "check",
        "docs",
        "reference",
        "bench",
        "lock",
        "clean",
    } <= targets


@pytest.mark.parametrize("module", MODULES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_every_module_says_what_it_does(module: Path) -> None:
    assert ast.get_docstring(ast.parse(module.read_text())), "no docstring"


def test_only_the_demo_opens_sessions_as_a_user_has_them() -> None:
    """Our own statements run in sessions of `db.connect`, which see pg_catalog only; tasks of Spark prepare theirs."""
    opening = {
        path.relative_to(ROOT / "src" / "pgtrickle").as_posix()
        for path in MODULES
        if re.search(r"open_session\(|psycopg\.connect\(|PGconn\.connect\(|adbc\.connect\(", path.read_text())
    }
    demo = {name for name in opening if name.startswith("demo/")}
    assert opening - demo == {
        "db.py",
        "capture/replication.py",
        "embedded.py",
        "spark/worker.py",
        "spark_source/rows.py",
    }
