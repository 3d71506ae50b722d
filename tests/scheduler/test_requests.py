"""Requests carried out: in order, each with its result or error, with the requester's rights, and after a crash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg
import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.db import Connection
from pgtrickle.errors import StateError
from pgtrickle.fence import Fence, LeaseLost
from pgtrickle.refresh.decide import Action
from pgtrickle.refresh.definition.repair import Repair
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.scheduler.request_executor import MOST_ATTEMPTS, carry_out, waiting
from tests.scheduler.conftest import World, leading


@dataclass
class Recorder:
    """Stands in for the API where only the order, the arguments and the errors matter: keeps a list of the calls."""

    calls: list[tuple[str, object]] = field(default_factory=list)
    raises: list[Exception | None] = field(default_factory=list)

    def _called(self, kind: str, what: object) -> None:
        self.calls.append((kind, what))
        error = self.raises.pop(0) if self.raises else None
        if error is not None:
            raise error

    def create_stream_table(self, name: str, query: str, *given: object, **options: object) -> RefreshResult | None:
        raise AssertionError("creation is tested with the real API")

    def alter_stream_table(self, name: str, **given: object) -> None:
        self._called("alter", (name, given))

    def drop_stream_table(self, name: str, cascade: bool = False) -> list[str]:
        self._called("drop", (name, cascade))
        return [name]

    def refresh_stream_table(self, name: str, *, full: bool = False) -> RefreshResult:
        self._called("refresh", f"{name} in full" if full else name)
        return RefreshResult(Action.DIFFERENTIAL, "it changed", 3, 1, duration_ms=1.23456)

    def repair(self, *names: str) -> list[Repair]:
        self._called("repair", names)
        error = StateError("its source is gone", code="PT100", hint="make it") if len(self.calls) > 1 else None
        return [Repair("the catalog", ("tidied",)), Repair(names[0], ("mended",), error)]


@pytest.fixture
def totals(world: World) -> World:
    """A stream table `totals` of ann's, as the catalog has it, which is hers too."""
    world.installed_by(world.ann)
    world.run("CREATE TABLE totals (id int)", "ALTER TABLE totals OWNER TO {ann}")
    world.admin.execute(
        "INSERT INTO pgtrickle.pgt_stream_tables (pgt_relid, pgt_schema, pgt_name, defining_query, normalized_query,"
        " refresh_mode, effective_mode, search_path)"
        " VALUES ('totals'::regclass, 'public', 'totals', 'q', 'q', 'FULL', 'FULL', 'public')"
    )
    return world


@pytest.fixture
def service(totals: World) -> Iterator[Connection]:
    """The session of a service with ann's login."""
    with totals.session(totals.ann) as session:
        yield session


def ask(world: World, call: str, role: str | None = None) -> int:
    with world.session(role or world.ann) as session:
        return int(str(db.scalar(session, f"SELECT pgtrickle.{call}")))


def insert(world: World, role: str, kind: str, args: str) -> None:
    """A request without the functions and their checks: whoever may call those may do this too."""
    with world.session(role) as session:
        session.execute("INSERT INTO pgtrickle.pgt_requests (kind, args) VALUES (%s, %s)", (kind, args))


def outcome(conn: Connection, number: int | None = None) -> tuple[object, ...]:
    row = conn.execute(
        "SELECT state, error_code, error, result FROM pgtrickle.pgt_requests"
        " WHERE id = coalesce(%s, (SELECT max(id) FROM pgtrickle.pgt_requests))",
        (number,),
    ).fetchone()
    assert row is not None
    return row


def test_in_order_each_with_its_result(totals: World, service: Connection) -> None:
    recorder = Recorder()
    first = ask(totals, "refresh_stream_table('totals')")
    second = ask(totals, "alter_stream_table('totals', schedule => '5s', query => 'SELECT id FROM orders')")
    third = ask(totals, "drop_stream_table('totals', cascade => true)")
    assert carry_out(service, recorder) == 3
    assert recorder.calls == [
        ("refresh", '"public"."totals"'),
        ("alter", ('"public"."totals"', {"schedule": "5s", "query": "SELECT id FROM orders"})),
        ("drop", ('"public"."totals"', True)),
    ]
    refreshed = {"action": "DIFFERENTIAL", "reason": "it changed", "rows_inserted": 3, "rows_deleted": 1}
    refreshed |= {"changes_read": 0, "phases": {}}
    assert outcome(totals.admin, first) == ("DONE", None, None, {**refreshed, "duration_ms": 1.235})
    assert outcome(totals.admin, second) == ("DONE", None, None, {})
    assert outcome(totals.admin, third) == ("DONE", None, None, {"dropped": ['"public"."totals"']})
    assert carry_out(service, recorder) == 0
    with totals.session(totals.ann) as ann:
        ann.execute(db.statement(f"CALL pgtrickle.wait_for({third})"))


