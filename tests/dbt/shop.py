"""A dbt project with the package of this repository, run by the real dbt on a real server beside a real service."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from psycopg.conninfo import conninfo_to_dict

from tests.refresh.oracle import differing
from tests.service.running import running
from tests.service.serving import Served

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = ROOT / ".venv-dbt"
PACKAGE = ROOT / "integrations" / "dbt-pgtrickle"
QUIET = ("--no-version-check", "--no-use-colors", "--log-level", "warn", "--warn-error-options", '{"error": []}')
SCHEMA = "shop"
ORDERS = "id,customer,amount\n1,ann,10\n2,bob,20\n3,ann,1\n"
TOTALS = "select customer, sum(amount) as total, count(*) as n from {{ ref('orders') }} group by customer"


@dataclass(frozen=True)
class Outcome:
    """What a command of dbt said: of each node its status and message."""

    success: bool
    said: str
    results: Mapping[str, list[str]]

    def message(self, node: str) -> str:
        return self.results[node][1]


class Shop:
    """The project, emptied before each test, and the database that it is run on."""

    def __init__(self, place: Path, served: Served) -> None:
        self.place = place
        self.served = served
        with (place / "driver.log").open("w") as log:
            self._dbt = subprocess.Popen(
                [ENVIRONMENT / "bin" / "python", Path(__file__).parent / "driver.py"],
                env=self.environment(),
                cwd=place,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    @staticmethod
    def environment() -> dict[str, str]:
        return {**os.environ, "DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "DO_NOT_TRACK": "1"}

    def close(self) -> None:
        self._dbt.communicate(timeout=30)

    def write(self, **files: str) -> None:
        """Models by their names; `orders_csv` is a seed, `schema_yml` a YAML file; an empty text takes it away."""
        for name, text in files.items():
            folder, suffix = {"csv": ("seeds", "csv"), "yml": ("models", "yml")}.get(
                name.rpartition("_")[2], ("models", "sql")
            )
            bare = name.rpartition("_")[0] if suffix in {"csv", "yml"} else name
            self.put(f"{folder}/{bare}.{suffix}", text)

    def put(self, file: str, text: str) -> None:
        path = self.place / file
        path.parent.mkdir(exist_ok=True)
        if text:
            path.write_text(dedent(text))
        else:
            path.unlink(missing_ok=True)

    def dbt(self, *arguments: str, ok: bool | None = True) -> Outcome:
        assert self._dbt.stdin is not None
        assert self._dbt.stdout is not None
        self._dbt.stdin.write(json.dumps([*QUIET, *arguments]) + "\n")
        self._dbt.stdin.flush()
        answer = self._dbt.stdout.readline()
        assert answer, (self.place / "driver.log").read_text()
        found = Outcome(**json.loads(answer))
        failed = {name: each for name, each in found.results.items() if each[0] not in {"success", "pass"}}
        if ok is not None:
            assert found.success is ok, f"{found.said}\n{failed}\n{self.served.service.log[-3000:]}"
        return found

    def empty(self) -> None:
        for folder in ("models", "seeds", "snapshots", "macros"):
            shutil.rmtree(self.place / folder, ignore_errors=True)
            (self.place / folder).mkdir()
        while found := self.rows("SELECT pgtrickle_internal.full_name_of(pgt_id) FROM pgtrickle.pgt_stream_tables"):
            self.served.ask("drop_stream_table(%s, cascade => true)", *found[-1])
        for (schema,) in self.rows("SELECT nspname::text FROM pg_namespace WHERE nspname ~* '^shop'"):
            self.served.run(f'DROP SCHEMA "{schema}" CASCADE')

    def rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
        return self.served.rows(query, *values)

    def one(self, query: str, *values: object) -> object:
        return self.served.one(query, *values)

    def relid(self, name: str) -> object:
        return self.one("SELECT to_regclass(%s)::oid::bigint", name)

    def kind(self, name: str) -> object:
        """What a relation is: stream table, table, view or nothing."""
        return self.one(
            "SELECT CASE WHEN EXISTS (SELECT FROM pgtrickle.pgt_stream_tables WHERE pgt_relid = c.oid)"
            " THEN 'stream table' WHEN c.relkind = 'v' THEN 'view' WHEN c.relkind = 'r' THEN 'table' ELSE 'nothing' END"
            " FROM (SELECT to_regclass(%s)) AS r (oid) LEFT JOIN pg_class AS c USING (oid)",
            name,
        )

    def stream_tables(self) -> list[object]:
        return [name for (name,) in self.rows("SELECT pgt_name FROM pgtrickle.pgt_present WHERE is_there ORDER BY 1")]

    def requests(self) -> list[object]:
        return [kind for (kind,) in self.rows("SELECT kind FROM pgtrickle.pgt_requests ORDER BY id")]

    def is_equal(self, name: str = "totals") -> None:
        """Against its stored query, evaluated by PostgreSQL: by the names of columns, whatever their places."""
        query = self.one(
            "SELECT defining_query FROM pgtrickle.pgt_stream_tables WHERE pgt_relid = to_regclass(%s)", name
        )
        columns = self.one(
            "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute"
            " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            name,
        )
        assert not differing(self.served.conn, name, f"SELECT {columns} FROM ({query}\n) AS q")

    def computed(self, name: str = "totals") -> int:
        """How often it was computed from scratch."""
        return self.served.actions(name.rpartition(".")[2]).count("FULL") + self.served.actions(
            name.rpartition(".")[2]
        ).count("REINITIALIZE")


@contextmanager
def opened(dsn: str, place: Path) -> Iterator[Shop]:
    place.mkdir(exist_ok=True)
    write_profile(place, dsn)
    (place / "dbt_project.yml").write_text(PROJECT)
    (place / "packages.yml").write_text(f"packages:\n  - local: {PACKAGE}\n")
    with running(dsn, place, postgres_rows="100000") as service:
        service.await_event("lease_taken")
        shop = Shop(place, Served(dsn, service))
        try:
            shop.dbt("deps")
            yield shop
        finally:
            shop.close()
            shop.served.conn.close()


def write_profile(place: Path, dsn: str, **more: object) -> None:
    """With a target `dev`; `more` are other keys of it."""
    given = conninfo_to_dict(dsn)
    target: dict[str, object] = {
        "type": "postgres",
        "host": given["host"],
        "port": int(str(given["port"])),
        "user": given["user"],
        "password": given["password"],
        "dbname": given["dbname"],
        "schema": SCHEMA,
        "threads": 4,
        **more,
    }
    (place / "profiles.yml").write_text(json.dumps({"shop": {"target": "dev", "outputs": {"dev": target}}}))


PROJECT = """
name: shop
version: "1.0"
profile: shop
model-paths: [models]
seed-paths: [seeds]
snapshot-paths: [snapshots]
macro-paths: [macros]
models: {shop: {+materialized: stream_table, +schedule: 1h}}
"""

__all__ = ["ORDERS", "SCHEMA", "TOTALS", "Outcome", "Shop", "opened", "write_profile"]
