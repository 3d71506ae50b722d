"""Answers of the public interface as dictionaries of JSON's own types. All that `api` returns derives from this."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from enum import Enum

from pgtrickle.errors import Error


@dataclass(frozen=True, slots=True)
class Record:
    """A dataclass that is also a mapping by the names of its fields: `dict(record)` and `record.to_dict()` are the
    same, and `json.dumps` takes them. Attributes keep Python's types, such as `datetime`."""

    def to_dict(self) -> dict[str, object]:
        """Its fields by name; times as ISO 8601."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    def keys(self) -> Iterator[str]:
        """The names of its fields, for `dict()`."""
        return iter(self.to_dict())

    def __getitem__(self, name: str) -> object:
        return self.to_dict()[name]


def _plain(value: object) -> object:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Error):
        return {"code": value.code, "message": value.message, "hint": value.hint}
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
