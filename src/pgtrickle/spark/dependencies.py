"""What tasks need besides our own code, as one archive that Spark unpacks beside each executor.

`pgtrickle package FILE` writes it, of what is installed here: it fits executors whose Python and platform are the same.
The setting `spark_archive` has a session use it. Nothing needs to be installed on a cluster's machines then but Python.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Final

from pgtrickle.config import Settings
from pgtrickle.errors import EnvironmentProblem, UsageError
from pgtrickle.spark import connect
from pgtrickle.spark.executors import code

DAEMON: Final = "pgtrickle.spark.daemon"
_UNPACKED: Final = "pgtrickle_packages"
"""The directory beside each executor that the archive is unpacked to."""
_OF_TASKS: Final = ("adbc-driver-postgresql", "numpy", "pandas", "psycopg", "pyarrow", "sqlglot")
_IF_INSTALLED: Final = ("psycopg-binary",)
"""What brings libpq along; without it, the executors' machines must have one, as this one has."""
_PYTHON: Final = Path(str(files("pgtrickle.spark") / "python.sh"))
_LEFT_OUT: Final = frozenset({"tests", "test", "__pycache__", "include"})


def of(settings: Settings) -> dict[str, str]:
    """Spark's settings by which executors have the archive, if there is one."""
    found = archive_of(settings)
    if not found or settings.spark_master.startswith("local"):
        return {}
    if settings.spark_master.startswith(connect.ADDRESS):
        return {connect.ARCHIVES: found}
    return {
        connect.ARCHIVES: found,
        "spark.executorEnv.PYTHONPATH": _UNPACKED,
        "spark.python.daemon.module": DAEMON,
    }


def archive_of(settings: Settings) -> str:
    """The archive as Spark names one: the file or address, and where it is unpacked. Nothing if there is none."""
    name = settings.spark_archive
    if not name:
        return ""
    if "://" not in name and not Path(name).is_file():
        raise UsageError(
            f"setting spark_archive: there is no file {name}",
            code="PT525",
            hint="Write it with: pgtrickle package FILE.tar.gz",
        )
    return f"{name if '://' in name else Path(name).absolute()}#{_UNPACKED}"


def write(target: Path) -> list[str]:
    """Writes the archive; returns what is in it, each with its version."""
    if not target.name.endswith((".tar.gz", ".tgz")):
        raise UsageError(f"{target.name} does not end in .tar.gz", code="PT524", hint="Spark unpacks it by that name.")
    found = list(_needed())
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with tarfile.open(draft, "w:gz", compresslevel=1) as archive:
            for each in found:
                for place, path in _files(each):
                    archive.add(path, place, recursive=False)
            for place, content in code().items():
                archive.addfile(_file(place, len(content)), io.BytesIO(content))
            version = f"python{sys.version_info.major}.{sys.version_info.minor}"
            program = _PYTHON.read_text().replace("@PYTHON@", version).encode()
            archive.addfile(_file("python", len(program), mode=0o755), io.BytesIO(program))
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise EnvironmentProblem(
            f"cannot write {target}: {error.strerror}", code="PT519", hint="name a directory that can be written"
        ) from error
    return sorted(["pgtrickle", *(f"{each.name} {each.version}" for each in found)])


def _file(place: str, size: int, *, mode: int = 0o644) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(place)
    entry.size, entry.mode = size, mode
    return entry


def _needed() -> Iterator[Distribution]:
    """What tasks import, and what that needs."""
    seen, left = set[str](), [*_OF_TASKS, *_IF_INSTALLED]
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError as error:
            if name in _OF_TASKS:
                raise EnvironmentProblem(
                    f"{name} is not installed here", code="PT520", hint="install pgtrickle by pip, with what it needs"
                ) from error
            continue  # for other platforms, or not asked for
        yield found
        for required in found.requires or ():
            if "extra ==" not in required:
                left.append(re.match(r"[\w.-]+", required).group())  # type: ignore[union-attr]  # it begins with a name


def _files(found: Distribution) -> Iterator[tuple[str, Path]]:
    """The files of a distribution, with their places in the archive."""
    for file in found.files or ():
        place = PurePosixPath(file)
        if place.is_absolute() or ".." in place.parts or _LEFT_OUT & set(place.parts):
            continue
        path = Path(str(found.locate_file(file)))
        if path.is_file():
            yield str(place), path
