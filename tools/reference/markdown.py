"""Pieces of Markdown that all reference pages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MADE = "<!-- Written by `make reference` from the source. Do not edit. -->"


def page(title: str, *parts: str) -> str:
    """A whole page: the parts are separated by empty lines."""
    return "\n\n".join([f"# {title}", MADE, *(part.strip("\n") for part in parts if part)]) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *([cell(each) for each in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(text: str) -> str:
    """Text for a table: on one line, and with no end of the cell in it."""
    return " ".join(text.split()).replace("|", "\\|")


def prose(docstring: str | None) -> str:
    """A docstring as paragraphs without its indentation and line ends; backslashes and angles as they are read."""
    paragraphs = (docstring or "").strip().split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs).replace("<", "&lt;")
