"""Writers with few rights, and writers that would have our functions do what they like."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.immediate.telling import Told
from tests.sessions.traps import set_traps, sprung


@pytest.fixture
def writer(story: Told) -> Iterator[str]:
    """A role that may write to `public`'s tables and no more."""
    name = f"writer_{story.oid('pg_class')}_{abs(hash(story.dsn)) % 10**8}"
    story.run(f"CREATE ROLE {name} LOGIN PASSWORD 'w'")
    yield name
    story.run(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def _as(story: Told, role: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(make_conninfo(story.dsn, user=role, password="w"), autocommit=True)


def _tables(story: Told) -> None:
    story.run(
        "CREATE TABLE t (id int PRIMARY KEY, k int, d date, n float8, a text[])",
        "CREATE TABLE s (k int PRIMARY KEY, name text)",
        "INSERT INTO s VALUES (1, 'one'), (2, 'two')",
        "INSERT INTO t SELECT g, g % 3, '2024-01-02'::date + g, g / 7.0, ARRAY['x', NULL] FROM generate_series(1, 9) g",
    )
    story.create("pairs", "SELECT t.id, s.name, t.d::text AS d, t.n::text AS n, t.a::text AS a FROM t JOIN s USING (k)")
    story.create("sums", "SELECT k, count(*) AS n, max(d)::text AS d, sum(n::numeric)::text AS total FROM t GROUP BY k")
    story.create("first", "SELECT id, to_char(d, 'TMMonth') AS m FROM t ORDER BY id DESC LIMIT 2")
    story.create("times", "SELECT id, d::timestamptz::text AS at FROM t")


def test_a_writer_needs_no_rights_on_ours(story: Told, writer: str) -> None:
    _tables(story)
    story.run(f"GRANT INSERT ON t TO {writer}")
    with _as(story, writer) as session:
        session.execute("INSERT INTO t VALUES (100, 1, '2024-05-05', 1.5, NULL)")
        session.execute("INSERT INTO t SELECT g, 1, '2024-05-05', 1.5, NULL FROM generate_series(1000, 1600) g")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("SELECT * FROM pairs")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("SELECT * FROM pgtrickle_state.i_1_turn")
    story.right()


@pytest.mark.parametrize("few", [True, False])
def test_settings_of_the_writer_change_no_answer(story: Told, few: bool) -> None:
    _tables(story)
    values = "VALUES (100, 1, '2024-05-05'::date, 1.1::float8 / 3, '{a,NULL}'::text[])"
    if not few:
        values = "SELECT g, g % 4, '2024-05-05'::date, g / 7.0, '{a,NULL}'::text[] FROM generate_series(100, 700) g"
    for setting in (
        "DateStyle = 'German, MDY'",
        "TimeZone = 'Asia/Tokyo'",
        "IntervalStyle = 'sql_standard'",
        "extra_float_digits = -5",
        "bytea_output = 'escape'",
        "quote_all_identifiers = on",
        "array_nulls = off",
        "transform_null_equals = on",
        "standard_conforming_strings = off",
        "lc_time = 'C'",
        "row_security = off",
        "search_path = pg_temp, public",
        "timezone_abbreviations = 'India'",
        "default_transaction_isolation = 'serializable'",
        "enable_indexscan = off",
        "plpgsql.variable_conflict = 'use_variable'",
    ):
        with story.session() as session:
            session.execute(f"SET {setting}")
            session.execute(f"INSERT INTO t {values}")
            session.execute("UPDATE t SET n = n + 0.1, d = d + 1 WHERE id > 99")
            session.execute("UPDATE s SET name = name || '!'")
        story.right(after=setting)
        with story.session() as session:
            session.execute(f"SET {setting}")
            session.execute("DELETE FROM t WHERE id > 99")
        story.right(after=setting)


def test_sessions_of_drivers_take_the_short_way(story: Told) -> None:
    """What JDBC, Rails and Django set: no temporary table is made for a few rows."""
    _tables(story)
    with story.session() as session:
        for setting in (
            "extra_float_digits = 3",
            "IntervalStyle = 'iso_8601'",
            "TimeZone = 'UTC'",
            "DateStyle = 'ISO, DMY'",
            "standard_conforming_strings = on",
            "client_min_messages = 'warning'",
            "application_name = 'x'",
        ):
            session.execute(f"SET {setting}")
        session.execute("INSERT INTO t VALUES (100, 1, '2024-05-05', 1.5, NULL)")
        session.execute("UPDATE s SET name = name || '!'")
        assert session.execute("SELECT pg_my_temp_schema()").fetchone() == (0,)
    story.right()


def test_what_the_writer_puts_in_the_way_is_not_used(story: Told, writer: str) -> None:
    """Operators, functions, types and relations that fit better than PostgreSQL's own, and temporary tables."""
    _tables(story)
    story.run(f"GRANT INSERT, UPDATE, DELETE, SELECT ON t, s TO {writer}")
    story.run(f"GRANT CREATE ON SCHEMA public TO {writer}")
    with story.session() as session:
        session.execute("SET search_path = pg_catalog, pg_temp")
        set_traps(session)
    with _as(story, writer) as session:
        session.execute("SET search_path = public, pg_catalog")
        for table in ("t", "s", "pairs", "sums", "pg_class", "i_1_turn", "new_rows"):
            session.execute(f'CREATE TEMPORARY TABLE "{table}" (trap int)')
        session.execute(
            "INSERT INTO public.t VALUES (100, 1, '2024-05-05', 1.5, NULL), (101, 2, '2024-05-05', 1.5, NULL)"
        )
        session.execute(
            "INSERT INTO public.t SELECT g, 1, '2024-05-05', 1.5, NULL FROM pg_catalog.generate_series(1000, 1600) g"
        )
        session.execute("TRUNCATE pg_temp.s")
        session.execute("DELETE FROM public.t")
    assert not sprung(story.connection)
    story.right()


def test_a_temporary_table_of_our_names_stops_only_its_writer(story: Told, writer: str) -> None:
    """One could have triggers, rules and defaults of its own, which would run with our rights."""
    _tables(story)
    story.run(f"GRANT INSERT ON t TO {writer}")
    names: list[str] = []
    texts = story.rows("SELECT prosrc FROM pg_proc WHERE pronamespace = 'pgtrickle_state'::regnamespace")
    for (text,) in texts:
        names += [part.split('"')[0] for part in str(text).split('CREATE TEMPORARY TABLE pg_temp."')[1:]]
    assert names
    with _as(story, writer) as session:
        for name in dict.fromkeys(names):
            session.execute(f'CREATE TEMPORARY TABLE "{name}" (trap int DEFAULT 1)')
        with pytest.raises(psycopg.errors.DuplicateTable):
            session.execute("INSERT INTO t SELECT g, 1, '2024-05-05', 1.5, NULL FROM generate_series(1000, 1600) g")
    story.right()
    story.write("INSERT INTO t SELECT g, 1, '2024-05-05', 1.5, NULL FROM generate_series(1000, 1600) g")


def test_no_one_else_may_call_the_functions(story: Told, writer: str) -> None:
    _tables(story)
    story.run(f"GRANT INSERT ON t TO {writer}", f"GRANT CREATE ON SCHEMA public TO {writer}")
    (name,) = story.rows("SELECT oid::regproc::text FROM pg_proc WHERE proname LIKE 'i\\_1\\_on\\_1%'")[0]
    with _as(story, writer) as session:
        session.execute("CREATE TABLE mine (id int)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute(f"CREATE TRIGGER x AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION {name}()")


def test_a_stream_table_given_to_another_owner(story: Told, writer: str) -> None:
    """Its triggers would run with rights that its owner does not have: writers are told, until it is refreshed."""
    _tables(story)
    story.run(f"ALTER TABLE sums OWNER TO {writer}")
    error = story.fails(psycopg.Error, "INSERT INTO t VALUES (100, 1, '2024-05-05', 1.5, NULL)")
    assert error.sqlstate == "PT705"
    assert "sums" in str(error)
    story.run("ALTER TABLE sums OWNER TO CURRENT_USER")
    story.write("INSERT INTO t VALUES (100, 1, '2024-05-05', 1.5, NULL)")
