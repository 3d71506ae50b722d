"""The parts of a window: where nothing came after the snapshot, it has but one."""

from __future__ import annotations

from pgtrickle.physical.window_parts import Changed, WindowPart


def test_without_late_changes_nothing_is_divided() -> None:
    changed = Changed(early=frozenset({1, 2}))
    assert changed.within(WindowPart.EARLY) == changed.within(WindowPart.WHOLE) == {1, 2}
    assert changed.within(WindowPart.LATE) == frozenset()
    assert not changed.divides([1, 2], WindowPart.EARLY)
    assert not changed.divides([1, 2], WindowPart.WHOLE)


def test_tables_with_changes_on_both_sides_are_divided_by_either_part() -> None:
    changed = Changed(early=frozenset({1, 2}), late=frozenset({2, 3}))
    assert [changed.divides([table], WindowPart.EARLY) for table in (1, 2, 3)] == [False, True, True]
    assert [changed.divides([table], WindowPart.LATE) for table in (1, 2, 3)] == [True, True, False]
    assert not changed.divides([1, 2, 3], WindowPart.WHOLE)
