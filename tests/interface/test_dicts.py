"""What the interface returns can be turned into dictionaries, and these into JSON."""

from __future__ import annotations

import json
import typing
from dataclasses import fields
from datetime import UTC, datetime

import psycopg

import pgtrickle
from pgtrickle import RefreshResult, Trickle
from pgtrickle.record import Record
from pgtrickle.refresh.decide import Action

RETURNED = {
    *("CdcChange", "CdcStatus", "Check", "Finding", "Follower", "HistoryRow", "ImmediateSource", "RefreshResult"),
    *("Repair", "SlotHealth", "StreamTable", "Verification"),
}


def test_every_record_that_a_call_returns_is_one() -> None:
    """By the annotations of the public methods: whatever class they name that is ours."""
    found: set[str] = set()
    for name, method in vars(Trickle).items():
        if callable(method) and not name.startswith("_"):
            returned = typing.get_type_hints(method)["return"]
            for each in (returned, *typing.get_args(returned)):
                if isinstance(each, type) and each.__module__.startswith("pgtrickle."):
                    assert issubclass(each, Record), f"{name} returns {each}"
                    found.add(each.__name__)
    assert found == RETURNED


def test_they_are_json(database18: str) -> None:
    with psycopg.connect(database18, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    with pgtrickle.connect(database18) as trickle:
        trickle.create_stream_table("made", "SELECT id FROM orders", initialize=False)
        (stream,) = trickle.status()
        records: list[Record] = [stream, *trickle.cdc_status(), *trickle.health(), *trickle.verify()]
        records += trickle.doctor()
    told = json.loads(json.dumps(stream.to_dict()))
    assert (told["pgt_name"], told["status"], told["refresh_mode"]) == ("made", "INITIALIZING", "AUTO")
    assert datetime.fromisoformat(told["created_at"]).astimezone(UTC) == stream.created_at
    for record in records:
        assert dict(record) == record.to_dict()
        assert list(record.to_dict())[: len(fields(record))] == [field.name for field in fields(record)]
        json.dumps(dict(record))


def test_a_result_is_json() -> None:
    result = RefreshResult(Action.DIFFERENTIAL, "2 changes", 1, 2, 3, 4.5, {"plan": 1.5})
    assert dict(result) == {
        "action": "DIFFERENTIAL",
        "reason": "2 changes",
        "rows_inserted": 1,
        "rows_deleted": 2,
        "changes_read": 3,
        "duration_ms": 4.5,
        "phases": {"plan": 1.5},
    }
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()
    assert result["action"] == "DIFFERENTIAL"
