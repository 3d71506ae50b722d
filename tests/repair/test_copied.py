"""A data directory that was copied while its server was down: the copy has the slot too, and each goes on by itself."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtrickle import db, embedded
from tests.conftest import FAST
from tests.wal.world import World, decoding, to_wal, world


@pytest.fixture
def home() -> Iterator[Path]:
    found = Path(tempfile.mkdtemp(prefix="pgtrickle-copied-"))
    found.chmod(0o755)
    try:
        yield found
    finally:
        for name in ("original", "copy"):
            embedded.stop(found / name)
        shutil.rmtree(found, ignore_errors=True)


def copy(directory: Path, target: Path) -> None:
    shutil.copytree(directory, target)
    owner = directory.stat()
    for path in (target, *target.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)


def test_no_row_is_lost_or_doubled_on_either_side(home: Path) -> None:
    with world(embedded.start(home / "original", settings=FAST).dsn) as made:
        to_wal(made)
        made.conn.execute("INSERT INTO t VALUES (1, 1), (2, 2)")  # not decoded yet when the server stops
    embedded.stop(home / "original")
    copy(home / "original", home / "copy")
    servers = [embedded.start(home / name, settings=FAST) for name in ("original", "copy")]
    for number, server in enumerate(servers, 10):
        with db.open_session(server.dsn) as conn:
            conn.execute("SET synchronous_commit = on")
            there = World(server.dsn, conn, made.source, made.columns, made.pgt_id, made.frontier)
            conn.execute("INSERT INTO t VALUES (%s, 0)", (number,))
            conn.execute("UPDATE t SET v = v + %s WHERE id = 1", (number,))
            with decoding(there):
                there.await_decoder()
            assert there.mode() == "WAL"
            assert there.counted() == there.content()
    assert servers[0].port != servers[1].port
