"""wait_for_request: waiting inside a transaction, for what such a one can see done, and for nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.db import Connection
from pgtrickle.scheduler.request_executor import carry_out
from tests.scheduler.conftest import World

pytestmark = pytest.mark.parametrize("server", [18], indirect=True, ids=["pg18"])


def created(conn: Connection, name: str) -> int:
    call = "SELECT pgtrickle.create_stream_table(%s, 'SELECT id FROM orders', initialize => false)"
    row = conn.execute(call, (name,)).fetchone()
    assert row is not None
    return int(str(row[0]))


def wait(conn: Connection, number: int, timeout: str = "30 s") -> object:
    row = conn.execute("SELECT pgtrickle.wait_for_request(%s, %s)", (number, timeout)).fetchone()
    assert row is not None
    return row[0]


def code(act: Callable[[], object]) -> str | None:
    with pytest.raises(psycopg.Error) as caught:
        act()
    return caught.value.sqlstate


def served_meanwhile(world: World, act: Callable[[], object]) -> object:
    """What is done in one session while another carries requests out."""
    with Trickle(world.dsn) as service:
        working = threading.Timer(0.3, lambda: carry_out(service.connection, service))
        working.start()
        try:
            return act()
        finally:
            working.join(60)


def test_in_a_transaction_it_waits_for_what_was_asked_for_before(world: World) -> None:
    number = created(world.admin, "ids")
    with world.admin.transaction():
        world.admin.execute("CREATE TABLE mine (id int)")  # the transaction has an id, and something to lose
        assert served_meanwhile(world, lambda: wait(world.admin, number)) == {}
        assert db.scalar(world.admin, "SELECT count(*) FROM ids") == 0, "its table is there to be read"
    assert db.scalar(world.admin, "SELECT to_regclass('mine') IS NOT NULL") is True
    assert wait(world.admin, number, "0 s") == {}, "and so it does outside of one"


def test_it_is_of_use_in_a_function(world: World) -> None:
    number = created(world.admin, "ids")
    world.run(
        "CREATE FUNCTION wait_here(number bigint) RETURNS text LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pgtrickle.wait_for_request(number); RETURN ''done''; END'"
    )
    assert served_meanwhile(world, lambda: db.scalar(world.admin, f"SELECT wait_here({number})")) == "done"


def test_what_this_transaction_asked_for_is_refused_at_once(world: World) -> None:
    with world.admin.transaction(force_rollback=True):
        number = created(world.admin, "ids")
        with world.admin.transaction():
            inner = created(world.admin, "more")
        for each in (number, inner):
            said = "was made in this transaction"
            with pytest.raises(psycopg.Error, match=said) as caught, world.admin.transaction():
                wait(world.admin, each)
            assert caught.value.sqlstate == "PT380"
    with world.admin.transaction():
        number = created(world.admin, "ids")
    with world.admin.transaction(force_rollback=True):
        assert code(lambda: wait(world.admin, number, "0 s")) == "PT382", "it waits: the request is committed"


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_that_keeps_its_snapshot_is_refused_at_once(world: World, level: str) -> None:
    number = created(world.admin, "ids")
    with world.admin.transaction(force_rollback=True):
        world.admin.execute(db.statement(f"SET TRANSACTION ISOLATION LEVEL {level}"))
        with pytest.raises(psycopg.Error, match=level) as caught:
            wait(world.admin, number)
        assert caught.value.sqlstate == "PT457"
    world.run("UPDATE pgtrickle.pgt_requests SET state = 'DONE', result = '{{}}', finished_at = now()")
    with world.admin.transaction():
        world.admin.execute(db.statement(f"SET TRANSACTION ISOLATION LEVEL {level}"))
        assert wait(world.admin, number) == {}, "it is done in that snapshot"


def test_its_error_is_raised_and_none_is_none(world: World) -> None:
    number = created(world.admin, "ids")
    world.admin.execute(
        "UPDATE pgtrickle.pgt_requests SET state = 'FAILED', error_code = 'PT106', error = 'no column x',"
        " finished_at = now()"
    )
    assert code(lambda: wait(world.admin, number)) == "PT106"
    assert code(lambda: wait(world.admin, 0)) == "PT381"
    assert db.scalar(world.admin, "SELECT pgtrickle.wait_for_request(NULL)") is None


def test_it_says_that_its_own_transaction_is_in_the_way(world: World) -> None:
    """Seen as a member of pgtrickle_user, who may not look into other sessions."""
    number = created(world.admin, "ids")
    heard: list[str] = []
    with world.session(world.ann) as ann, db.connect(world.dsn, application_name="pgtrickle writer") as service:
        ann.add_notice_handler(lambda notice: heard.append(str(notice.message_primary)))
        with ann.transaction():
            ann.execute("LOCK TABLE orders IN ROW EXCLUSIVE MODE")
            stuck = threading.Thread(target=lambda: service.execute("LOCK TABLE public.orders IN SHARE MODE"))
            with service.transaction(force_rollback=True):
                stuck.start()
                assert code(lambda: wait(ann, number, "1 s")) == "PT382"
            stuck.join(30)
    assert heard == ["a session of pgtrickle waits for a lock that this transaction has"]
