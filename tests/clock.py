"""A query as of a time: what PostgreSQL's clock would answer then, written out. For tests, whose queries are ours."""

from __future__ import annotations

import re
from datetime import datetime

_CALL = re.compile(r"'(?:[^']|'')*'|now\(\)|CURRENT_DATE|CURRENT_TIMESTAMP|CURRENT_TIME|LOCALTIMESTAMP|LOCALTIME")
_TYPES = {
    "CURRENT_DATE": "date",
    "CURRENT_TIME": "timetz",
    "LOCALTIMESTAMP": "timestamp",
    "LOCALTIME": "time",
}


def at_time(query: str, at: datetime) -> str:
    """The query with a constant in place of all that reads the clock."""

    def constant(found: re.Match[str]) -> str:
        if found[0].startswith("'"):
            return found[0]
        return f"((timestamptz '{at.isoformat()}')::{_TYPES.get(found[0], 'timestamptz')})"

    return _CALL.sub(constant, query)
