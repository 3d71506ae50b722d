"""The text of a node tree (`pg_rewrite.ev_action`) as values. Pure; read by `grouping_keys.py`.

    {VAR :varno 1 :varattno 2}    (i 1 2)    <>    4 [ 1 0 0 0 ]

A name in it may hold anything: what would end it has a backslash before it, and what follows a label is a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

_TOKEN = re.compile(r"[(){}]|\[ (?:-?\d+ )*\]|(?:\\.|[^\s(){}\\])+", re.DOTALL)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A node: what it is, and its fields by name."""

    kind: str
    fields: Mapping[str, Value]

    def node(self, name: str) -> Node | None:
        found = self.fields.get(name)
        return found if isinstance(found, Node) else None

    def nodes(self, name: str) -> list[Node]:
        """The nodes of a list."""
        found = self.fields.get(name)
        return [part for part in found if isinstance(part, Node)] if isinstance(found, tuple) else []

    def number(self, name: str) -> int:
        found = self.fields.get(name)
        return int(found) if isinstance(found, str) else 0

    def numbers(self, name: str) -> list[int]:
        """The numbers of a list: (i 1 2)."""
        found = self.fields.get(name)
        return [int(part) for part in found[1:] if isinstance(part, str)] if isinstance(found, tuple) else []


Value: TypeAlias = "Node | tuple[Value, ...] | str | None"


@dataclass(slots=True)
class _Open:
    """A list or node whose end was not read yet."""

    is_node: bool
    items: list[Value] = field(default_factory=list)
    fields: dict[str, Value] = field(default_factory=dict)
    label: str | None = None
    kind: str | None = None

    def add(self, value: Value) -> None:
        if self.is_node and isinstance(value, str):
            if self.kind is None:
                self.kind = value
                return
            if value.startswith(":") and (self.label is None or self.items):
                self._close_field()
                self.label = value[1:]
                return
        self.items.append(value)

    def _close_field(self) -> None:
        if self.label is not None:
            self.fields[self.label] = self.items[0] if len(self.items) == 1 else tuple(self.items)
        self.items = []

    def closed(self) -> Value:
        if not self.is_node:
            return tuple(self.items)
        self._close_field()
        return Node(self.kind or "", self.fields)


def parse(text: str) -> Value:
    """The value that a node tree's text is of."""
    opened = [_Open(is_node=False)]
    for found in _TOKEN.finditer(text):
        match found[0]:
            case "(" | "{" as bracket:
                opened.append(_Open(is_node=bracket == "{"))
            case ")" | "}":
                value = opened.pop().closed()
                opened[-1].add(value)
            case "<>":
                opened[-1].add(None)
            case atom:
                opened[-1].add(atom)
    return opened[0].items[0]


def walk(value: Value) -> Iterator[Node]:
    """All nodes of a tree."""
    left = [value]
    while left:
        found = left.pop()
        if isinstance(found, Node):
            yield found
            left.extend(reversed(list(found.fields.values())))
        elif isinstance(found, tuple):
            left.extend(reversed(found))