def test_a_failure_is_the_requests_and_the_next_goes_on(totals: World, service: Connection) -> None:
    bug = ZeroDivisionError("a bug of ours")
    recorder = Recorder(
        raises=[StateError("it is busy", code="PT327", hint="wait"), psycopg.errors.DiskFull("full"), bug]
    )
    numbers = [ask(totals, "refresh_stream_table('totals')") for _ in range(4)]
    with pytest.raises(ZeroDivisionError):
        carry_out(service, recorder)
    assert carry_out(service, recorder) == 1
    found = [outcome(totals.admin, number)[:3] for number in numbers]
    assert found[0] == ("FAILED", "PT327", "it is busy")
    assert found[1][:2] == ("FAILED", "PT340")
    assert found[2] == ("FAILED", "PT385", "ZeroDivisionError: a bug of ours")
    assert found[3][0] == "DONE"


def test_one_service_of_a_login_at_a_time(totals: World, service: Connection) -> None:
    ask(totals, "refresh_stream_table('totals')")
    login = str(db.scalar(service, "SELECT session_user"))
    totals.admin.execute("INSERT INTO pgtrickle.pgt_leases (role_name, epoch) VALUES (%s, 8)", (login,))
    with pytest.raises(LeaseLost):
        carry_out(service, Recorder(), Fence(login, "service", 7))
    assert carry_out(service, Recorder(), Fence(login, "service", 8)) == 1


def dead(world: World, attempts: int) -> None:
    world.admin.execute("UPDATE pgtrickle.pgt_requests SET state = 'RUNNING', attempts = %s", (attempts,))


def test_what_a_dead_service_was_at_is_taken_up_again(totals: World, service: Connection) -> None:
    ask(totals, "refresh_stream_table('totals')")
    dead(totals, 1)
    recorder = Recorder()
    assert carry_out(service, recorder) == 1
    assert recorder.calls == [("refresh", '"public"."totals"')]
    dropping = ask(totals, "drop_stream_table('totals')")
    totals.run("DELETE FROM pgtrickle.pgt_stream_tables")
    totals.admin.execute("UPDATE pgtrickle.pgt_requests SET state = 'RUNNING', attempts = 1 WHERE id = %s", (dropping,))
    assert carry_out(service, recorder) == 1
    assert outcome(totals.admin, dropping)[0] == "DONE", "the dead one had dropped it already"


def test_a_request_that_kills_the_service_again_and_again_has_failed(totals: World, service: Connection) -> None:
    ask(totals, "refresh_stream_table('totals')")
    dead(totals, MOST_ATTEMPTS)
    recorder = Recorder()
    assert carry_out(service, recorder) == 0
    assert recorder.calls == []
    assert outcome(totals.admin)[:2] == ("FAILED", "PT383")


def test_a_repair_says_what_it_did_or_fails(totals: World, service: Connection) -> None:
    recorder = Recorder()
    for _ in range(2):
        ask(totals, "repair_stream_table('totals')")
    assert carry_out(service, recorder) == 2
    assert recorder.calls == [("repair", ('"public"."totals"',))] * 2
    found = totals.admin.execute("SELECT state, error_code, hint, result FROM pgtrickle.pgt_requests ORDER BY id")
    assert found.fetchall() == [
        ("DONE", None, None, {"outcome": "repaired", "done": ["tidied", "mended"]}),
        ("FAILED", "PT100", "make it", None),
    ]


def test_a_lost_connection_leaves_the_request_to_the_next(totals: World, service: Connection) -> None:
    number = ask(totals, "refresh_stream_table('totals')")
    with totals.session(totals.ann) as lost:

        class Cut(Recorder):
            def refresh_stream_table(self, name: str, *, full: bool = False) -> RefreshResult:
                lost.close()
                raise psycopg.OperationalError("the connection is lost")

        with pytest.raises(psycopg.OperationalError):
            carry_out(lost, Cut())
    assert outcome(totals.admin, number)[0] == "RUNNING"
    assert carry_out(service, Recorder()) == 1
    assert outcome(totals.admin, number)[0] == "DONE"


