"""One service, one project and one dbt for all tests here. `make test` has fetched dbt; else it is fetched here."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from pgtrickle import embedded
from tests.conftest import fresh_database
from tests.dbt.shop import ENVIRONMENT, ROOT, SCHEMA, Shop, opened


@pytest.fixture(scope="session")
def _shop(server18: embedded.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    if not (ENVIRONMENT / ".done").exists():
        subprocess.run(["make", "--no-print-directory", ".venv-dbt/.done"], cwd=ROOT, check=True, timeout=900)
    with fresh_database(server18) as dsn, opened(dsn, tmp_path_factory.mktemp("dbt") / "project") as shop:
        yield shop


@pytest.fixture
def shop(_shop: Shop) -> Shop:
    _shop.empty()
    _shop.served.run(f"SET search_path = {SCHEMA}, public")
    return _shop
