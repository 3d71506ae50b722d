"""A process that decodes the WAL of a database as long as it lives, for tests that kill it.

python -m tests.wal.decoder_child DSN          (PGTRICKLE_FAILPOINT says where it dies by itself)

It waits for a slot. Losing the server or the slot ends it with exit code LOST; any other error is a traceback.
"""

from __future__ import annotations

import sys
import threading
import time

import psycopg

from pgtrickle import db
from pgtrickle.capture import slot
from pgtrickle.capture.decoder import Decoder
from pgtrickle.capture.modes import SlotState
from pgtrickle.errors import ServerError

LOST = 3


def main(dsn: str) -> None:
    with db.open_session(dsn) as conn:
        while slot.inspect(conn).state is not SlotState.ALIVE:
            time.sleep(0.02)
        name = slot.name(conn)
    print("decoding", file=sys.stderr, flush=True)
    Decoder(dsn, name, name).run(threading.Event())


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except (ServerError, psycopg.OperationalError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(LOST)
