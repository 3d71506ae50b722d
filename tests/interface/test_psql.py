"""What a member of pgtrickle_user sees and does in psql: each function that only reads, the catalog's views, comments,
requests for a table of its own, and no more."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgtrickle import embedded
from pgtrickle.api import Trickle
from pgtrickle.programs import binaries

Psql = Callable[..., "subprocess.CompletedProcess[str]"]
READING = (
    "pgtrickle.pgt_status()",
    "pgtrickle.st_refresh_stats()",
    "pgtrickle.get_refresh_history('totals', 5)",
    "pgtrickle.get_staleness('totals')",
    "pgtrickle.explain_st('totals')",
    "pgtrickle.explain_delta('totals')",
    "pgtrickle.slot_health()",
    "pgtrickle.check_cdc_health()",
    "pgtrickle.health_check()",
    "pgtrickle.diamond_groups()",
    "pgtrickle.dependency_tree()",
    "pgtrickle.validate_query('SELECT region FROM orders')",
    "pgtrickle.pgt_lineage",
    "pgtrickle.stream_tables_info",
    "pgtrickle.pg_stat_stream_tables",
    "pgtrickle.pgt_cdc_status",
    "pgtrickle.pgt_stream_table_sources",
    "pgtrickle.pgt_stream_tables",
    "pgtrickle.pgt_dependencies",
    "pgtrickle.pgt_refresh_history",
    "pgtrickle.pgt_requests",
)


@pytest.fixture
def user(database18: str, server18: embedded.Server) -> Iterator[Psql]:
    """psql of a role that has nothing but pgtrickle_user and SELECT on a source and a stream table of somebody else."""
    name, password = f"user_{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
    role = sql.Identifier(name)
    with Trickle(database18) as trickle:
        conn = trickle.connection
        conn.execute("CREATE TABLE public.orders (id int PRIMARY KEY, region text, amount numeric)")
        conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(password)))
        conn.execute(sql.SQL("GRANT pgtrickle_user TO {}").format(role))
        conn.execute(sql.SQL("GRANT CREATE ON SCHEMA public TO {}").format(role))
        query = "SELECT region, sum(amount) AS s FROM public.orders GROUP BY region"
        trickle.create_stream_table("public.totals", query, initialize=False, primary_key="region", protect=True)
        conn.execute(sql.SQL("GRANT SELECT ON public.orders, public.totals TO {}").format(role))
    program = binaries(server18.version, None) / "psql"
    dsn = make_conninfo(database18, user=name, password=password)

    def run(*commands: str) -> subprocess.CompletedProcess[str]:
        options = ["-X", "-A", "-t", "-F", " | ", "-v", "ON_ERROR_STOP=1"]
        environment = {**os.environ, "PGOPTIONS": ""}
        given = "\n".join(commands)
        return subprocess.run(
            [program, *options, dsn],
            input=given,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    try:
        yield run
    finally:
        with psycopg.connect(database18, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP OWNED BY {}").format(role))
            admin.execute(sql.SQL("DROP ROLE {}").format(role))


def test_everything_that_reads_can_be_read(user: Psql) -> None:
    done = user(*(f"\\echo {each.split('(')[0]}\nSELECT * FROM {each};" for each in READING))
    assert done.returncode == 0, done.stdout[-500:] + done.stderr
    assert "public.orders (region, amount) by TRIGGER" in done.stdout, "explain_st"
    assert "Δaggregate" in done.stdout, "explain_delta and explain_st"
    assert "query | OK | PostgreSQL accepts it" in done.stdout, "validate_query"
    assert "public | totals | public | orders | " in done.stdout, "pgt_lineage"


def test_what_psql_tells_of_it(user: Psql) -> None:
    """A comment on each function and view, none of them one that only pgtrickle calls."""
    functions = user("\\pset format unaligned", "\\df+ pgtrickle.*").stdout
    assert "Asks the service to create a stream table of a query" in functions
    assert "\npgtrickle | create_stream_table | bigint | " in functions
    bare = user(
        "SELECT p.oid::regprocedure FROM pg_proc AS p WHERE p.pronamespace = 'pgtrickle'::regnamespace"
        " AND (obj_description(p.oid) IS NULL OR obj_description(p.oid) LIKE 'Internal%');",
        "SELECT c.oid::regclass FROM pg_class AS c WHERE c.relnamespace = 'pgtrickle'::regnamespace"
        " AND c.relkind IN ('r', 'v') AND obj_description(c.oid) IS NULL;",
    )
    assert (bare.returncode, bare.stdout) == (0, "")
    assert "Stream table" in user("\\dt+ totals").stdout
    assert "pgt_name" in user("\\d+ pgtrickle.pgt_lineage").stdout


def test_a_table_of_its_own_is_asked_for_and_those_of_others_are_left_alone(user: Psql) -> None:
    asked = user(
        "SELECT pgtrickle.create_stream_table('mine', 'SELECT id FROM orders', '1m', primary_key => 'id',"
        " protect => true) AS request \\gset",
        "SELECT kind, state, pgtrickle.why_waiting(id) FROM pgtrickle.pgt_requests WHERE id = :request;",
    )
    assert asked.stdout == "create | PENDING | no service runs in this database\n", asked.stderr
    for statement, code in (
        ("SELECT pgtrickle.refresh_stream_table('totals');", "PT402"),
        ("SELECT pgtrickle.alter_stream_table('totals', schedule => '1h');", "PT402"),
        ("SELECT pgtrickle.drop_stream_table('totals');", "PT402"),
        ("SELECT pgtrickle.create_stream_table('x', 'SELECT nope FROM orders');", 'column "nope" does not exist'),
        (
            (
                "BEGIN; SELECT pgtrickle.create_stream_table('x', 'SELECT id FROM orders') AS r \\gset\n"
                "SELECT pgtrickle.wait_for_request(:r);"
            ),
            "PT380",
        ),
        ("DELETE FROM totals;", "permission denied"),
    ):
        done = user(statement)
        assert done.returncode == 3, statement
        assert code in done.stderr, statement
    assert user("SELECT count(*) FROM pgtrickle.pause_all();").stdout == "0\n", "of its own there is none"
