"""What docs/operations.md and the Containerfile say of systemd, containers and Kubernetes, as far as it goes without
these: systemd takes the unit; its command, the image's and its health check run; the probes are answered."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.monitor.test_metrics import free_port
from tests.service.running import PROGRAM, until

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "operations.md").read_text()
IMAGE = (ROOT / "Containerfile").read_text()
PORT = "9187"


def block(title: str, language: str) -> str:
    """The one block of this language below a heading."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(text)


def unit(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", block("systemd", "ini"), re.MULTILINE)


def image(instruction: str) -> list[str]:
    """The arguments of an instruction that is written as a list."""
    (found,) = re.findall(rf"^{instruction} (\[.*\])$", IMAGE, re.MULTILINE)
    return [str(each) for each in json.loads(found)]


def status(port: int, path: str) -> int | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


@contextmanager
def started(
    command: list[str], environment: dict[str, str], place: Path
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command with a free port in place of the one that is written, once it is ready."""
    port = free_port()
    given = [str(PROGRAM), *(each.replace(PORT, str(port)) for each in command[1:])]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(given, env=environment, stderr=log, cwd=place)
    try:
        until(lambda: status(port, "/readyz") == 200, lambda: (place / "log").read_text())
        yield process, port
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "pgtrickle.service"

    def complaints(text: str) -> list[str]:
        file.write_text(text.replace("/opt/pgtrickle/bin/pgtrickle", str(PROGRAM)))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
        )
        return [line for line in (done.stdout + done.stderr).splitlines() if "pgtrickle.service" in line]

    text = block("systemd", "ini")
    assert complaints(text) == []
    assert complaints(text.replace("ProtectSystem=", "ProtectSystems=")) != []


def test_the_units_commands_run(database18: str, tmp_path: Path) -> None:
    """By a service file, with a home of its own; HUP has it read its settings again, TERM ends it in time."""
    (tmp_path / "pg_service.conf").write_text(
        "[shop]\n" + "".join(f"{key}={value}\n" for key, value in conninfo_to_dict(database18).items())
    )
    environment = dict(each.split("=", 1) for each in unit("Environment"))
    assert environment["PGTRICKLE_HOME"] == f"/var/lib/{unit('StateDirectory')[0]}", "the only place that it may write"
    environment |= {
        "PGSERVICEFILE": str(tmp_path / "pg_service.conf"),
        "PGTRICKLE_HOME": str(tmp_path / "home"),
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
    }
    (reload,) = unit("ExecReload")
    assert shlex.split(reload) == ["/bin/kill", "-HUP", "$MAINPID"]
    with started(shlex.split(unit("ExecStart")[0]), environment, tmp_path) as (process, port):
        assert status(port, "/metrics") == 200
        process.send_signal(signal.SIGHUP)
        until(lambda: "settings_read" in (tmp_path / "log").read_text(), lambda: (tmp_path / "log").read_text())
        process.terminate()
        assert process.wait(int(unit("TimeoutStopSec")[0])) == 0, (tmp_path / "log").read_text()


def test_the_images_command_answers_its_health_check_and_the_probes(database18: str, tmp_path: Path) -> None:
    entry, command = image("ENTRYPOINT"), image("CMD")
    (health,) = re.findall(r"^HEALTHCHECK .*?CMD (\[.*\])$", IMAGE, re.MULTILINE)
    pod = block("Kubernetes", "yaml")
    assert re.findall(r"^EXPOSE (\d+)$", IMAGE, re.MULTILINE) == re.findall(r"containerPort: (\d+)", pod) == [PORT]
    docker = [shlex.split(line) for line in block("Container", "sh").splitlines()]
    built = docker[0][docker[0].index("-t") + 1]
    assert re.findall(r"image: (\S+)", pod) == [built]
    environment = {"PGTRICKLE_DSN": database18, "PGTRICKLE_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    with started([*entry, *command], environment, tmp_path) as (process, port):
        python, *arguments = json.loads(health)
        assert python == "python"
        asked = [sys.executable, *(each.replace(PORT, str(port)) for each in arguments)]
        assert subprocess.run(asked, check=False).returncode == 0
        probes = dict(re.findall(r"^ +(\w+)Probe: \{httpGet: \{path: (\S+), port: metrics\}", pod, re.MULTILINE))
        assert probes.keys() == {"startup", "liveness", "readiness"}
        assert {status(port, path) for path in probes.values()} == {200}
        process.terminate()
        assert process.wait(30) == 0
    for line in docker[1:]:
        assert line[:3] == ["docker", "run", "--rm"]
        after = line[line.index(built) + 1 :]
        if after:  # in place of CMD
            done = subprocess.run(
                [str(PROGRAM), *after], env=environment, capture_output=True, text=True, timeout=120, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
