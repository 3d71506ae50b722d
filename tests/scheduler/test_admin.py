"""A member of pgtrickle_admin steers the stream tables of others, and gets nothing run with their rights by it."""

from __future__ import annotations

import psycopg
import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.scheduler.request_executor import carry_out
from tests.scheduler.conftest import World, leading

pytestmark = pytest.mark.parametrize("server", [18], indirect=True, ids=["pg18"])


@pytest.fixture
def shop(world: World) -> World:
    """A stream table of ann's, in a schema that no one else may use; eve is an administrator, and her own role."""
    world.installed_by(world.ann)
    world.run(
        "CREATE SCHEMA shop AUTHORIZATION {ann}",
        "ALTER TABLE orders SET SCHEMA shop",
        "REVOKE pgtrickle_user FROM {eve}",
        "GRANT pgtrickle_admin TO {eve}",
    )
    with Trickle(world.dsn_of(world.ann)) as trickle:
        trickle.create_stream_table("shop.totals", "SELECT now() AS at, id FROM shop.orders", initialize=False)
    return world


def ask(shop: World, call: str) -> int:
    with shop.session(shop.eve) as eve:
        return int(str(db.scalar(eve, f"SELECT pgtrickle.{call}")))


def test_an_administrator_pauses_and_resumes_what_others_own(shop: World) -> None:
    with Trickle(shop.dsn_of(shop.ann)) as service, leading(shop.dsn_of(shop.ann)):
        for call, status in (("pause_stream_table", "SUSPENDED"), ("resume_stream_table", "ACTIVE")):
            number = ask(shop, f"{call}('shop.totals')")
            assert db.scalar(shop.admin, f"SELECT pgtrickle.why_waiting({number})") is None
            assert carry_out(service.connection, service) == 1
            assert shop.requests()[-1] == ("alter", "DONE", None)
            assert service.status("shop.totals")[0].status == status


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        ("alter", '{"name": "shop.totals", "query": "SELECT 1 AS one"}'),
        ("alter", '{"name": "shop.totals", "status": "SUSPENDED", "refresh_mode": "FULL"}'),
        ("drop", '{"name": "shop.totals"}'),
        ("create", '{"name": "shop.mine", "query": "SELECT 1 AS one"}'),
    ],
)
def test_what_defines_a_table_stays_with_its_owner(shop: World, kind: str, args: str) -> None:
    """Written without the functions, which refuse it at once: the service of the owner leaves it alone."""
    with shop.session(shop.eve) as eve:
        eve.execute("INSERT INTO pgtrickle.pgt_requests (kind, args) VALUES (%s, %s)", (kind, args))
    with Trickle(shop.dsn_of(shop.ann)) as service:
        assert carry_out(service.connection, service) == 0
    assert shop.requests() == [(kind, "PENDING", None)]


def test_who_is_no_administrator_may_not(shop: World) -> None:
    shop.run("REVOKE pgtrickle_admin FROM {eve}", "GRANT pgtrickle_user TO {eve}")
    with pytest.raises(psycopg.Error, match=r"does not own shop.totals") as refused:
        ask(shop, "pause_stream_table('shop.totals')")
    assert refused.value.sqlstate == "PT402"
    with shop.session(shop.eve) as eve:
        eve.execute(
            "INSERT INTO pgtrickle.pgt_requests (kind, args)"
            """ VALUES ('alter', '{"name": "shop.totals", "status": "SUSPENDED"}')"""
        )
    with Trickle(shop.dsn_of(shop.ann)) as service:
        assert carry_out(service.connection, service) == 0
