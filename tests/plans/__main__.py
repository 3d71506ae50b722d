"""Writes all plans anew: `make plans`. See the diff before you commit it."""

from __future__ import annotations

import shutil

from tests.conftest import _server
from tests.plans.files import ROOT, path_of, planner
from tests.plans.queries import all_queries
from tests.plans.writing import plans

shutil.rmtree(ROOT, ignore_errors=True)
with _server(18) as server, planner(server) as connection:
    for planned in all_queries():
        path = path_of(planned)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(plans(connection, planned))
