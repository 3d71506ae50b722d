"""The archive of classes: made once, used by the next start, and never in the way of one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pgtrickle.spark import archive, java

START = """
from pathlib import Path
from pyspark import SparkContext
from pgtrickle.spark import archive, java, session
spark = session.session("local[1]")
found = archive.path(java.find())
mapped = str(found) in Path(f"/proc/{SparkContext._gateway.proc.pid}/maps").read_text()
print(spark.range(10).count(), mapped, found.exists())
"""


def python(home: Path, *arguments: str, mode: str = "use") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
            "PGTRICKLE_HOME": str(home),
            archive.VARIABLE: mode,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def make(home: Path) -> None:
    made = python(home, "-m", "pgtrickle.spark.archive", mode="auto")
    assert (made.returncode, made.stdout, made.stderr) == (0, "", "")


@pytest.mark.long
def test_no_draft_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """(`make test` makes one too, before it begins.)"""
    make(tmp_path)
    monkeypatch.setenv("PGTRICKLE_HOME", str(tmp_path))
    found = archive.path(java.find())
    assert found is not None
    assert {each.suffix for each in found.parent.glob("classes-*")} == {".jsa", ".size"}


def test_it_is_used_and_ignored_if_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = archive.path(java.find())
    monkeypatch.setenv("PGTRICKLE_HOME", str(tmp_path))
    found = archive.path(java.find())
    assert there is not None
    assert found is not None
    if there.exists():  # the one that the other tests use will do
        found.parent.mkdir(parents=True)
        for suffix in (".jsa", ".size"):
            shutil.copy(there.with_suffix(suffix), found.with_suffix(suffix))
    else:
        make(tmp_path)
    used = python(tmp_path, "-c", START)
    assert (used.stdout, used.stderr) == ("10 True True\n", "")
    size = found.stat().st_size
    found.chmod(0o644)
    os.truncate(found, size // 2)
    assert archive.options(java.find()) == [], "it is not given to Java"
    found.with_suffix(".size").write_text(str(size // 2))  # if it were, Java would crash
    cut = python(tmp_path, "-c", START)
    assert (cut.stdout, cut.stderr) == ("10 False False\n", ""), "it is thrown away"


def test_what_is_not_an_archive_is_not_given_to_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGTRICKLE_HOME", str(tmp_path))
    monkeypatch.setenv(archive.VARIABLE, "auto")
    found = java.find()
    place = archive.path(found)
    assert place is not None
    assert archive.options(found) == [], "there is none"
    place.parent.mkdir(parents=True)
    place.write_bytes(bytes(4096))  # as far as Java gets that is ended while it writes
    assert archive.options(found) == []
    place.write_bytes(b"\xa8\xab\x0b\xf0" + bytes(4096))
    assert archive.options(found) == []
    place.with_suffix(".size").write_text("4100")
    assert f"-XX:SharedArchiveFile={place}" in archive.options(found)
    monkeypatch.setenv(archive.VARIABLE, "off")
    assert archive.options(found) == []


def test_one_process_makes_it_and_others_leave_it_to_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGTRICKLE_HOME", str(tmp_path))
    place = archive.path(java.find())
    assert place is not None
    assert [archive._claim(place) for _ in range(3)] == [True, False, False]
    mark = place.with_suffix(".making")
    os.utime(mark, (0, 0))
    assert archive._claim(place), "the one that claimed it has come to nothing"
    (tmp_path / "file").touch()
    assert not archive._claim(tmp_path / "file" / "classes.jsa"), "nowhere to write"


def test_another_java_or_other_jars_have_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGTRICKLE_HOME", str(tmp_path))
    found = java.find()
    other = tmp_path / "jdk" / "bin" / "java"
    other.parent.mkdir(parents=True)
    other.touch()
    first = archive.path(found)
    assert archive.path(found) == first
    assert archive.path(java.Java(other, found.version, "PATH")) != first
    monkeypatch.setenv("SPARK_HOME", "/elsewhere")
    assert archive.path(found) is None
