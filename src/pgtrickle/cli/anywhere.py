"""`--dsn`, `--spark-conf` and `--json` may stand anywhere on the command line, before the verb or after it. Used by
`cli.main`.
"""

from __future__ import annotations

import typer
from typer.core import TyperGroup

from pgtrickle.cli.outcome import for_programs

_WITH_VALUE = ("--dsn", "--spark-conf")


class OptionsAnywhere(TyperGroup):
    """The application, with its general options brought to where they are declared before they are parsed."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # its own subclass
        placed = in_place(args)
        for_programs.set("--json" in placed)
        return super().parse_args(ctx, placed)


def in_place(args: list[str]) -> list[str]:
    """`--dsn` and `--spark-conf` with their values first, `--json` last; what stands after `--` is left alone."""
    end = args.index("--") if "--" in args else len(args)
    first: list[str] = []
    between: list[str] = []
    last: list[str] = []
    words = iter(args[:end])
    for word in words:
        if word in _WITH_VALUE:
            first += [word, *(value for value in [next(words, None)] if value is not None)]
        elif word.startswith(tuple(f"{option}=" for option in _WITH_VALUE)):
            first.append(word)
        elif word == "--json":
            last = [word]
        else:
            between.append(word)
    return [*first, *between, *last, *args[end:]]