def test_arguments_that_no_function_wrote_are_errors_of_the_request(totals: World, service: Connection) -> None:
    recorder = Recorder()
    for kind, args in (
        ("drop", '{"name": "totals", "cascade": "yes"}'),
        ("alter", '{"name": "totals", "query": 5}'),
        ("create", '{"name": "t"}'),
        ("refresh", '{"name": 7}'),
    ):
        insert(totals, totals.ann, kind, args)
        assert carry_out(service, recorder) == 1
        assert outcome(totals.admin)[:2] == ("FAILED", "PT015")
    assert recorder.calls == []


def owner_of(conn: Connection, table: str) -> object:
    return db.scalar(conn, f"SELECT pg_get_userbyid(relowner)::text FROM pg_class WHERE oid = '{table}'::regclass")


def test_a_life_by_requests_without_superuser(world: World) -> None:
    """The service has the login of ann, an ordinary role that owns the source and comes to own the stream table."""
    world.installed_by(world.ann)
    world.run("CREATE SCHEMA {ann} AUTHORIZATION {ann}")
    with Trickle(world.dsn_of(world.ann)) as trickle:
        service = trickle._connection
        ask(
            world,
            "create_stream_table('totals', 'SELECT id FROM orders', initialize => false,"
            " schedule => '5s', diamond_consistency => 'none', cdc_mode => 'trigger')",
        )
        assert carry_out(service, trickle) == 1
        assert outcome(world.admin) == ("DONE", None, None, {})
        (stream,) = trickle.status()
        assert (str(stream), stream.schedule, stream.requested_cdc_mode) == (f"{world.ann}.totals", "5s", "trigger")
        assert owner_of(world.admin, f"{world.ann}.totals") == world.ann
        assert db.scalar(world.admin, "SELECT diamond_consistency FROM pgtrickle.pgt_stream_tables") == "none"
        assert db.scalar(service, "SHOW search_path") == db.OWN_PATH, "the service has its own"
        ask(
            world,
            "alter_stream_table('totals', query => 'SELECT amount FROM orders', diamond_schedule_policy => 'slowest')",
        )
        assert carry_out(service, trickle) == 1
        assert outcome(world.admin)[0] == "DONE"
        assert owner_of(world.admin, f"{world.ann}.totals") == world.ann, "other columns are another table, still hers"
        ask(world, "drop_stream_table('totals')")
        assert carry_out(service, trickle) == 1
        assert outcome(world.admin) == ("DONE", None, None, {"dropped": [f"{world.ann}.totals"]})
        assert trickle.status() == ()


def test_requests_of_a_role_that_the_service_does_not_serve_wait(world: World) -> None:
    """A superuser's service carries out nothing for others, whatever they have written into the table of requests."""
    world.run("GRANT CREATE ON SCHEMA public TO {eve}", "CREATE VIEW peep AS SELECT id FROM secret")
    with Trickle(world.dsn) as trickle:
        trickle.create_stream_table("mine", "SELECT id FROM secret", initialize=False)
        insert(world, world.eve, "create", '{"name": "got", "query": "SELECT id FROM secret", "initialize": false}')
        insert(world, world.eve, "create", '{"name": "got", "query": "SELECT id FROM peep", "initialize": false}')
        insert(world, world.eve, "alter", '{"name": "mine", "schedule": "1d"}')
        insert(world, world.eve, "refresh", '{"name": "public.mine"}')
        insert(world, world.eve, "drop", '{"name": "mine", "cascade": true}')
        assert not waiting(trickle._connection)
        assert carry_out(trickle._connection, trickle) == 0
        assert [row[1:] for row in world.requests()] == [("PENDING", None)] * 5
        assert [(str(stream), stream.schedule) for stream in trickle.status()] == [("public.mine", "1m")]
        assert db.scalar(world.admin, "SELECT to_regclass('got')") is None


