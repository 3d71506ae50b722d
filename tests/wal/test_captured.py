"""Whether a source is captured is one question, whoever asks it: with the changes of a window, or of many at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgtrickle.capture import handover, slot
from pgtrickle.capture.idle_windows import quiet
from pgtrickle.db import statement

from .world import World, drop_slot, world


@pytest.fixture
def made(database18: str) -> Iterator[World]:
    with world(database18) as it:
        handover.begin_transition(it.conn, it.oid, "asked")
        handover.complete(it.conn, it.oid, "caught up")
        yield it


def _is_quiet(made: World) -> bool:
    sides = made.sides()
    assert sides is not None
    return bool(quiet(made.conn, {(made.oid, made.frontier)}, made.now(), {made.oid: sides}))


@pytest.mark.parametrize(
    "lost",
    [
        "ALTER PUBLICATION {name} SET (publish = 'insert')",
        "ALTER PUBLICATION {name} DROP TABLE t",
        "ALTER TABLE t DISABLE TRIGGER ALL",
        "DROP PUBLICATION {name}",
    ],
)
def test_both_say_that_it_is_not(made: World, lost: str) -> None:
    assert made.pending().captured
    assert _is_quiet(made)
    made.conn.execute(statement(lost.format(name=slot.name(made.conn))))
    assert not made.pending().captured
    assert not _is_quiet(made)


def test_a_publication_that_is_as_it_was_again_has_missed_what_came_between(made: World) -> None:
    name = slot.name(made.conn)
    made.conn.execute(statement(f"ALTER PUBLICATION {name} SET (publish = 'insert')"))
    made.conn.execute(statement(f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')"))
    assert not made.pending().captured
    assert not _is_quiet(made)


def test_both_say_so_of_a_lost_slot(made: World) -> None:
    assert _is_quiet(made)
    drop_slot(made)
    assert not made.pending().captured
    assert not _is_quiet(made)
