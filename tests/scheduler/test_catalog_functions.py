"""What SQL shows of the graph: the tree, diamonds and their epochs, statistics, what the catalog knows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.catalog import reader
from pgtrickle.config import Settings
from pgtrickle.errors import StateError
from pgtrickle.scheduler import dag, diamonds


@pytest.fixture
def trickle(database: str) -> Iterator[Trickle]:
    """orders → paid, refunded → balance, and one table that reads something else."""
    with db.open_session(database) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, amount int)")
        connection.execute("CREATE TABLE other (id int PRIMARY KEY)")
    with Trickle(database) as found:
        found.create_stream_table("paid", "SELECT id, amount FROM orders WHERE amount > 0", initialize=False)
        found.create_stream_table("refunded", "SELECT id, amount FROM orders WHERE amount < 0", None, initialize=False)
        found.create_stream_table(
            "balance",
            "SELECT p.id FROM paid AS p JOIN refunded AS r ON p.id = r.id",
            refresh_mode="FULL",
            initialize=False,
        )
        found.create_stream_table("alone", "SELECT id FROM other", initialize=False)
        yield found


def ids(trickle: Trickle) -> dict[str, int]:
    return {stream.pgt_name: stream.pgt_id for stream in trickle.status()}


def test_the_graph_is_read_from_the_catalog_and_kept_while_it_stays(trickle: Trickle) -> None:
    known = dag.read(trickle._connection)
    number = ids(trickle)
    assert known.upstream(number["balance"]) == {number["paid"], number["refunded"]}
    assert known.needed({number["balance"]}) == {number["balance"], number["refunded"]}
    assert dag.read(trickle._connection, known) is known
    trickle.alter_stream_table("refunded", schedule="5s")
    changed = dag.read(trickle._connection, known)
    assert changed.needed({number["balance"]}) == {number["balance"]}
    orders = db.scalar(trickle._connection, "SELECT 'public.orders'::regclass::oid::bigint")
    balance = reader.resolve(trickle._connection, "balance")
    assert isinstance(orders, int)
    changed.require_no_cycle(number["paid"], [orders])
    with pytest.raises(StateError, match=r"public\.paid → public\.balance → public\.paid"):
        changed.require_no_cycle(number["paid"], [orders, balance.pgt_relid])


def test_the_tree(trickle: Trickle) -> None:
    rows = trickle._connection.execute("SELECT tree_line, node_type, depth, status FROM pgtrickle.dependency_tree()")
    assert rows.fetchall() == [
        ("public.alone", "stream_table", 0, "INITIALIZING"),
        ("`-- public.other [src]", "source_table", 1, None),
        ("public.balance", "stream_table", 0, "INITIALIZING"),
        ("|-- public.paid", "stream_table", 1, "INITIALIZING"),
        ("|   `-- public.orders [src]", "source_table", 2, None),
        ("`-- public.refunded", "stream_table", 1, "INITIALIZING"),
        ("    `-- public.orders [src]", "source_table", 2, None),
    ]


def shown(trickle: Trickle) -> list[tuple[object, ...]]:
    return trickle._connection.execute(
        "SELECT member_name, is_convergence, epoch, schedule_policy, consistency FROM pgtrickle.diamond_groups()"
    ).fetchall()


def test_diamonds_are_shown_and_keep_their_epoch(trickle: Trickle) -> None:
    conn, settings = trickle._connection, Settings()
    found = diamonds.groups(dag.read(conn), settings)
    diamonds.store(conn, found)
    assert shown(trickle) == [
        ("paid", False, 0, "fastest", "atomic"),
        ("refunded", False, 0, "fastest", "atomic"),
        ("balance", True, 0, "fastest", "atomic"),
    ]
    with conn.transaction():
        diamonds.advance(conn, found[0])
    diamonds.ask(conn, ids(trickle)["balance"], diamond_schedule_policy="slowest")
    diamonds.store(conn, diamonds.groups(dag.read(conn), settings))
    assert {row[2:4] for row in shown(trickle)} == {(1, "slowest")}, "the same members: the same group"
    diamonds.store(conn, diamonds.groups(dag.read(conn), replace(settings, diamond_consistency="none")))
    assert {row[2:] for row in shown(trickle)} == {(0, "slowest", "none")}
    trickle.drop_stream_table("balance")
    diamonds.store(conn, diamonds.groups(dag.read(conn), settings))
    assert shown(trickle) == []


def explained(trickle: Trickle, name: str) -> dict[object, object]:
    rows = trickle._connection.execute("SELECT property, value FROM pgtrickle.explain_st(%s)", (name,))
    return {property: value for property, value in rows}  # noqa: C416 - dict() wants pairs, and rows may be any tuple


def test_statistics_and_what_is_known(trickle: Trickle) -> None:
    conn = trickle._connection
    stats = conn.execute(
        "SELECT pgt_name, is_populated, total_refreshes, staleness_secs FROM pgtrickle.st_refresh_stats()"
    )
    assert stats.fetchall() == [(name, False, 0, None) for name in ("alone", "balance", "paid", "refunded")]
    known = explained(trickle, "public.paid")
    assert known["name"] == "public.paid"
    assert known["schedule"] == "1m"
    assert known["effective mode"] == "DIFFERENTIAL"
    assert known["sources"] == "public.orders (id, amount) by TRIGGER"
    assert known["read by"] == "public.balance"
    assert known["data of"] == "not populated"
    full = explained(trickle, "public.balance")
    assert full["effective mode"] == "FULL: refresh mode is FULL"
    assert "read by" not in full