def test_only_owners_get_what_they_ask_for(world: World) -> None:
    """A service that serves two roles, as both have all of its rights, still tells whose table it is."""
    world.installed_by(world.service)
    world.run(
        "GRANT {service} TO {ann}, {eve}",
        "CREATE TABLE hers (id int)",
        "ALTER TABLE hers OWNER TO {ann}",
        "INSERT INTO pgtrickle.pgt_stream_tables (pgt_relid, pgt_schema, pgt_name, defining_query, normalized_query,"
        " refresh_mode, effective_mode, search_path)"
        " VALUES ('hers'::regclass, 'public', 'hers', 'q', 'q', 'FULL', 'FULL', 'public')",
    )
    recorder = Recorder()
    with world.session(world.service) as service:
        for kind in ("alter", "refresh", "drop"):
            insert(world, world.eve, kind, '{"name": "public.hers"}')
        assert carry_out(service, recorder) == 3
        assert [row[1:] for row in world.requests()] == [("FAILED", "PT402")] * 3
        insert(world, world.ann, "refresh", '{"name": "public.hers"}')
        assert carry_out(service, recorder) == 1
        assert outcome(world.admin)[0] == "DONE"
    assert recorder.calls == [("refresh", '"public"."hers"')]


def test_names_mean_what_they_mean_to_the_requester(world: World) -> None:
    """A table of the same name that only the service sees is not read."""
    world.installed_by(world.ann)
    world.run("CREATE SCHEMA {ann} AUTHORIZATION {ann}", "CREATE TABLE {ann}.orders (hidden text)")
    with Trickle(world.dsn_of(world.ann)) as trickle:
        assert db.schemas_of(trickle._connection, db.caller(trickle._connection).search_path)[0] == world.ann
        world.admin.execute("SELECT pgtrickle.create_stream_table('t', 'SELECT * FROM orders', initialize => false)")
        assert carry_out(trickle._connection, trickle) == 1
        assert outcome(world.admin)[:3] == ("DONE", None, None)
        columns = world.admin.execute("SELECT * FROM public.t").description
        assert owner_of(world.admin, "t") == world.ann, "who may not give it away keeps it: a superuser has her rights"
    assert [column.name for column in columns or ()] == ["id", "amount"]


def test_a_request_waits_for_the_service_of_its_role(world: World) -> None:
    """Of two services that serve a role, the one with its very login takes its requests."""
    world.installed_by(world.service)
    world.run("GRANT {service} TO {ann}")
    insert(world, world.ann, "refresh", '{"name": "none"}')
    with world.session(world.service) as service, leading(world.dsn_of(world.ann)):
        assert carry_out(service, Recorder()) == 0, "ann's service is there"
        with world.session(world.ann) as hers:
            assert carry_out(hers, Recorder()) == 1
        taken = world.admin.execute("SELECT state, taken_by, error_code FROM pgtrickle.pgt_requests").fetchone()
        assert taken == ("FAILED", world.ann, "PT301")
        insert(world, world.ann, "refresh", '{"name": "none"}')
        world.run("UPDATE pgtrickle.pgt_requests SET state = 'RUNNING', taken_by = '{ann}' WHERE finished_at IS NULL")
        assert carry_out(service, Recorder()) == 0, "her service is at it"
    with world.session(world.service) as service:
        assert carry_out(service, Recorder()) == 1, "now it is gone"


def test_a_role_that_is_gone(world: World) -> None:
    world.run("CREATE ROLE short_{ann}", "GRANT pgtrickle_user TO short_{ann}", "SET ROLE short_{ann}")
    world.run("INSERT INTO pgtrickle.pgt_requests (kind, args) VALUES ('drop', '{{\"name\": \"t\"}}')")
    world.run("RESET ROLE", "DROP ROLE short_{ann}")
    assert carry_out(world.admin, Recorder()) == 1
    assert outcome(world.admin)[:2] == ("FAILED", "PT384")


def test_what_a_dead_service_left_of_a_creation_is_made_anew(world: World) -> None:
    world.installed_by(world.ann)
    number = ask(world, "create_stream_table('t', 'SELECT id FROM orders', initialize => false)")
    with Trickle(world.dsn_of(world.ann)) as trickle:
        trickle.create_stream_table("t", "SELECT id FROM orders", initialize=False)
        before = trickle.status("t")[0].pgt_id
        dead(world, 1)
        assert carry_out(trickle._connection, trickle) == 1
        assert outcome(world.admin, number)[0] == "DONE"
        assert trickle.status("t")[0].pgt_id != before
        assert owner_of(world.admin, "t") == world.ann
        insert(world, world.ann, "create", '{"name": "t", "query": "SELECT id FROM orders", "initialize": false}')
        assert carry_out(trickle._connection, trickle) == 1
        assert outcome(world.admin)[:2] == ("FAILED", "PT302"), "one that is there by itself stays"
