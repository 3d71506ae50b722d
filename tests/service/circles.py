"""Two stream tables whose refreshes need no Spark, one captured by triggers and one from the WAL: they read themselves,
and PostgreSQL evaluates them. For tests that kill and hang services again and again."""

from __future__ import annotations

from psycopg import sql
from tests.refresh.oracle import differing
from tests.service.running import until
from tests.service.serving import PATIENCE_S

from pgtrickle import db
from pgtrickle.api import connect
from pgtrickle.db import Connection, statement

MODES = {"t": "trigger", "u": "wal"}


def name_of(source: str) -> str:
    return f"reached_{source}"


def make(dsn: str) -> None:
    """The sources, and the tables of what can be reached in them; the service of the database moves one to the WAL."""
    with db.open_session(dsn) as conn:
        allow = "ALTER DATABASE {} SET pg_trickle.allow_circular = on"
        conn.execute(sql.SQL(allow).format(sql.Identifier(conn.info.dbname)))
    with connect(dsn) as trickle, db.open_session(dsn) as conn:
        for source, mode in MODES.items():
            name = name_of(source)
            conn.execute(statement(f"CREATE TABLE {source} (a int, b int)"))
            conn.execute(statement(f"ALTER TABLE {source} REPLICA IDENTITY FULL"))
            conn.execute(statement(f"INSERT INTO {source} SELECT g, g + 1 FROM generate_series(1, 20) AS g"))
            trickle.create_stream_table(
                name, f"SELECT DISTINCT a, b FROM {source}", "1s", cdc_mode=mode, initialize=False
            )
            trickle.alter_stream_table(
                name,
                query=f"SELECT a, b FROM {source} UNION SELECT r.a, s.b FROM {name} r JOIN {source} s ON s.a = r.b",
            )
            trickle.refresh_stream_table(name)


def await_wal(dsn: str) -> None:
    mode = "SELECT cdc_mode FROM pgtrickle.pgt_change_tracking WHERE source_relid = 'u'::regclass"
    with db.open_session(dsn) as conn:
        until(lambda: db.scalar(conn, mode) == "WAL", "u is captured from the WAL", PATIENCE_S)


def wrong(conn: Connection) -> list[str]:
    """The tables that are not what PostgreSQL answers."""
    return [
        name_of(source)
        for source in MODES
        if differing(
            conn,
            name_of(source),
            f"WITH RECURSIVE r(a, b) AS (SELECT a, b FROM {source} UNION SELECT r.a, s.b FROM r JOIN {source} s"
            " ON s.a = r.b) SELECT a, b FROM r",
        )
    ]
