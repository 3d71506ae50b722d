"""Whatever goes wrong in a call of the Python interface is a `pgtrickle.Error`, with a code and a message.

Walks every public method: on a closed Trickle, with arguments of every wrong kind, after the server ended the session,
and when it does not let us in again. A method that is not in `CALLS` fails the first test.
"""

from __future__ import annotations

import inspect
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql

import pgtrickle
from pgtrickle import Trickle
from pgtrickle.refresh.failure import from_server

ORDERS = "SELECT id FROM orders"
CALLS: dict[str, dict[str, object]] = {
    "alter_stream_table": {"name": "made", "schedule": "3m", "status": "ACTIVE"},
    "cdc_history": {"max_rows": 3},
    "cdc_status": {},
    "circle": {"name": "made"},
    "close": {},
    "capture_advice": {"name": "made"},
    "create_or_replace_stream_table": {"name": "made", "query": ORDERS, "initialize": False},
    "create_stream_table": {"name": "other", "query": ORDERS, "initialize": False},
    "drop_follower": {"name": "nobody"},
    "drop_stream_table": {"name": "nothing"},
    "exists": {"name": "made"},
    "explain": {"name": "made", "analyze": True},
    "doctor": {},
    "followers": {},
    "health": {},
    "history": {"name": "made", "max_rows": 3},
    "immediate_sources": {},
    "in_order": {},
    "refresh_stream_table": {"name": "nothing"},
    "repair": {"*names": "made"},
    "slot_health": {},
    "status": {"name": "made"},
    "verify": {"*names": "made"},
}
WRONG: tuple[object, ...] = (
    *(None, 7, -1, 0, 2**70, 1.5, float("nan"), True, b"made", object(), ["made"], {}),
    *("", " ", "\0", "a\0b", "\ud800", "a.b.c", '"', "nowhere.t", "x" * 300, "Ünï", "%s", "'; SELECT 1 --"),
)


@pytest.fixture
def trickle(database18: str) -> Iterator[Trickle]:
    with psycopg.connect(database18, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    with pgtrickle.connect(database18) as opened:
        opened.create_stream_table("made", ORDERS, initialize=False)
        yield opened


def call(trickle: Trickle, name: str, given: dict[str, Any]) -> object:
    several = (given["*names"],) if "*names" in given else ()
    return getattr(trickle, name)(*several, **{key: value for key, value in given.items() if key != "*names"})


def outcome(action: Callable[[], object]) -> pgtrickle.Error | None:
    """What it raised: one of ours, or nothing. Anything else goes on to fail the test."""
    try:
        action()
    except pgtrickle.Error as error:
        raised = error
    else:
        return None
    assert raised.message
    assert raised.code.startswith("PT")
    return raised


def test_every_public_method_is_walked() -> None:
    public = {name for name, _ in inspect.getmembers(Trickle, inspect.isfunction) if not name.startswith("_")}
    assert set(CALLS) == public


def test_a_closed_one_says_so(trickle: Trickle) -> None:
    trickle.close()
    for name, given in CALLS.items():
        error = outcome(partial(call, trickle, name, given))
        assert name == "close" or (error is not None and error.code == "PT480" and error.hint), name
    with pytest.raises(pgtrickle.Error, match="closed"), trickle:
        pass
    trickle.close()


def test_arguments_of_any_kind(trickle: Trickle) -> None:
    """For each argument of each method: every wrong value in its place, the others right."""
    for name in CALLS:
        for parameter in list(inspect.signature(getattr(trickle, name)).parameters.values()):
            key = f"*{parameter.name}" if parameter.kind is parameter.VAR_POSITIONAL else parameter.name
            for value in WRONG:
                if key == "initialize" and value is True:
                    continue  # right, and it would start Spark
                given = {**CALLS[name], key: value}
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", pgtrickle.SessionWarning)
                    error = outcome(partial(call, trickle, name, given))
                assert error is None or error.code != "PT489", f"{name}({key}={value!r}): {error}"
    assert trickle.exists("made"), "it goes on working"


def test_arguments_of_connect(database18: str) -> None:
    for value in WRONG:
        if value is None or (isinstance(value, str) and not value.strip()):
            continue  # the database that the environment names
        error = outcome(partial(pgtrickle.connect, value))  # type: ignore[arg-type]  # wrong on purpose
        assert error is not None, repr(value)
        assert error.code != "PT489", repr(value)
    for wrong in ({"spark": "local[*]"}, {"master": 5}, {"install_catalog": "no"}):
        error = outcome(partial(pgtrickle.connect, database18, **wrong))
        assert error is not None, wrong
        assert error.code in {"PT481", "PT483"}


def test_a_session_that_the_server_ended_is_opened_again_and_one_it_refuses_is_an_error(
    trickle: Trickle, database18: str, server18: Any
) -> None:
    names = [name for name in CALLS if name != "close"]
    with psycopg.connect(server18.dsn, autocommit=True) as admin:

        def end_all() -> None:
            admin.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s",
                (trickle.connection.info.dbname,),
            )

        for name in names:
            end_all()
            error = outcome(partial(call, trickle, name, CALLS[name]))
            assert error is None or error.code in {"PT301", "PT552"}, f"{name}: {error}"
        database = sql.Identifier(trickle.connection.info.dbname)
        admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(database))
        try:
            end_all()
            for name in names:
                error = outcome(partial(call, trickle, name, CALLS[name]))
                assert isinstance(error, pgtrickle.ServerError), name
        finally:
            admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(database))
    assert trickle.exists("made")


