"""An archive of the classes that Spark loads (Java's class-data sharing), which halves what a start of Java costs.

It is made once, in the background, after the first start that finds none, for this Java and these jars. It is only ever
a help: Java ignores one that does not fit, a start that fails with one is tried again without, and where it cannot be
written there is none. `session` calls this; `python -m pgtrickle.spark.archive` makes it now.

PGTRICKLE_CLASS_ARCHIVE: `auto` (the default), `use` (one that is there, but make none), or `off`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pgtrickle.directories import cache_home
from pgtrickle.spark import java
from pgtrickle.spark.java import Java

VARIABLE: Final = "PGTRICKLE_CLASS_ARCHIVE"
_BEGINS_WITH: Final = (b"\xa8\xab\x0b\xf0", b"\xf0\x0b\xab\xa8")  # a dynamic archive, in either byte order
_TRY_AGAIN_S: Final = 86_400
"""After a try that made none: this Java cannot, or the process was ended."""
_UNUSED_S: Final = 30 * 86_400
_AFTER_S: Final = 15.0
"""The command that found none is left the machine for so long."""
_WITHIN_S: Final = 600.0


def options(found: Java) -> list[str]:
    """What to start Java with so that it uses the archive; nothing if there is none."""
    archive = path(found)
    if _mode() == "off" or archive is None or not _is_whole(archive):
        return []
    with suppress(OSError):
        os.utime(archive)  # in use, so not pruned
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr"]


def discard(found: Java) -> None:
    """Removes an archive with which Java did not start."""
    archive = path(found)
    if archive is not None:
        with suppress(OSError):
            archive.unlink()


def make_later(found: Java) -> None:
    """Has it made in the background if there is none, by a process that outlives this one."""
    archive = path(found)
    if _mode() != "auto" or archive is None or _is_whole(archive) or not _claim(archive):
        return
    with suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(_AFTER_S)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )


def path(found: Java) -> Path | None:
    """Where the archive for this Java and these jars is, or would be."""
    spark = find_spec("pyspark")
    jars = [Path(root) / "jars" for root in (spark.submodule_search_locations or ())] if spark else []
    if "SPARK_HOME" in os.environ or not jars or not jars[0].is_dir():
        return None
    real = found.executable.resolve()
    told = [f"{real} {_stamp(real)} {_stamp(real.parents[1] / 'release')}", str(jars[0])]
    told += sorted(f"{jar.name} {_stamp(jar)}" for jar in jars[0].iterdir())
    return cache_home() / f"classes-{found.version}-{sha256(chr(10).join(told).encode()).hexdigest()[:16]}.jsa"


def make(found: Java) -> Path | None:
    """Makes it: Spark does a little of everything and Java keeps what it loaded. None if this Java cannot."""
    archive = path(found)
    if archive is None:
        return None
    archive.parent.mkdir(parents=True, exist_ok=True)
    draft = archive.with_suffix(f".{os.getpid()}")
    try:
        _train(draft)
        if not _is_complete(draft):
            return None
        _size_of(archive).write_text(str(draft.stat().st_size))
        draft.replace(archive)
        _prune(archive)
        return archive
    finally:
        draft.unlink(missing_ok=True)


def _mode() -> str:
    return os.environ.get(VARIABLE, "auto").strip().lower()


def _stamp(file: Path) -> str:
    try:
        status = file.stat()
    except OSError:
        return "-"
    return f"{status.st_size} {status.st_mtime_ns}"


def _is_complete(archive: Path) -> bool:
    """Whether Java has written it to the end: the header, which it looks at first, is what it writes last."""
    try:
        with archive.open("rb") as file:
            return file.read(4) in _BEGINS_WITH
    except OSError:
        return False


def _is_whole(archive: Path) -> bool:
    """Whether it is as it was made: Java would crash on one that a full disk has cut off."""
    try:
        return _is_complete(archive) and archive.stat().st_size == int(_size_of(archive).read_text())
    except (OSError, ValueError):
        return False


def _size_of(archive: Path) -> Path:
    """The file that says how large the archive is."""
    return archive.with_suffix(".size")


def _claim(archive: Path) -> bool:
    """Whether this process is the one to have it made."""
    mark = archive.with_suffix(".making")
    try:
        with suppress(FileNotFoundError):
            if time.time() - mark.stat().st_mtime > _TRY_AGAIN_S:
                mark.unlink()
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch(exist_ok=False)
    except OSError:
        return False
    return True


def _train(draft: Path) -> None:
    """In this process: a session whose Java writes the archive when it ends."""
    os.environ[VARIABLE] = "off"
    os.environ["SPARK_SUBMIT_OPTS"] = f"{java.QUICK} -XX:ArchiveClassesAtExit={draft} -Xlog:disable"
    from pgtrickle.spark import session, training

    training.run(session.session("local[2]"))
    session.end(_WITHIN_S)


def _prune(kept: Path) -> None:
    """Removes archives of Javas and jars that are not used any more."""
    for other in kept.parent.glob("classes-*"):
        with suppress(OSError):
            if other != kept and time.time() - other.stat().st_mtime > _UNUSED_S:
                other.unlink()


def main(arguments: list[str]) -> int:
    """Makes it if there is none; niced, since someone may wait for the machine."""
    os.nice(10)
    time.sleep(float(arguments[0]) if arguments else 0)
    found = java.find()
    archive = path(found)
    if archive is not None and _is_whole(archive):
        return 0
    return 0 if make(found) is not None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
