"""What a task's connection keeps from one table to the next, and what it must not."""

from __future__ import annotations

from pgtrickle.spark import worker
from pgtrickle.spark.worker import Server, Snapshot


def test_settings_are_those_of_the_table_alone(database18: str) -> None:
    asked = "SELECT current_setting('TimeZone'), current_setting('DateStyle'), current_setting('pgtrickle.now', true)"

    def seen(**settings: str) -> tuple[object, ...]:
        at = Snapshot(Server(database18), None, {name.replace("__", "."): value for name, value in settings.items()})
        with at.cursor() as cursor:
            cursor.execute(asked)
            row = cursor.fetchone()
        assert row is not None
        return tuple(row)

    try:
        plain = seen()
        first = seen(TimeZone="Asia/Tokyo", pgtrickle__now="2026-01-01 00:00:00+00")
        assert first == ("Asia/Tokyo", plain[1], "2026-01-01 00:00:00+00")
        assert seen(DateStyle="SQL, DMY") == (plain[0], "ISO, DMY", "")
        assert seen() == (*plain[:2], "")
    finally:
        worker._close_kept(database18)
