"""Which column a name means in a FROM clause. Pure; used by `build.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pgtrickle.model import Column
from pgtrickle.query.operators import Operator


@dataclass(frozen=True, slots=True)
class Scope:
    """A FROM item or a join of some: its rows, its fields in order (name, column), and what names may be used.

    `names` maps (alias or None, name) to a column; None as alias is a name usable without one. `outer` is the scope
    around a subquery, asked for names that are not here.
    """

    operator: Operator
    fields: tuple[tuple[str, str], ...]
    names: Mapping[tuple[str | None, str], str]
    outer: Scope | None = None

    @classmethod
    def of(cls, operator: Operator, fields: Sequence[tuple[str, str]], alias: str, renamed: Sequence[str]) -> Scope:
        """One relation under `alias`, its first fields renamed."""
        labels = [*renamed, *(name for name, _ in fields[len(renamed) :])]
        named = tuple((label, column) for label, (_, column) in zip(labels, fields, strict=True))
        return cls(operator, named, {(alias, label): column for label, column in named})

    def find(self, alias: str | None, name: str) -> str | None:
        """The column meant by `alias.name`, or by `name` alone; None if there is no such one."""
        found = self.names.get((alias, name))
        if found is None and alias is None:
            candidates = {column for (_, candidate), column in self.names.items() if candidate == name}
            found = candidates.pop() if len(candidates) == 1 else None
        if found is None and self.outer is not None:
            return self.outer.find(alias, name)
        return found

    def columns(self) -> list[Column]:
        """The columns of the rows, and of those around."""
        return [*self.operator.columns, *([] if self.outer is None else self.outer.columns())]

    def over(self, operator: Operator, renamed: Mapping[str, str] | None = None) -> Scope:
        """The same names for another operator, whose columns may be called otherwise."""
        given = renamed or {}
        fields = tuple((label, given.get(column, column)) for label, column in self.fields)
        return replace(
            self,
            operator=operator,
            fields=fields,
            names={key: given.get(column, column) for key, column in self.names.items()},
        )

    def field(self, name: str) -> str | None:
        """The column of a field that USING names."""
        candidates = [column for label, column in self.fields if label == name]
        return candidates[0] if len(candidates) == 1 else None
