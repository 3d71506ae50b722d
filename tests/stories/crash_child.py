"""A process that refreshes one stream table and is meant to die on the way (PGTRICKLE_FAILPOINT says where).

python -m tests.stories.crash_child DSN TABLE small|distributed
"""

from __future__ import annotations

import sys

from pgtrickle.api import Trickle
from pgtrickle.refresh import plan


def main(dsn: str, table: str, path: str) -> None:
    if path == "distributed":
        setattr(plan, "SMALL_CHANGES", -1)  # noqa: B010 - as tests patch it
    with Trickle(dsn, master="local[1]") as trickle:
        print(trickle.refresh_stream_table(table).action)


if __name__ == "__main__":
    main(*sys.argv[1:])
