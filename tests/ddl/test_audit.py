"""The audit finds what no refresh notices: rows of a stream table, of its state or of a buffer changed by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgtrickle.config import Settings
from pgtrickle.scheduler.audit import Audit
from tests.ddl.place import Place

EACH_ROUND = Settings(audit_interval=1, audit_sample=4)


@pytest.fixture
def audit(made18: Place) -> Iterator[Audit]:
    found = Audit(made18.dsn)
    yield found
    found.close()


def rounds(audit: Audit, count: int, settings: Settings = EACH_ROUND) -> None:
    for _ in range(count):
        audit._next = 0.0
        audit.round(settings)


def test_a_row_put_in_by_hand_is_found_within_as_many_audits_as_there_are_parts(made18: Place, audit: Audit) -> None:
    made18.run("INSERT INTO st VALUES (1, 2)")
    rounds(audit, 4, Settings())
    assert made18.marked() is None, "off by default"
    with made18.alerts() as told:
        rounds(audit, 4)
    assert [(each["event"], each["table"], str(each["missing"]), str(each["extra"])) for each in told] == [
        ("audit_failed", "public.st", "0", "1")
    ]
    assert made18.marked() == "an audit found 0 rows missing and 1 too many"
    assert made18.stream().last_error == "PT352: an audit found 0 rows missing and 1 too many"
    assert made18.stream().status == "ACTIVE"
    last = made18.trickle.history("st", 1)[0]
    assert (last.status, last.error_code) == ("FAILED", "PT352")
    with made18.alerts() as told:
        rounds(audit, 4)
    assert told == [], "told once: it is to be computed anew"


def test_changes_that_are_pending_are_no_fault_and_lost_ones_are(made18: Place, audit: Audit) -> None:
    """Each table in its turn; a buffer with rows removed is found by what it no longer explains."""
    made18.create("numbers", "SELECT id, w::numeric AS n FROM t")
    made18.run("INSERT INTO t VALUES (1, 1, '1.0'), (2, 2, '1.0')")
    rounds(audit, 8)
    assert made18.marked("st") is made18.marked("numbers") is None
    made18.run("INSERT INTO numbers VALUES (1, 1.00), (2, 1.0)")  # as if refreshed, but for how one of them looks
    made18.run("UPDATE pgtrickle.pgt_stream_tables SET frontier = pg_current_snapshot() WHERE pgt_name = 'numbers'")
    rounds(audit, 8)
    assert made18.marked("numbers") is None, "equal, and to be told apart only by looks"
    buffer = made18.value("SELECT buffer_name FROM pgtrickle.pgt_change_tracking")
    made18.run(f"DELETE FROM {buffer if '.' in str(buffer) else f'pgtrickle_changes.{buffer}'}")
    rounds(audit, 8)
    assert made18.marked("st") == "an audit found 2 rows missing and 0 too many"
