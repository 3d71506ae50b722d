"""TPC-H, all 22 queries over all eight tables: after each window every stream table equals its query, incrementally.

The data is `tpchgen-cli`'s at scale 0.01. PGTRICKLE_TPCH_WINDOWS says how many windows are played.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.query.compile import compile_query
from tests.conftest import fresh_database
from tests.refresh.oracle import differing
from tests.tpch.windows import TABLES, window

HERE = Path(__file__).parent
QUERIES = {path.stem: path.read_text() for path in sorted((HERE / "queries").glob("q*.sql"))}
GENERATOR = Path(sys.executable).with_name("tpchgen-cli")
WINDOWS = int(os.environ.get("PGTRICKLE_TPCH_WINDOWS", "6"))
ROWS = 4


@pytest.fixture(scope="module")
def schema(server18: embedded.Server) -> Iterator[str]:
    """A database with the eight tables, empty."""
    with fresh_database(server18) as dsn, db.open_session(dsn) as connection:
        connection.execute(db.statement((HERE / "schema.sql").read_text()))
        connection.execute(db.statement((HERE / "indexes.sql").read_text()))
        yield dsn


@pytest.fixture(scope="module")
def loaded(schema: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The database with its rows."""
    data = tmp_path_factory.mktemp("tpch")
    subprocess.run([GENERATOR, "-s", "0.01", f"--output-dir={data}"], check=True, capture_output=True)
    with db.open_session(schema) as connection, connection.cursor() as cursor:
        for table in TABLES:
            with cursor.copy(db.statement(f"COPY {table.name} FROM STDIN (DELIMITER '|')")) as copy:
                for line in (data / f"{table.name}.tbl").read_text().splitlines():
                    copy.write(f"{line.removesuffix('|')}\n")
        connection.execute("ANALYZE")
    return schema


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_has_a_tree(name: str, schema: str) -> None:
    with db.open_session(schema) as connection:
        compiled = compile_query(connection, QUERIES[name])
    assert compiled.refusal is None
    assert compiled.tree is not None


def test_all_queries_follow_all_tables(loaded: str, spark: SparkSession) -> None:
    with Trickle(make_conninfo(loaded), spark=spark) as trickle:
        follow(loaded, trickle, range(WINDOWS))


def test_all_queries_follow_by_postgresql_alone(loaded: str) -> None:
    with Trickle(loaded) as trickle:
        trickle._refresher.without_spark = True
        follow(loaded, trickle, range(WINDOWS, WINDOWS + WINDOWS // 2))


def follow(dsn: str, trickle: Trickle, windows: range) -> None:
    with db.open_session(dsn) as connection:
        for name, query in QUERIES.items():
            trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
            assert differing(connection, name, query) == [], name
        for number in windows:
            for statement in window(number, ROWS):
                connection.execute(db.statement(statement))
            for name, query in QUERIES.items():
                result = trickle.refresh_stream_table(name)
                assert result.action == "DIFFERENTIAL", (number, name, result)
                assert differing(connection, name, query) == [], (number, name)
        for name in QUERIES:
            trickle.drop_stream_table(name)
