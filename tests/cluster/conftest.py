"""One cluster for all tests of this directory that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.standalone import Cluster, standalone


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("cluster")) as found:
        yield found
