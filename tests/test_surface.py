"""What `import pgtrickle` gives: small, listed, typed, and loaded only when asked for."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pgtrickle

ROOT = Path(__file__).parent.parent
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
    "register_spark_source",
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


def test_the_wheel_is_typed_and_has_what_it_reads(tmp_path: Path) -> None:
    """Built from the sources as they are: type marker, SQL and Spark's log configuration go along."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, copy / name)
    build = "from setuptools.build_meta import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", build, str(tmp_path)], cwd=copy, capture_output=True, check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        (told,) = (archive.read(name).decode() for name in held if name.endswith("/METADATA"))
    assert "pgtrickle/py.typed" in held
    assert "Classifier: Typing :: Typed" in told
    assert "# pgtrickle" in told, "the README"
    read = {path for path in (ROOT / "src" / "pgtrickle").rglob("*") if path.suffix in {".sql", ".properties", ".py"}}
    read |= {path for path in (ROOT / "src" / "pgtrickle" / "web" / "static").iterdir() if path.is_file()}
    assert {str(path.relative_to(ROOT / "src")) for path in read} <= held
