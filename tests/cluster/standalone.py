"""A standalone cluster of Spark on this machine: a master and workers, each a process of the installed pyspark.

Its workers run tasks by a Python that lacks pgtrickle, as workers of a cluster do: what tasks need of it must come to
them by itself. Used by the fixtures in `conftest.py`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

import pyspark

from pgtrickle.spark import archive, java

HOME = Path(pyspark.__file__).parent
JAVA_OPTIONS = " ".join([java.QUICK, *archive.options(java.find())])
"""What these processes of Java start quickly with."""
_STARTS_WITHIN_S = 240.0
"""The machine may be busy with other tests."""


@dataclass(slots=True)
class Cluster:
    """`python`: what its workers run tasks with."""

    directory: Path
    python: Path
    url: str
    workers: list[subprocess.Popen[bytes]]

    @property
    def executors(self) -> list[int]:
        """The processes that run tasks, of all applications."""
        below = [pid for worker in self.workers for pid in descendants(worker.pid)]
        return [pid for pid in below if is_executor(pid)]

    def logs(self) -> str:
        """All that master, workers and executors have written."""
        files = [
            path for path in self.directory.rglob("*") if path.name in {"stdout", "stderr"} or path.suffix == ".log"
        ]
        return "\n".join(path.read_text(errors="replace") for path in files)


def descendants(pid: int) -> list[int]:
    """The processes that one has started, and those that these have."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))
    found, left = list[int](), [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def command_of(pid: int) -> str:
    """The command line of a process; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def is_executor(pid: int) -> bool:
    return "CoarseGrainedExecutorBackend" in command_of(pid)


def is_stopped(pid: int) -> bool:
    """Whether it hangs by a signal."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


@contextmanager
def standalone(directory: Path, workers: int = 2, cores: int = 2) -> Iterator[Cluster]:
    """A cluster that is up; all its processes have ended afterwards."""
    python = bare_python(directory / "python", without=("pgtrickle",))
    started: list[subprocess.Popen[bytes]] = []
    try:
        log = directory / "master.log"
        started.append(_daemon("127.0.0.1", ["master.Master"], directory, log))
        url = awaited(log, r"Starting Spark master at (spark://\S+)", started[0])
        for number in range(workers):
            log, work = directory / f"worker{number}.log", directory / f"work{number}"
            flags = ["--cores", str(cores), "--memory", "2g", "--work-dir", str(work), url]
            started.append(_daemon(f"127.0.0.{number + 2}", ["worker.Worker", *flags], directory, log))
        for number in range(workers):
            awaited(
                directory / f"worker{number}.log", r"Successfully registered with master (\S+)", started[number + 1]
            )
        yield Cluster(directory, python, url, started[1:])
    finally:
        end(started)


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ends these processes with all that they have started."""
    for process in reversed(processes):
        below = {pid: command_of(pid) for pid in descendants(process.pid)}
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid, command in below.items():
            if command and command_of(pid) == command:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def bare_python(directory: Path, without: tuple[str, ...]) -> Path:
    """A Python of the same version that has what this one has installed, without those packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    site = next((directory / "lib").glob("python3*")) / "site-packages"
    for found in distributions():
        root = Path(str(found.locate_file(""))).resolve()
        if found.name in without or not root.is_relative_to(Path(sys.prefix)):
            continue
        tops = {file.parts[0] for file in found.files or () if file.parts[0] not in {"..", "__pycache__"}}
        for top in tops - {path.name for path in site.iterdir()}:
            (site / top).symlink_to(root / top)
    return directory / "bin" / "python"


def daemon_environment(directory: Path, host: str) -> dict[str, str]:
    """That of a machine which has Spark, and no pgtrickle."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "PG", "SPARK"))
    }
    return {
        **kept,
        "SPARK_HOME": str(HOME),
        "JAVA_HOME": str(java.shim_home(java.find())),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        "SPARK_LOCAL_IP": host,
        "SPARK_LOCAL_DIRS": str(directory / "scratch"),
    }


def _daemon(host: str, arguments: list[str], directory: Path, log: Path) -> subprocess.Popen[bytes]:
    """Each is a host of its own to Spark, which runs a second copy of a task only on another."""
    name, *flags = arguments
    ports = ["--host", host, "--port", "0", "--webui-port", "0"]
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *ports, *flags]
    environment = daemon_environment(directory, host)
    with log.open("wb") as out:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL)


def awaited(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    """What a line of the log says that must come soon, of a process that must not end before."""
    until = time.monotonic() + _STARTS_WITHIN_S
    while time.monotonic() < until and process.poll() is None:
        found = re.search(pattern, log.read_text(errors="replace")) if log.exists() else None
        if found is not None:
            return found.group(1)
        time.sleep(0.1)
    raise TimeoutError(f"{log} does not say {pattern}: {log.read_text(errors='replace')[-2000:]}")
