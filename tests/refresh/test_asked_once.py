"""What a warm refresh does not ask PostgreSQL again, or does not have it plan again."""

from __future__ import annotations

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.refresh.gather_facts import KnownTables, gather

REFRESHES = 8
"""A statement is prepared when it has been sent five times."""


def test_what_was_prepared_is_not_forgotten(database18: str) -> None:
    """At each DROP and each ROLLBACK psycopg forgets all of a session's."""
    with Trickle(database18) as trickle, db.open_session(database18) as conn:
        trickle._refresher.without_spark = True
        conn.execute("CREATE TABLE t (k int, v int)")
        trickle.create_stream_table("sums", "SELECT k, sum(v) AS s FROM t GROUP BY k", refresh_mode="DIFFERENTIAL")
        for number in range(REFRESHES):
            conn.execute("INSERT INTO t VALUES (1, %s)", (number,))
            assert trickle.refresh_stream_table("sums").action == "DIFFERENTIAL"
        connections = trickle._refresher.connections()
        for session, statement in (
            (connections.writer, "UPDATE pgtrickle.pgt_stream_tables"),
            (connections.reader, "count(*), coalesce(bool_or(action = 'T')"),
            (connections.aside, "INSERT INTO pgtrickle.pgt_refresh_history"),
            (trickle._connection, "current_schemas"),
        ):
            assert statement in prepared(session), statement
        assert conn.execute("SELECT k, s FROM sums").fetchall() == [(1, sum(range(REFRESHES)))]


def prepared(session: db.Connection) -> str:
    return str(db.scalar(session, "SELECT string_agg(statement, ' ') FROM pg_prepared_statements"))


def test_indexes_are_asked_for_until_they_change(database18: str) -> None:
    with db.connect(database18) as conn:
        conn.execute("CREATE TABLE public.t (id int PRIMARY KEY, k int, v int)")
        conn.execute("INSERT INTO public.t SELECT g, g % 10, g FROM generate_series(1, 1000) AS g")
        conn.execute("ANALYZE public.t")
        oid = int(str(db.scalar(conn, "SELECT 'public.t'::regclass::oid")))
        known = KnownTables()

        def indexed() -> dict[str, float]:
            found = gather(conn, [oid], {}, known).tables[oid]
            assert found == gather(conn, [oid], {}).tables[oid], "it is as if asked for the first time"
            return dict(found.indexed)

        assert indexed() == {"id": 1.0}
        conn.execute("CREATE INDEX by_k ON public.t (k)")
        assert indexed() == {"id": 1.0, "k": 100.0}
        conn.execute("ALTER TABLE public.t RENAME k TO key")
        assert indexed() == {"id": 1.0, "key": 100.0}
        conn.execute("INSERT INTO public.t SELECT g, g, g FROM generate_series(1001, 2000) AS g; ANALYZE public.t")
        assert indexed()["key"] < 3
        conn.execute("DROP INDEX public.by_k")
        assert indexed() == {"id": 1.0}
        conn.execute("INSERT INTO public.t SELECT g, 1, 1 FROM generate_series(2001, 9000) AS g")
        assert gather(conn, [oid], {}, known).tables[oid].rows > 5000, "sizes are of now"
