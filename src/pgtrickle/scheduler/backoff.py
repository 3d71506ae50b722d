"""How long to wait before something that failed is tried again. Pure; called wherever the service tries again."""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 0.5
LONGEST_S: Final = 30.0
LONGEST_OF_A_TABLE_S: Final = 300.0


def pause_after(failures: int, *, longest_s: float = LONGEST_S) -> float:
    """Seconds to wait after so many failures in a row: twice as long after each, up to a limit; 0 after none."""
    if failures < 1:
        return 0.0
    return min(FIRST_S * float(1 << min(failures - 1, 20)), longest_s)


def pause_of_a_table(failures: int, jitter: float) -> float:
    """The same for a refresh that failed: longer, up to five minutes.

    `jitter`, from 0 to 1, takes up to half of it off, so that tables which failed together come back one by one.
    """
    return pause_after(failures, longest_s=LONGEST_OF_A_TABLE_S) * (1 - jitter / 2)
