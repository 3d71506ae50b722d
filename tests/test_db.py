"""Sessions that the server ends while no one uses them."""

from __future__ import annotations

from pgtrickle import db


def test_a_session_that_the_server_has_ended_is_known_to_be(database18: str) -> None:
    with db.connect(database18) as idle, db.connect(database18) as other:
        assert db.is_usable(idle)
        other.execute("SELECT pg_terminate_backend(%s, 10000)", (idle.info.backend_pid,))
        assert not idle.closed, "no one has told it"
        assert not db.is_usable(idle)
        assert db.is_usable(other)
        other.close()
        assert not db.is_usable(other)


def test_a_path_is_looked_from_and_left_again(database18: str) -> None:
    with db.connect(database18) as conn:
        conn.execute('CREATE SCHEMA "Mine, too"')
        before = conn.execute("SHOW search_path").fetchone()
        assert db.schemas_of(conn, '"Mine, too", nowhere, public') == ["Mine, too", "public"]
        assert db.schemas_of(conn, "") == []
        with conn.transaction():
            assert db.schemas_of(conn, '"$user", public') == ["public"]
            assert conn.execute("SHOW search_path").fetchone() == before
        assert conn.execute("SHOW search_path").fetchone() == before
