"""Documents: what they name is there, their links lead somewhere, every chapter is linked, and the tour is short. The
limits have every gap of incremental refresh, and no code that nothing raises.

Files and directories are named relative to the root of the project, or to the package; a bare file name, to a directory
that the same document names, by itself or with another file. `*` may stand for a part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from pgtrickle.query.gaps import GAPS

ROOT = Path(__file__).parent.parent
PLACES = (ROOT, ROOT / "src" / "pgtrickle")
TOUR = ROOT / "docs" / "ARCHITECTURE.md"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MOST_LINES_OF_THE_TOUR = 150

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_ADDRESS = re.compile(r"https?://\S+")
_FILE = re.compile(r"(?<![\w./~$@<*-])[\w*.-]+(?:/[\w*.-]+)*\.(?:py|sql|steps|txt|toml|md)\b")
_PATH = re.compile(r"`([\w*.-]+(?:/[\w*.-]+)*/|[\w*.-]+(?:/[\w*.-]+)+)`")
_CODES = re.compile(r"\bPT(\d{3})(?: to PT(\d{3}))?")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def named(text: str) -> set[str]:
    """The files named anywhere in a document, and the directories named in backticks."""
    plain = _ADDRESS.sub("", _LINK.sub("", text)).replace("pyspark.sql", "")
    return {*_FILE.findall(plain), *_PATH.findall(plain)}


def anchors(text: str) -> set[str]:
    """What links to the headings of a document end with, as GitHub makes it."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


def found(names: set[str], places: Iterable[Path]) -> dict[str, list[Path]]:
    """What each name is in these places; no name is left out."""
    return {name: [path for place in places for path in place.glob(name)] for name in names}


@each_document
def test_what_is_named_exists(document: Path) -> None:
    by_path = found(named(document.read_text()), PLACES)
    known = {path if path.is_dir() else path.parent for paths in by_path.values() for path in paths}
    bare = {name for name, paths in by_path.items() if not paths and "/" not in name}
    by_name = found(bare, known - set(PLACES))
    assert {name for name, paths in {**by_path, **by_name}.items() if not paths} == set()


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    for link in _LINK.findall(document.read_text()):
        if _ADDRESS.fullmatch(link):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link


def test_the_tour_is_short_and_leads_to_every_chapter() -> None:
    text = TOUR.read_text()
    assert len(text.splitlines()) <= MOST_LINES_OF_THE_TOUR
    chapters = {path.relative_to(TOUR.parent).as_posix() for path in (ROOT / "docs" / "design").glob("*.md")}
    assert chapters - set(_LINK.findall(text)) == set()


def test_every_document_is_on_the_site() -> None:
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    there = {path.relative_to(ROOT / "docs").as_posix() for path in DOCUMENTS[1:]}
    assert set(listed) == there
    assert len(listed) == len(there)


def test_names_are_found_in_prose_tables_and_pictures() -> None:
    text = (
        "`query/gone.py` | `delta/` | see\n```\n  window   refresh/window.py, capture/*.py\n```\n`/metrics` [x](a.md)"
    )
    assert named(text) == {"query/gone.py", "delta/", "refresh/window.py", "capture/*.py"}


def test_the_limits_have_every_gap_and_only_codes_that_exist() -> None:
    text = (ROOT / "docs" / "LIMITS.md").read_text()
    listed = {
        f"PT{number}" for first, last in _CODES.findall(text) for number in range(int(first), int(last or first) + 1)
    }
    source = "".join(path.read_text() for path in PLACES[1].rglob("*") if path.suffix in {".py", ".sql"})
    assert {gap.code for gap in GAPS} - listed == set()
    assert listed - set(re.findall(r"PT\d{3}", source)) == set()
