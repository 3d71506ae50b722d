"""Many rows of pgoutput at once become rows of a binary COPY. Pure; called by `copybinary.py` for long runs of inserts
or deletes of one table.

Row by row, Python would touch each column of each row. Here all rows stand in one array of bytes, and column after
column of all rows is looked at. A row needs no moving of values: what pgoutput has and COPY has not is left out (the
count of columns, the byte before each value that tells its kind, columns not used), and a NULL is one byte that
becomes four.

    pgoutput    N count   b length data   n      b length data
    COPY        head        length data   ⟨−1⟩     length data   tail
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

_BINARY, _NULL, _TEXT = b"bnt"
_PREFIX: Final = 3  # the kind of row, and the count of columns
_PAD: Final = bytes(8)  # a length read where a row that ends in NULL has none

Positions: TypeAlias = NDArray[np.int64]


def transcode(
    rows: list[bytes], columns: int, used: Collection[int], head: bytes, tail: bytes, text: Collection[int] = ()
) -> tuple[bytes, list[bytes]]:
    """The COPY rows, each between `head` and `tail`; and those of `rows` that must be looked at one by one.

    `columns` is how many each row should have, `used` the places of those wanted, `text` of those that may be in text
    form. A row is left over if it is not made of that many binary values and NULLs, to the last byte.
    """
    glue = tail + head
    joined = glue.join(rows) + _PAD
    octets = np.frombuffer(joined, np.uint8)
    words: NDArray[np.uint32] = np.ndarray((len(joined) - 3,), ">u4", joined, strides=(1,))  # one begins at each byte
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    ends = np.cumsum(sizes + len(glue)) - len(glue)
    starts = ends - sizes
    times = np.ones(len(joined), np.int8)
    times[-len(_PAD) :] = 0
    for place in range(_PREFIX):
        times[starts + place] = 0
    fit = octets[starts + 1].astype(np.int64) * 256 + octets[starts + 2] == columns
    nulls: list[Positions] = []
    unused: list[tuple[Positions, Positions]] = []
    at = starts + _PREFIX
    for place in range(columns):
        if (at >= ends).any():
            return _without(rows, at < ends, columns, used, head, tail, text)
        kind = octets[at]
        is_null = kind == _NULL
        fit &= (kind == _BINARY) | is_null | ((kind == _TEXT) & (place in text))
        after = at + 5 + words[at + 1]
        if is_null.any():
            after = np.where(is_null, at + 1, after)
        if place in used:
            times[at] = 0
            nulls.append(at[is_null])
        else:
            unused.append((at, after))
        at = after
    fit &= at == ends
    if not fit.all():
        return _without(rows, fit, columns, used, head, tail, text)
    if unused:
        depth = np.zeros(len(joined), np.int8)
        for begin, end in unused:
            depth[begin] += 1
            depth[end] -= 1
        times[np.cumsum(depth, dtype=np.int8) > 0] = 0
    where = np.concatenate(nulls) if nulls else starts[:0]
    if len(where):
        octets = octets.copy()
        octets[where] = 0xFF
        times[where] = 4
        values = np.repeat(octets, times)
    else:
        values = octets[times.view(np.bool_)]
    return b"".join((head, values.tobytes(), tail)), []


def _without(
    rows: list[bytes],
    fit: NDArray[np.bool_],
    columns: int,
    used: Collection[int],
    head: bytes,
    tail: bytes,
    text: Collection[int],
) -> tuple[bytes, list[bytes]]:
    """The same for the rows that fit; the others are left over."""
    good = [row for row, fits in zip(rows, fit, strict=True) if fits]
    bad = [row for row, fits in zip(rows, fit, strict=True) if not fits]
    if not good:
        return b"", bad
    done, more = transcode(good, columns, used, head, tail, text)
    return done, bad + more
