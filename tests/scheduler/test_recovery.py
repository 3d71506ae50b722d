"""What a killed service left behind, found by the next one."""

from __future__ import annotations

from pgtrickle import db
from pgtrickle.api import connect
from pgtrickle.refresh.lock import refresh_locks
from pgtrickle.scheduler.recovery import Recovered, recover


def test_what_is_under_way_is_left_alone_until_it_is_not(database18: str) -> None:
    with connect(database18) as trickle, db.open_session(database18) as conn, db.connect(database18) as other:
        conn.execute("CREATE TABLE t (id int)")
        for name in ("dead", "alive"):
            trickle.create_stream_table(name, "SELECT id FROM t", initialize=False)
        ids = {stream.pgt_name: stream.pgt_id for stream in trickle.status()}
        conn.execute(
            "INSERT INTO pgtrickle.pgt_refresh_history (pgt_id, status, initiated_by)"
            " SELECT pgt_id, 'RUNNING', 'SCHEDULER' FROM pgtrickle.pgt_stream_tables"
        )
        conn.execute("INSERT INTO pgtrickle.pgt_scheduler_jobs (tick, members) VALUES (now(), %s)", ([ids["dead"]],))
        for name in ids:
            conn.execute(db.statement(f"CREATE TABLE pgtrickle_state.stage_{ids[name]}_0a ()"))
        with refresh_locks(other, [ids["alive"]]):
            assert recover(conn) == Recovered(1, 1, (f"stage_{ids['dead']}_0a",), (ids["alive"],))
            assert recover(conn) == Recovered(busy=(ids["alive"],))
        assert recover(conn) == Recovered(1, 0, (f"stage_{ids['alive']}_0a",))
        assert recover(conn) == Recovered()
        assert not recover(conn)
        assert {row.status for name in ids for row in trickle.history(name)} == {"FAILED"}