def test_a_server_that_goes_in_the_middle(trickle: Trickle, database18: str) -> None:
    """The call waits for a lock when its session is ended."""
    with psycopg.connect(database18) as other:
        other.execute("LOCK TABLE pgtrickle.pgt_stream_tables IN ACCESS EXCLUSIVE MODE")
        caught: list[pgtrickle.Error | None] = []
        waiting = threading.Thread(target=lambda: caught.append(outcome(lambda: trickle.status("made"))))
        waiting.start()
        with psycopg.connect(database18, autocommit=True) as admin:
            while not admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid = ANY (%s) AND wait_event_type = 'Lock'",
                (list(trickle.backend_pids),),
            ).fetchall():
                pass
        waiting.join()
    assert [error and error.code for error in caught] == ["PT403"]


def test_it_is_refused_in_a_forked_process(trickle: Trickle) -> None:
    """The child would speak on the same socket as its parent."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        error = outcome(trickle.status)
        os.write(writing, (error.code if error else "none").encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"PT482"
    assert trickle.exists("made")


def test_a_role_without_rights_is_an_error_of_ours(database18: str) -> None:
    with psycopg.connect(database18, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS interface_guest")
        connection.execute("CREATE ROLE interface_guest LOGIN PASSWORD 'guest'")
    guest = psycopg.conninfo.make_conninfo(database18, user="interface_guest", password="guest")
    try:
        error = outcome(lambda: pgtrickle.connect(guest))
    finally:
        with psycopg.connect(database18, autocommit=True) as connection:
            connection.execute("DROP ROLE interface_guest")
    assert isinstance(error, pgtrickle.ServerError)
    assert error.code == "PT402"


def test_rights_that_a_service_lacks_are_those_of_the_catalog(database18: str) -> None:
    with Trickle(database18) as trickle:
        trickle.connection.execute("CREATE ROLE interface_stranger; GRANT pgtrickle_user TO interface_stranger")
        try:
            trickle.connection.execute("SET ROLE interface_stranger")
            with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
                trickle.connection.execute("DELETE FROM pgtrickle.pgt_leases")
        finally:
            trickle.connection.execute("RESET ROLE; DROP ROLE interface_stranger")
    error = from_server(caught.value)
    assert (error.code, "owner of the catalog" in str(error.hint)) == ("PT402", True)
