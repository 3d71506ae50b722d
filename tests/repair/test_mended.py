"""What someone dropped or deleted by hand is found by `repair` and made again; who else counted on it is told.

Two stream tables read `t`. One is repaired; the other must not go on as if all changes were in the buffer.
"""

from __future__ import annotations

import pytest

from pgtrickle.capture import change_window, handover, slot
from tests.ddl.place import Place

QUERY = "SELECT v, count(*) AS n FROM t GROUP BY v"


@pytest.fixture
def there(made18: Place) -> Place:
    made18.create("sums", QUERY)
    return made18


def oid(there: Place) -> int:
    return int(str(there.value("SELECT 't'::regclass::oid")))


def is_told(there: Place) -> bool:
    """Whether the other stream table knows that changes of `t` may be missing."""
    stream = there.stream("st")
    return (
        stream.needs_reinit
        or change_window.pending(there.connection, [oid(there)], stream.frontier)[oid(there)].truncated
    )


CAPTURE = {
    "trigger": "DROP TRIGGER pgtrickle_{oid}_insert ON t",
    "disabled": "ALTER TABLE t DISABLE TRIGGER pgtrickle_{oid}_update",
    "function": "DROP FUNCTION pgtrickle_changes.capture_{oid} CASCADE",
    "buffer": "DROP TABLE pgtrickle_changes.changes_{oid}",
    "tracking": "DELETE FROM pgtrickle.pgt_change_tracking",
    "tracking and buffer": "DELETE FROM pgtrickle.pgt_change_tracking; DROP TABLE pgtrickle_changes.changes_{oid}",
}
OWN = {
    "state": "DROP TABLE pgtrickle_state.{state}",
    "label": "COMMENT ON TABLE pgtrickle_state.{state} IS NULL",
    "sources": "DELETE FROM pgtrickle.pgt_dependencies WHERE pgt_id = {id}",
    "objects": "DELETE FROM pgtrickle.pgt_used_objects WHERE pgt_id = {id}",
    "error": "UPDATE pgtrickle.pgt_stream_tables SET status = 'ERROR', last_error = 'x' WHERE pgt_id = {id}",
}


@pytest.mark.parametrize("what", [*CAPTURE, *OWN])
def test_it_is_made_again(there: Place, what: str) -> None:
    assert there.trickle.repair("sums")[0].outcome == "sound"
    there.run("INSERT INTO t VALUES (1, 1)")
    statement, pgt_id = {**CAPTURE, **OWN}[what], there.stream("sums").pgt_id
    state = there.value(f"SELECT relname FROM pg_class WHERE relname LIKE 's\\_{pgt_id}\\_%' AND relkind = 'r'")
    there.run(*statement.format(oid=oid(there), id=pgt_id, state=state).split("; "))
    assert [each.outcome for each in there.trickle.repair("sums", refresh=False) if each.table != "the catalog"] == [
        "repaired"
    ]
    mended = there.stream("sums")
    assert mended.needs_reinit
    assert is_told(there) is (what in CAPTURE)
    there.run("INSERT INTO t VALUES (2, 2)")
    assert change_window.pending(there.connection, [oid(there)], mended.frontier)[oid(there)].captured
    again = there.trickle.repair("sums", refresh=False)[0].outcome
    assert again == ("repaired" if what == "error" else "sound")  # it is in ERROR until it was refreshed


def test_what_costs_no_refresh(there: Place) -> None:
    pgt_id = there.stream("sums").pgt_id
    there.run(f"DELETE FROM pgtrickle_internal.pgt_refresh_locks WHERE pgt_id = {pgt_id}")
    there.run("DROP INDEX sums_hash_record_extended_idx", "DROP EVENT TRIGGER pgtrickle_drop")
    (found,) = there.trickle.repair("sums")
    assert [each.rsplit(":", 1)[0] for each in found.done] == [
        "its lock was missing",
        "the index of its rows was missing",
    ]
    assert not there.stream("sums").needs_reinit
    assert there.value("SELECT noticed_by FROM pgtrickle.pgt_ddl_tracking") == "EVENT TRIGGERS"


@pytest.mark.parametrize("what", ["slot", "publication", "membership"])
def test_a_source_in_the_wal(there: Place, what: str) -> None:
    conn, source = there.connection, oid(there)
    there.run("ALTER TABLE t REPLICA IDENTITY FULL")
    handover.begin_transition(conn, source, "asked")
    handover.complete(conn, source, "caught up")
    assert there.trickle.repair("sums")[0].outcome == "sound"
    name = slot.name(conn)
    there.run(
        {
            "slot": f"SELECT pg_drop_replication_slot('{name}')",
            "publication": f"DROP PUBLICATION {name}",
            "membership": f"ALTER PUBLICATION {name} DROP TABLE t",
        }[what]
    )
    found = there.trickle.repair(refresh=False)
    assert {each.table: each.outcome for each in found}["public.sums"] == "repaired"
    assert is_told(there)
    assert there.value("SELECT cdc_mode FROM pgtrickle.pgt_change_tracking") == "TRIGGER"
    assert there.value("SELECT count(*) FROM pgtrickle_internal.pgt_slot") == 0  # it would keep WAL for no one
    assert there.trickle.repair(refresh=False)[0].outcome == "sound"


def test_a_dropped_source_is_named_and_the_rest_repaired(there: Place) -> None:
    there.run("CREATE TABLE other (a int)")
    there.create("over", "SELECT a FROM other")
    there.run("DROP TABLE other", f"DROP TRIGGER pgtrickle_{oid(there)}_insert ON t")
    found = {each.table: each for each in there.trickle.repair(refresh=False)}
    assert {name for name, each in found.items() if each.outcome == "repaired"} == {"public.sums", "public.st"}
    assert "other" in str(found["public.over"].error)
    assert there.stream("over").status == "ERROR"
