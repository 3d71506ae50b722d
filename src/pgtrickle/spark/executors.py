"""How our code gets to the executors of a cluster, and whether they can run it.

Tasks name functions of this package. So the package goes with them, as a zip of a few hundred kilobytes, and what runs
there is what runs here. What it needs (psycopg, pyarrow, the ADBC driver) is too much to send with each session: it is
installed there, or comes as an archive (`dependencies.py`). Called by `session.py` and `user_session.py`.
"""

from __future__ import annotations

import os
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pgtrickle.directories import cache_home
from pgtrickle.errors import EnvironmentProblem
from pgtrickle.spark.daemon import OF_EVERY_TASK
from pgtrickle.spark.java_errors import text_of

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""The time of each file in the zip: the same code is the same zip."""


def send_code(session: SparkSession) -> None:
    """Has the executors of a session import this package from what this process sends them."""
    if is_connect(session):
        session.addArtifacts(str(package_zip()), pyfile=True)
    else:
        session.sparkContext.addPyFile(str(package_zip()))


def is_connect(session: object) -> bool:
    """Whether a session is one of Spark Connect, which has no Java in this process."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def package_zip() -> Path:
    """This package as a zip, made once for each of its versions."""
    found = code()
    told = sha256()
    for name, content in found.items():
        told.update(f"{name} {len(content)} ".encode() + content)
    target = cache_home() / f"pgtrickle-{told.hexdigest()[:16]}.zip"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(draft, "w") as archive:
            for name, content in found.items():
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
        draft.replace(target)
    return target


def code() -> dict[str, bytes]:
    """The files of this package, by place."""
    root = Path(str(files("pgtrickle")))
    found = sorted(path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(root.parent).as_posix(): path.read_bytes() for path in found}


def require_workers(session: SparkSession) -> None:
    """Has one Python worker import what every task of ours imports; an error says what is missing there."""
    try:
        found = session.range(1).mapInArrow(_imported, "name string, code string").toArrow()
    except (PySparkException, Py4JError) as error:
        raise _of_workers(text_of(error)) from error
    others = [
        name
        for name, code in zip(*(column.to_pylist() for column in found.columns), strict=True)
        if code != _code_of(name)
    ]
    if others:
        raise EnvironmentProblem(
            f"the Python workers of Spark have another version of pgtrickle ({others[0]} differs)",
            code="PT516",
            hint="install there what is installed here, or nothing: the package is sent to workers that lack it",
        )


def _imported(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run by the worker."""
    import pyarrow

    for _ in batches:
        ours = [name for name in OF_EVERY_TASK if name.startswith("pgtrickle.")]
        for name in OF_EVERY_TASK:
            import_module(name)
        yield pyarrow.RecordBatch.from_pydict({"name": ours, "code": [_code_of(name) for name in ours]})


def _code_of(module: str) -> str:
    """A digest of a module's source, wherever it was imported from."""
    found = find_spec(module)
    assert found is not None
    assert found.loader is not None
    assert found.origin is not None
    return sha256(found.loader.get_data(found.origin)).hexdigest()  # type: ignore[attr-defined]  # of files and of zips


def _of_workers(said: str) -> EnvironmentProblem:
    hint = f"set PYSPARK_PYTHON={sys.executable} (or the like on each worker) before the SparkSession is started"
    if missing := re.search(r"No module named '([^']+)'", said):
        return EnvironmentProblem(
            f"the Python workers of the SparkSession have no {missing.group(1)}",
            code="PT485",
            hint=f"{hint}; or install what pgtrickle needs there; or have it sent: `pgtrickle package FILE.tar.gz`, and"
            " PGTRICKLE_SPARK_ARCHIVE",
        )
    other = re.search(r"PYTHON_VERSION_MISMATCH[^\n]*", said)
    unknown = re.search(r'Cannot run program "([^"]+)"', said)
    if other or unknown:
        which = f"cannot be started ({unknown.group(1)})" if unknown else "are of another version than this one"
        return EnvironmentProblem(f"the Python workers of the SparkSession {which}", code="PT484", hint=hint)
    lines = [
        line.strip() for line in said.splitlines() if line.strip() and not line.strip().startswith(("at ", "File"))
    ]
    return EnvironmentProblem(
        f"the Python workers of the SparkSession cannot run our tasks: {lines[-1] if lines else 'no reason given'}",
        code="PT484",
        hint=hint,
    )
