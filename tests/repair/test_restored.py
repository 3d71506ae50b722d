"""A restored dump: nothing of it is taken for ours before `repair`, which attaches each stream table to its tables.

Without Spark: the tables are empty, and what would be computed is left to the service.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest
from psycopg.conninfo import make_conninfo

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.catalog.origin import NotHere
from pgtrickle.errors import ServerError, StateError
from pgtrickle.fence import Fence
from pgtrickle.refresh.definition.repair import Repair
from pgtrickle.scheduler.service import Controls, Service
from tests.conftest import fresh_database
from tests.ddl.place import NO_SPARK, Place
from tests.repair.dump import dump_and_restore


@contextmanager
def restored(server: embedded.Server, original: Place, *options: str) -> Iterator[Place]:
    with fresh_database(server) as dsn:
        dump_and_restore(server, original.dsn, dsn, *options)
        with Trickle(dsn, master=NO_SPARK, install_catalog=False) as trickle, db.open_session(dsn) as connection:
            yield Place(dsn, connection, trickle)


CLI = "from pgtrickle.cli.main import main; main()"


def outcomes(found: list[Repair]) -> dict[str, str]:
    return {each.table: each.outcome for each in found}


def captured(there: Place, table: str) -> int:
    """The rows that capture of the table has written."""
    oid = there.value(f"SELECT '{table}'::regclass::oid")
    return int(str(there.value(f"SELECT count(*) FROM pgtrickle_changes.changes_{oid}")))


def test_until_it_is_repaired_nothing_is_touched(
    server18: embedded.Server, made18: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "_instance", None)  # a service names its process, and all sessions of it from then on
    with restored(server18, made18) as there:
        assert [(each.status, each.is_restored) for each in there.trickle.status()] == [("ERROR", True)]
        told = [check.detail for check in there.trickle.health() if check.check_name == "stream_tables"]
        assert "pgtrickle repair" in told[0]
        for attempt in (
            lambda: there.trickle.create_stream_table("other", "SELECT 1 AS one"),
            lambda: there.trickle.refresh_stream_table("st"),
            lambda: there.trickle.alter_stream_table("st", schedule="5m"),
            lambda: there.trickle.drop_stream_table("st"),
            Service(there.dsn, _no_part, _no_part, Controls()).run,
        ):
            with pytest.raises(NotHere, match="PT460") as refused:
                attempt()
            assert "pgtrickle repair" in str(refused.value.hint)
        there.run("INSERT INTO t VALUES (1, 1)")  # nor is a writer in the way of the old triggers


def _no_part(_fence: Fence) -> NoReturn:
    raise AssertionError("nothing may begin")


def test_a_dump_is_known_where_all_oids_are_the_same(made18: Place) -> None:
    """A restore that is done twice in the same way gives the same oids; what a dump lacks is who wrote the row."""
    rows = made18.connection.execute("SELECT catalog_relid, written_in::text FROM pgtrickle.pgt_origin").fetchall()
    made18.run("VACUUM FULL pgtrickle.pgt_origin", "VACUUM FREEZE pgtrickle.pgt_origin")
    assert made18.value("SELECT pgtrickle_internal.catalog_is_here()") is True
    made18.run("DELETE FROM pgtrickle.pgt_origin")
    made18.connection.execute("INSERT INTO pgtrickle.pgt_origin VALUES (%s, %s)", rows[0])
    assert made18.value("SELECT pgtrickle_internal.catalog_is_here()") is False
    assert [each.status for each in made18.trickle.status()] == ["ERROR"]
    assert outcomes(made18.trickle.repair(refresh=False))["public.st"] == "repaired"


def test_each_is_attached_to_the_table_of_its_name(server18: embedded.Server, made18: Place) -> None:
    made18.run("CREATE TABLE p (k int, v int) PARTITION BY RANGE (k)", "CREATE TABLE p1 PARTITION OF p DEFAULT")
    made18.create("over", "SELECT id, v FROM st WHERE v > 1")
    made18.create("sums", "SELECT k, sum(v) AS s FROM p GROUP BY k")
    made18.trickle.create_stream_table("whole", "SELECT count(*) AS n FROM t", refresh_mode="FULL", initialize=False)
    made18.trickle.alter_stream_table("over", status="SUSPENDED")
    with restored(server18, made18) as there:
        found = there.trickle.repair(refresh=False)
        mended = {"public.st", "public.over", "public.sums", "public.whole"}
        assert {each.table for each in found if each.outcome == "repaired"} == {"the catalog", *mended}
        status = {each.pgt_name: each for each in there.trickle.status()}
        assert {name: each.status for name, each in status.items()} == {
            "st": "ACTIVE",
            "over": "SUSPENDED",
            "sums": "ACTIVE",
            "whole": "INITIALIZING",
        }
        assert {name for name, each in status.items() if each.needs_reinit} == set(status)
        assert not any(each.is_restored for each in status.values())
        there.run("INSERT INTO t VALUES (1, 1)", "INSERT INTO p VALUES (1, 1), (2, 2)")
        assert (captured(there, "t"), captured(there, "p")) == (1, 2)
        assert there.value("SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'pgtrickle%'") == 4 + 8 + 4
        assert outcomes(there.trickle.repair(refresh=False)) == dict.fromkeys(sorted(mended), "sound")
        assert there.trickle.drop_stream_table("st", cascade=True) == ["public.over", "public.st"]
        assert there.trickle.repair("whole", refresh=False)[0].outcome == "sound"
    assert made18.stream().status == "ACTIVE"  # the original is as it was
    assert made18.trickle.repair("st", refresh=False)[0].outcome == "sound"


def test_tables_that_are_not_what_they_should_be(server18: embedded.Server, made18: Place) -> None:
    made18.run("CREATE TABLE lost (a int)")
    for name in ("taken", "alike", "absent"):
        made18.create(name, "SELECT id, v FROM t")
    made18.create("orphan", "SELECT a FROM lost")
    out = [f"--exclude-table={name}" for name in ("taken", "alike", "absent", "lost")]
    with restored(server18, made18, *out) as there:
        there.run("CREATE TABLE taken (x int)", "CREATE TABLE alike (id int, v int)", "INSERT INTO alike VALUES (7, 7)")
        found = {each.table: each for each in there.trickle.repair(refresh=False)}
        errors = {name: str(each.error) for name, each in found.items() if each.error is not None}
        assert errors.keys() == {"public.taken", "public.alike", "public.orphan"}
        assert "PT462" in errors["public.taken"]
        assert "PT462" in errors["public.alike"]
        assert "lost" in errors["public.orphan"]
        assert found["public.st"].outcome == found["public.absent"].outcome == "repaired"
        status = {each.pgt_name: each for each in there.trickle.status()}
        assert {name for name, each in status.items() if each.status == "ERROR"} == {"taken", "alike", "orphan"}
        assert "lost" in str(status["orphan"].last_error)
        assert there.value("SELECT v FROM alike") == 7  # someone's own
        assert there.trickle.drop_stream_table("orphan") == ["public.orphan"]
        assert there.value("SELECT count(*) FROM orphan") == 0  # no table is known to be its
        with pytest.raises(NotHere, match="PT460"):
            there.trickle.refresh_stream_table("alike")
        there.run("DROP TABLE alike", "ALTER TABLE taken RENAME TO mine")
        again = outcomes(there.trickle.repair(refresh=False))
        assert {name for name, outcome in again.items() if outcome == "repaired"} == {"public.taken", "public.alike"}
        assert there.value("SELECT count(*) FROM mine") == 0


@pytest.mark.parametrize("place_of_death", ["catalog-adopted", "table-mended"])
def test_killed_in_the_middle_it_goes_on_from_there(
    server18: embedded.Server, made18: Place, place_of_death: str
) -> None:
    made18.create("other", "SELECT id FROM t")
    with restored(server18, made18) as there:
        done = subprocess.run(
            [sys.executable, "-c", CLI, "repair", "--no-refresh"],
            env={**os.environ, "PGTRICKLE_DSN": there.dsn, "PGTRICKLE_FAILPOINT": place_of_death},
            check=False,
        )
        assert done.returncode == -9
        assert "ERROR" in {each.status for each in there.trickle.status()}
        found = outcomes(there.trickle.repair(refresh=False))
        assert found["public.other"] == "repaired"
        assert [each.status for each in there.trickle.status()] == ["ACTIVE", "ACTIVE"]
        there.run("INSERT INTO t VALUES (1, 1)")
        assert captured(there, "t") == 1


def test_a_login_repairs_what_it_serves(server18: embedded.Server, database18: str) -> None:
    with db.open_session(database18) as admin:
        name = admin.info.dbname
        ann, bob, keeper = (f"{role}_{name}" for role in ("ann", "bob", "keeper"))
        statements = [
            *(f"CREATE ROLE {role} LOGIN PASSWORD 'x'" for role in (ann, bob)),
            f"CREATE ROLE {keeper} NOLOGIN",
            f"GRANT {keeper} TO {ann}, {bob}",
            f"GRANT CREATE ON DATABASE {name} TO {keeper}",
            *(f"CREATE SCHEMA s_{role} AUTHORIZATION {role}" for role in (ann, bob)),
            f"CREATE FUNCTION s_{bob}.twice(a int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 2 * a'",
            f"ALTER FUNCTION s_{bob}.twice OWNER TO {bob}",
            f"GRANT USAGE ON SCHEMA s_{bob} TO {ann}",
        ]
        for each in statements:
            admin.execute(db.statement(each))
    logins = {role: make_conninfo(database18, user=role, password="x") for role in (ann, bob)}
    try:
        Trickle(make_conninfo(logins[ann], options=f"-c role={keeper}"), master=NO_SPARK).close()
        for role, dsn in logins.items():
            with Trickle(dsn, master=NO_SPARK) as trickle, db.open_session(dsn) as connection:
                connection.execute(db.statement(f"CREATE TABLE s_{role}.t (id int PRIMARY KEY)"))
                trickle.create_stream_table(f"s_{role}.st", f"SELECT id FROM s_{role}.t", initialize=False)
                query = f"SELECT s_{bob}.twice(id) AS two FROM s_{role}.t"
                trickle.create_stream_table(f"s_{role}.twice", query, initialize=False)
        with fresh_database(server18) as dsn:
            dump_and_restore(server18, database18, dsn)
            with Trickle(dsn, install_catalog=False) as trickle, pytest.raises(ServerError, match="PT419"):
                trickle.repair()
            with Trickle(make_conninfo(dsn, user=bob, password="x"), install_catalog=False) as trickle:
                found = {each.table: each for each in trickle.repair(refresh=False)}
                assert found[f"s_{bob}.st"].outcome == "repaired"
                assert ann in str(found[f"s_{ann}.st"].left)
                assert trickle.status(f"s_{bob}.st")[0].owner == bob
            with Trickle(make_conninfo(dsn, user=ann, password="x"), install_catalog=False) as trickle:
                found = {each.table: each for each in trickle.repair(refresh=False)}
                assert found[f"s_{ann}.st"].outcome == "repaired"
                waits = found[f"s_{ann}.twice"].error  # bob may have restored anything under that name
                assert waits is not None
                assert waits.code == "PT350"
                assert f"pgtrickle repair s_{ann}.twice" in str(waits.hint)
                assert trickle.repair(f"s_{ann}.twice", refresh=False)[-1].outcome == "repaired"
    finally:
        with db.open_session(database18) as admin:
            admin.execute(db.statement(f"DROP OWNED BY {ann}, {bob}, {keeper} CASCADE"))
            admin.execute(db.statement(f"DROP ROLE {ann}, {bob}, {keeper}"))


def test_a_name_that_means_nothing(made18: Place) -> None:
    with pytest.raises(StateError, match="PT301"):
        made18.trickle.repair("nowhere")


def test_a_compared_source(server18: embedded.Server, made18: Place) -> None:
    """Its copy came by the dump, on record under the oids of then: there is another one."""
    made18.run("CREATE MATERIALIZED VIEW m AS SELECT 1 AS id")
    made18.trickle.create_stream_table("over_m", "SELECT id FROM m", initialize=False)
    with restored(server18, made18) as there:
        assert outcomes(there.trickle.repair())["public.over_m"] == "repaired"
        assert there.value("SELECT count(*) FROM pgtrickle.pgt_compared") == 1
        assert there.value(
            "SELECT string_agg(relname, ' ') = 'copy_' || 'm'::regclass::oid FROM pg_class WHERE relname LIKE 'copy%'"
        )
        assert there.stream("over_m").effective_mode == "DIFFERENTIAL"
