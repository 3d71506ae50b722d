"""Plans are as they were: a change of the planner shows as a diff of files. `make plans` writes them anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgtrickle import db, embedded
from pgtrickle.query.rewrite import RULES
from tests.plans.files import ROOT, path_of, planner
from tests.plans.queries import Planned, all_queries
from tests.plans.writing import name, plans


@pytest.fixture(scope="module")
def connection(server18: embedded.Server) -> Iterator[db.Connection]:
    with planner(server18) as found:
        yield found


@pytest.mark.parametrize("planned", list(all_queries()), ids=lambda planned: planned.name)
def test_plans(planned: Planned, connection: db.Connection) -> None:
    assert path_of(planned).read_text() == plans(connection, planned), "if it is meant: make plans, and see the diff"


def test_every_file_has_its_query() -> None:
    assert set(ROOT.rglob("*.plan")) == {path_of(planned) for planned in all_queries()}


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_every_rewrite_acts_in_one_of_them(rule: object) -> None:
    acted = {
        line.strip()
        for path in ROOT.rglob("*.plan")
        for line in path.read_text().partition("operators")[0].splitlines()
    }
    assert getattr(rule, "__name__", None) in acted
