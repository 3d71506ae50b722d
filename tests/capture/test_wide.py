"""Sources of hundreds of columns: no write of a user fails that would succeed without us, and none is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.capture.conftest import Follow, buffered, run, table_of

from pgtrickle import db
from pgtrickle.capture import triggers
from pgtrickle.catalog.install import install
from pgtrickle.db import Connection
from pgtrickle.errors import Unsupported


@pytest.fixture
def conn(database18: str) -> Iterator[Connection]:
    """On one version: pages have one size."""
    with db.open_session(database18) as connection:
        install(connection)
        yield connection


VALUES = {
    "bigint": "{n} * 1000003 + {row}",
    "text": "repeat(md5('{row}/' || {n}), 4)",
    "numeric": "(repeat('7', 60) || {n} || '.5')::numeric + {row}",
    "name": "'{row}/' || {n}",
}


def create(conn: Connection, columns: int, type: str) -> list[str]:
    names = [f"c{n}" for n in range(columns)]
    run(conn, f"CREATE TABLE t (id int, {', '.join(f'{name} {type}' for name in names)}, unused int)")
    return names


def values(columns: int, expression: str, row: int) -> str:
    return ", ".join(expression.format(n=n, row=row) for n in range(columns))


@pytest.mark.parametrize(
    ("columns", "type", "row_mode"),
    [
        (300, "bigint", "statement"),
        (600, "bigint", "statement"),
        (790, "bigint", "row"),
        (300, "text", "statement"),
        (250, "numeric", "statement"),
        (100, "name", "row"),
    ],
)
def test_updates_of_wide_rows(conn: Connection, follow: Follow, columns: int, type: str, row_mode: str) -> None:
    names = create(conn, columns, type)
    ledger = follow("t", "id", *names, mode=row_mode)
    for row in (1, 2):
        run(conn, f"INSERT INTO t VALUES ({row}, {values(columns, VALUES[type], row)}, 0)")
    ledger.check()
    run(conn, f"UPDATE t SET ({', '.join(names)}) = (SELECT {values(columns, VALUES[type], 3)}) WHERE id = 1")
    assert not ledger.check().truncated
    run(conn, "UPDATE t SET id = id + 10, c1 = c2, c2 = NULL")
    assert not ledger.check().truncated
    written = len(buffered(conn, ledger.source))
    run(conn, "UPDATE t SET unused = 1")
    assert len(buffered(conn, ledger.source)) == written
    run(conn, "DELETE FROM t WHERE id = 11")
    assert not ledger.check().truncated


def test_a_row_that_just_fits_its_page_is_computed_anew(conn: Connection, follow: Follow) -> None:
    names = create(conn, 500, "text")
    ledger = follow("t", "id", *names)
    full = values(500, "repeat('x', 15)", 0)
    for statement in (
        f"INSERT INTO t VALUES (1, {full}, 0), (2, {full}, 0)",
        "UPDATE t SET c1 = 'y' WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
    ):
        run(conn, statement)
        assert ledger.check().truncated
    run(conn, "UPDATE t SET (" + ", ".join(names) + ") = (SELECT " + values(500, "'z'", 0) + ")")
    ledger.check()
    run(conn, "UPDATE t SET c1 = 'a'")
    assert not ledger.check().truncated  # small rows are captured as ever


def test_more_columns_than_a_buffer_can_have_are_refused(conn: Connection) -> None:
    names = create(conn, 1000, "int")
    source = table_of(conn, "t")
    triggers.require_capturable(conn, source, names[:790])
    triggers.attach(conn, source, names[:500])
    for columns in (names[:798], names[400:900]):  # too many, and too many with those that others need
        for refused in (triggers.require_capturable, triggers.attach):
            with pytest.raises(Unsupported) as caught:
                refused(conn, source, columns)
            assert caught.value.code == "PT282"
    assert db.scalar(conn, "SELECT cardinality(columns) FROM pgtrickle.pgt_change_tracking") == 500
