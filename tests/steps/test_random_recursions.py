"""Random recursions over random graphs, with cycles, through random steps; PostgreSQL is the oracle."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, note, settings

from tests.steps.parser import StepFile
from tests.steps.recursions import files
from tests.steps.stream_table import OnTable

EXAMPLES = int(os.environ.get("PGTRICKLE_RANDOM_EXAMPLES", "6"))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(file=files())
def test_by_plain_sql(database_of_steps: str, file: StepFile) -> None:
    note(file.view)
    backend = OnTable(database_of_steps)
    try:
        backend.setup(file)
        for step in file.steps:
            backend.apply(step)
            assert backend.contents() == backend.answer(), step
    finally:
        backend.close()
