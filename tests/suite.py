"""Which tests a run takes, in which order, and how three workers share them.

pytest                  what a newcomer runs: the same examples every time, PostgreSQL 16 where versions may differ
pytest --long           everything: soaks, long random runs, every test on both versions, some on all (`servers.py`)
pytest -n 3 --dist loadfile     three workers, each with servers and a Spark of its own (what `make test` does)
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import servers
from tests.refresh import maintained

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

BOTH_VERSIONS = (
    "tests/capture/",
    "tests/catalog/",
    "tests/embedded/",
    "tests/query/test_analyze.py",
    "tests/query/test_build.py",
    "tests/query/test_fingerprint.py",
    "tests/refresh/test_random.py",
    "tests/wal/test_handover.py",
    "tests/wal/test_decoder.py",
)
"""Where a server's version may matter: what reads its node trees and catalogs, captures, and decodes; and one random
story. All other tests that can run on 16 do so in a long run."""

EVERY_VERSION = (
    "tests/capture/",
    "tests/catalog/",
    "tests/wal/test_handover.py",
    "tests/refresh/test_random.py",
)
"""What a long run does on every version that is supported, also on those that are fetched for it (`servers.py`)."""

HEAVY = (
    "tests/steps/test_spark.py",
    "tests/query/test_build.py",
    "tests/refresh/test_ticks.py",
    "tests/refresh/test_groups.py",
    "tests/tpch/test_tpch.py",
    "tests/service/test_hung.py",
    "tests/stories/test_correlated.py",
    "tests/service/test_capture.py",
    "tests/service/test_faults.py",
    "tests/service/test_life.py",
    "tests/dbt/test_changes.py",
    "tests/dbt/test_models.py",
    "tests/dbt/test_trouble.py",
    "tests/service/test_ticks.py",
    "tests/scheduler/test_one_version.py",
    "tests/refresh/test_random.py",
    "tests/refresh/test_many_tables.py",
    "tests/refresh/test_keyed_reads.py",
    "tests/steps/test_random_subqueries.py",
    "tests/stories/test_capture.py",
    "tests/stories/test_lifecycle.py",
    "tests/refresh/test_large.py",
    "tests/demo/test_demo.py",
)
"""The files that take longest, longest first: begun early, none is left for one worker at the end."""

SPLIT = "tests/steps/test_spark.py"
"""A file too long for one worker: its parts are the folders of step files."""

TOGETHER = "tests/dbt/"
"""Files for one worker, as they share a service and a dbt."""

settings.register_profile(
    "fixed", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fuzz", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fixed")  # --hypothesis-profile=fuzz takes the other


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="everything: soaks, long random runs, both server versions")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: only in a long run (pytest --long, make test-long)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(item.nodeid))
    items[:] = [
        item for item in items if _version(item) not in servers.FETCHED or item.nodeid.startswith(EVERY_VERSION)
    ]
    if config.getoption("--long"):
        return
    left = [item for item in items if is_long(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not is_long(item)]


def is_long(item: pytest.Item) -> bool:
    if item.get_closest_marker("long"):
        return True
    version = _version(item)
    if version in servers.FETCHED:
        return True
    return version == 16 and not item.nodeid.startswith(BOTH_VERSIONS)


def _version(item: pytest.Item) -> int | None:
    """Of the server that a test asks for by the fixture `server`."""
    callspec = getattr(item, "callspec", None)
    found = [part for part in (callspec.id.split("-") if callspec is not None else ()) if part.startswith("pg")]
    return next((int(part[2:]) for part in found if part[2:].isdigit()), None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if maintained.found:
        terminalreporter.write_line(maintained.summary(maintained.found))


def pytest_runtest_setup(item: pytest.Item) -> None:
    random.seed(item.name)  # writers that choose by chance choose the same each time


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    from xdist.scheduler import LoadFileScheduling

    class InOrder(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
        """Files as they were collected, the heavy ones first."""

        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    config.option.loadscopereorder = False
    return InOrder(config, log)


def scope(nodeid: str) -> str:
    """What one worker runs in one go: a file, files that share much, or one test over a folder of step files."""
    file, _, test = nodeid.partition("::")
    if file.startswith(TOGETHER):
        return TOGETHER
    return nodeid.rpartition("/")[0] if file == SPLIT and "/" in test else file


def _place(nodeid: str) -> int:
    file = nodeid.partition("::")[0]
    return HEAVY.index(file) if file in HEAVY else len(HEAVY)
