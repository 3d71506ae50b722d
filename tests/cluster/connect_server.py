"""A Spark Connect server on this machine, as a process of the installed pyspark, which has its jar."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.standalone import HOME, JAVA_OPTIONS, awaited, daemon_environment, end


@dataclass(frozen=True, slots=True)
class ConnectServer:
    """`url` is for sessions, `ui` shows what it does; its logs and event logs are in the directory."""

    directory: Path
    url: str
    ui: str
    pid: int


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert isinstance(port, int)
    return port


@contextmanager
def connect_server(directory: Path, python: Path, port: int, master: str = "local[2]") -> Iterator[ConnectServer]:
    """A server whose tasks are run by that Python; it has ended afterwards."""
    events = directory / "events"
    events.mkdir(parents=True, exist_ok=True)
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.pyspark.python": str(python),
        "spark.ui.port": "0",
    }
    command = [str(HOME / "bin" / "spark-submit"), "--master", master, "--driver-memory", "1g"]
    command += [flag for name, value in settings.items() for flag in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = daemon_environment(directory, "127.0.0.1") | {"PYSPARK_PYTHON": str(python)}
    environment["SPARK_DAEMON_MEMORY"] = "1g"  # which spark-submit takes for this server
    log = directory / "connect.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, env=environment, cwd=directory, stdout=out, stderr=out, stdin=subprocess.DEVNULL
        )
    try:
        awaited(log, r"Spark Connect server (started)", server)
        ui = awaited(log, r"Successfully started service 'SparkUI' on port (\d+)", server)
        yield ConnectServer(directory, f"sc://127.0.0.1:{port}", f"http://127.0.0.1:{ui}", server.pid)
    finally:
        end([server])
