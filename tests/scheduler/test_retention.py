"""What is kept of the record: the last days of all, and the last refreshes of each table however old."""

from __future__ import annotations

from pgtrickle import db
from pgtrickle.api import connect
from pgtrickle.scheduler import retention
from pgtrickle.scheduler.retention import KEPT_REFRESHES, Retention

HISTORY = """
INSERT INTO pgtrickle.pgt_refresh_history (pgt_id, status, initiated_by, started_at, finished_at, action)
SELECT t.pgt_id, s.status, 'SCHEDULER', now() - s.age, CASE WHEN s.status <> 'RUNNING' THEN now() - s.age END,
       CASE WHEN s.status <> 'RUNNING' THEN 'DIFFERENTIAL' END
FROM pgtrickle.pgt_stream_tables AS t, (VALUES ({rows})) AS s(name, status, age, number), generate_series(1, s.number)
WHERE t.pgt_name = s.name ORDER BY s.age DESC
"""


def test_what_is_old_goes_but_for_the_last(database18: str) -> None:
    rows = "), (".join(
        [
            "'busy', 'RUNNING', interval '30 days', 1",
            "'busy', 'COMPLETED', interval '8 days', 150",
            "'busy', 'COMPLETED', interval '6 days', 150",
            "'seldom', 'COMPLETED', interval '300 days', 130",
        ]
    )
    with connect(database18) as trickle, db.open_session(database18) as conn:
        conn.execute("CREATE TABLE t (id int)")
        for name in ("busy", "seldom"):
            trickle.create_stream_table(name, "SELECT id FROM t", initialize=False)
        conn.execute(db.statement(HISTORY.format(rows=rows)))
        conn.execute(
            "INSERT INTO pgtrickle.pgt_requests (kind, args, state, created_at, finished_at)"
            """ SELECT 'refresh', '{"name": "busy"}', s.state, now() - s.age, s.finished FROM (VALUES"""
            " ('DONE', interval '9 days', now() - interval '8 days'), ('DONE', interval '9 days', now()),"
            " ('PENDING', interval '9 days', NULL)) AS s(state, age, finished)"
        )
        counts = (
            "SELECT pgt_name, total_refreshes, successful_refreshes, differential_refreshes"
            " FROM pgtrickle.pg_stat_stream_tables ORDER BY 1"
        )
        before = conn.execute(db.statement(counts)).fetchall()
        assert before == [("busy", 301, 300, 300), ("seldom", 130, 130, 130)]
        Retention().keep(conn)
        assert conn.execute(db.statement(counts)).fetchall() == before, "totals do not fall"
        kept = conn.execute(
            "SELECT t.pgt_name, h.status, count(*), max(now() - h.started_at) > interval '7 days'"
            " FROM pgtrickle.pgt_refresh_history AS h JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)"
            " GROUP BY 1, 2 ORDER BY 1, 2"
        ).fetchall()
        assert kept == [
            ("busy", "COMPLETED", 150, False),
            ("busy", "RUNNING", 1, True),
            ("seldom", "COMPLETED", KEPT_REFRESHES, True),
        ]
        assert conn.execute("SELECT state FROM pgtrickle.pgt_requests ORDER BY id").fetchall() == [
            ("DONE",),
            ("PENDING",),
        ]
        assert not retention.prune(conn)


def test_it_is_done_seldom(database18: str) -> None:
    with connect(database18), db.open_session(database18) as conn:
        seldom = Retention()
        seldom.keep(conn)
        conn.execute("DROP TABLE pgtrickle.pgt_requests CASCADE")  # whoever asks for it now fails
        seldom.keep(conn)
