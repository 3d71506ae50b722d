"""How long to wait before something that failed is tried again. Pure; called wherever the service tries again."""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 0.5
LONGEST_S: Final = 30.0


def pause_after(failures: int, *, longest_s: float = LONGEST_S) -> float:
    """Seconds to wait after so many failures in a row: twice as long after each, up to a limit; 0 after none."""
    if failures < 1:
        return 0.0
    return min(FIRST_S * float(1 << min(failures - 1, 20)), longest_s)
