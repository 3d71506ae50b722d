"""Rows told apart by their image, so that `1.0` and `1.00` are two: the lossless form of each value. Pure SQL."""

from __future__ import annotations

from pgtrickle.model import Column, quote
from pgtrickle.postgres.wire import WEIGHT, Wire, send, wire
from pgtrickle.query.looks import restored


def by_image(relation: str, columns: tuple[Column, ...]) -> str:
    """Rows with the same image added up: grouped by their lossless text form, since `=` may hold for other digits. The
    columns have their own collations again."""
    forms = [image(column) for column in columns]
    grouped = ", ".join([*(f"{form} AS {quote(c.name)}" for form, c in zip(forms, columns, strict=True)), WEIGHT])
    values = [f"{restored(quote(c.name), c.type)} AS {quote(c.name)}" for c in columns]
    group = f" GROUP BY {', '.join(quote(c.name) for c in columns)}" if columns else ""
    return (
        f"SELECT {', '.join([*values, f'sum({WEIGHT})::bigint AS {WEIGHT}'])} "
        f"FROM (SELECT {grouped} FROM ({relation}) AS rows) AS forms{group} HAVING sum({WEIGHT}) <> 0"
    )


def image(column: Column, alias: str = "") -> str:
    """The column as something that is equal only for equal images."""
    name = alias + quote(column.name)
    if wire(column.type) is not Wire.TEXT:
        return name
    return f'({send(name, column.type)}) COLLATE "C"'
