"""What `import pgtrickle` gives: small, listed, typed, and loaded only when asked for."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from importlib.resources import files

import pgtrickle

PUBLIC = {
    "EnvironmentProblem",
    "Error",
    "QueryError",
    "RefreshResult",
    "ServerError",
    "ColumnsWarning",
    "SessionWarning",
    "StateError",
    "StreamTable",
    "Trickle",
    "Unsupported",
    "UsageError",
    "__version__",
    "connect",
}


def test_what_is_public_is_there_and_seen() -> None:
    assert set(pgtrickle.__all__) == PUBLIC
    assert set(dir(pgtrickle)) >= PUBLIC
    assert all(getattr(pgtrickle, name) is not None for name in PUBLIC)
    assert pgtrickle.__version__ == version("pgtrickle")


def test_it_is_typed() -> None:
    assert files("pgtrickle").joinpath("py.typed").is_file()


def test_importing_it_loads_neither_driver_nor_spark() -> None:
    code = "import sys, pgtrickle; print(sorted({'psycopg', 'pyspark', 'sqlglot'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
