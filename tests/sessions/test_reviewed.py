"""Every setting that could change an answer was looked at, on every version of PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtrickle import db
from pgtrickle.answers import IN_LOOKS, IN_TEXTS, OF_INTEREST, PINNED, STORED, kept, notes, stored, unlike
from pgtrickle.catalog.install import install

REVIEWED = Path(__file__).parent / "reviewed.txt"


def reviewed() -> dict[str, str]:
    """Setting and class."""
    found: dict[str, str] = {}
    section = ""
    for line in REVIEWED.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            assert line not in found, f"{line} is there twice"
            found[line] = section
    return found


def test_every_setting_of_this_server_is_reviewed(database: str) -> None:
    known = reviewed()
    with db.connect(database) as conn:
        conn.execute("LOAD 'plpgsql'")
        rows = conn.execute(
            "SELECT name FROM pg_settings WHERE context IN ('user', 'superuser', 'backend', 'superuser-backend')"
            " AND name NOT LIKE 'pg_trickle.%'"
        ).fetchall()
    new = sorted(str(name) for (name,) in rows if name not in known)
    assert new == [], "can they change the rows of a query? See reviewed.txt"


def test_what_is_reviewed_is_what_is_done(database18: str) -> None:
    known = reviewed()
    classes = {section: {name.lower() for name, at in known.items() if at == section} for section in known.values()}
    assert classes["stored"] == {name.lower() for name in STORED}
    assert classes["pinned"] == {name.lower() for name in PINNED} - classes["stored"]
    with db.connect(database18) as conn:
        install(conn)
        asked = conn.execute(
            "SELECT array_agg(k) FROM jsonb_object_keys(pgtrickle_internal.session_settings()) AS k"
        ).fetchone()
        assert asked is not None
        assert sorted(map(str, asked[0])) == sorted(OF_INTEREST)  # type: ignore[call-overload]
        assert set(db.caller(conn).settings) == set(OF_INTEREST)
        in_effect = {str(name): value for name, value in conn.execute("SELECT lower(name), setting FROM pg_settings")}
        wrong = {
            name: in_effect[name.lower()]
            for name, value in PINNED.items()
            if name != "DateStyle" and in_effect[name.lower()] != value
        }
        assert wrong == {}


@pytest.mark.parametrize(
    ("name", "value", "like_ours"),
    [
        ("DateStyle", "German, DMY", False),
        ("DateStyle", "ISO, DMY", True),
        ("IntervalStyle", "iso_8601", False),
        ("extra_float_digits", "3", True),
        ("extra_float_digits", "0", False),
        ("backslash_quote", "on", True),
        ("array_nulls", "off", False),
        ("transform_null_equals", "on", False),
    ],
)
def test_what_is_not_as_it_is_with_us_is_kept_and_told(name: str, value: str, like_ours: bool) -> None:
    given = {"TimeZone": "UTC", "DateStyle": "ISO, MDY", name: value}
    assert unlike(given) == (() if like_ours else (name,))
    assert [note for note in notes(given) if f"{name} is {value}" in note] == list(notes(given))
    assert bool(notes(given)) is (not like_ours and name != "transform_null_equals")
    assert stored(kept(given)) == stored(given)
    assert stored(given)["DateStyle"].startswith("ISO, ")


def test_the_lists_agree() -> None:
    assert {*IN_TEXTS, *IN_LOOKS} <= set(PINNED)
