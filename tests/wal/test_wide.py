"""Sources of hundreds of columns, captured from the WAL."""

from __future__ import annotations

from .captured import Wal


def test_updates_of_wide_rows_are_two_rows(wal18: Wal) -> None:
    names = [f"c{n}" for n in range(300)]
    oid = wal18.table(f"CREATE TABLE t (id int, {', '.join(f'{name} text' for name in names)})", "id", *names)
    wal18.start()
    wide = ", ".join(f"repeat(md5('{name}'), 4)" for name in names)
    wal18.run(f"INSERT INTO t VALUES (1, {wide}), (2, {wide})")
    wal18.run("UPDATE t SET c1 = 'one'", "UPDATE t SET c2 = c2", "DELETE FROM t WHERE id = 2")
    wal18.check(oid, "id", *names)
    assert wal18.actions(oid) == "IIDIDID"


def test_a_row_that_just_fits_its_page_marks_its_source(wal18: Wal) -> None:
    names = [f"c{n}" for n in range(500)]
    oid = wal18.table(f"CREATE TABLE t (id int, {', '.join(f'{name} text' for name in names)})", "id", *names)
    wal18.start()
    wal18.run(f"INSERT INTO t VALUES (1, {', '.join(chr(39) + 'x' * 15 + chr(39) for _ in names)})")
    assert "row is too big" in str(wal18.fails())
    wal18.start()  # as the service does
    wal18.pass_barrier()
    assert wal18.actions(oid) == "T"
    wal18.run("INSERT INTO t (id) VALUES (2)")
    wal18.pass_barrier()
    assert wal18.actions(oid) == "TI"
