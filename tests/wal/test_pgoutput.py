"""Messages of pgoutput, whole, cut short and mangled; and the rows that become of them, one by one or all at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrickle.capture import pgoutput
from pgtrickle.capture.bulk import transcode
from pgtrickle.capture.copybinary import BULK_ROWS, BufferShape, CopyTarget, Route, ValueType, extend_xid, misfit
from pgtrickle.capture.pgoutput import NULL, UNCHANGED, Begin, Commit, Message, ProtocolError, Relation, RelationColumn
from pgtrickle.capture.replication import Keepalive, format_lsn, keepalive, parse_lsn

LSN = st.integers(0, 2**64 - 1)
OID = st.integers(0, 2**32 - 1)
NAME = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
Values = list[tuple[str, bytes]]


def row(values: Values) -> bytes:
    """A row as the server writes it; a value is its kind (b, t, n, u) and its bytes."""
    columns = (kind.encode() + (pack(">I", len(data)) + data if kind in "bt" else b"") for kind, data in values)
    return pack(">H", len(values)) + b"".join(columns)


def fields(values: Values) -> list[bytes | None]:
    """What those values should become."""
    special: dict[str, bytes | None] = {"n": NULL, "u": UNCHANGED}
    return [special[kind] if kind in special else pack(">I", len(data)) + data for kind, data in values]


def values(kinds: str, count: int | None = None) -> st.SearchStrategy[Values]:
    low, high = (0, 6) if count is None else (count, count)
    return st.lists(st.tuples(st.sampled_from(kinds), st.binary(max_size=12)), min_size=low, max_size=high)


@dataclass(frozen=True)
class Whole:
    """A message, the function that reads it, and what it should say."""

    read: Callable[[bytes], object]
    data: bytes
    expected: object


@st.composite
def messages(draw: st.DrawFn) -> Whole:
    kind = draw(st.sampled_from("BCRTMIUD"))
    lsn, end, oid = draw(LSN), draw(LSN), draw(OID)
    if kind == "B":
        return Whole(pgoutput.begin, pack(">QqI", lsn, 0, oid), Begin(lsn, oid))
    if kind == "C":
        return Whole(pgoutput.commit, pack(">BQQq", 0, lsn, end, 0), Commit(lsn, end))
    if kind == "R":
        return _relation(draw, oid)
    if kind == "T":
        oids = tuple(draw(st.lists(OID, max_size=4)))
        return Whole(pgoutput.truncate, pack(f">IB{len(oids)}I", len(oids), 0, *oids), oids)
    if kind == "M":
        prefix, content, whole = draw(NAME), draw(st.binary(max_size=20)), draw(st.booleans())
        data = pack(">BQ", whole, lsn) + prefix.encode() + b"\0" + pack(">I", len(content)) + content
        return Whole(pgoutput.message, data, Message(whole, lsn, prefix, content))
    old, new = draw(values("bn")), draw(values("bnu"))
    mark = draw(st.sampled_from([b"K", b"O"]))
    if kind == "I":
        return Whole(lambda data: pgoutput.insert(data, 0), b"N" + row(new), fields(new))
    if kind == "D":
        return Whole(lambda data: pgoutput.delete(data, 0), mark + row(old), fields(old))
    if draw(st.booleans()):
        return Whole(lambda data: pgoutput.update(data, 0), b"N" + row(new), (None, fields(new)))
    return Whole(lambda data: pgoutput.update(data, 0), mark + row(old) + b"N" + row(new), (fields(old), fields(new)))


def _relation(draw: st.DrawFn, oid: int) -> Whole:
    schema, name = draw(NAME), draw(NAME)
    column = st.builds(RelationColumn, NAME, OID, st.integers(-1, 2**31 - 1), st.booleans())
    columns = tuple(draw(st.lists(column, max_size=5)))
    data = pack(">I", oid) + schema.encode() + b"\0" + name.encode() + b"\0f" + pack(">H", len(columns))
    for each in columns:
        data += bytes([each.key]) + each.name.encode() + b"\0" + pack(">Ii", each.type_oid, each.type_modifier)
    return Whole(pgoutput.relation, data, Relation(oid, schema, name, "f", columns))


@given(messages())
def test_a_message_says_what_was_put_in(whole: Whole) -> None:
    assert whole.read(whole.data) == whole.expected


@given(messages(), st.data())
def test_a_message_cut_short_is_an_error(whole: Whole, data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(whole.data) - 1))
    with pytest.raises(ProtocolError, match="not a whole"):
        whole.read(whole.data[:end])


@given(messages(), st.binary(min_size=1, max_size=8))
def test_a_message_with_more_behind_it_is_an_error(whole: Whole, more: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a whole"):
        whole.read(whole.data + more)


@given(messages(), st.data())
def test_a_mangled_message_is_read_or_refused_but_nothing_else(whole: Whole, data: st.DataObject) -> None:
    mangled = bytearray(whole.data)
    for _ in range(data.draw(st.integers(1, 3))):
        mangled[data.draw(st.integers(0, len(mangled) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        whole.read(bytes(mangled))


def test_text_is_taken_only_where_it_was_expected() -> None:
    data = b"N" + row([("t", b"=r/postgres"), ("b", b"\0\0\0\1")])
    assert pgoutput.insert(data, 0, {0}) == [pack(">I", 11) + b"=r/postgres", pack(">I", 4) + b"\0\0\0\1"]
    with pytest.raises(ProtocolError, match="column 0 came as 't'"):
        pgoutput.insert(data, 0, {1})


def test_the_schema_of_a_system_table_is_written_out() -> None:
    assert pgoutput.relation(pack(">I", 1) + b"\0pg_x\0d" + pack(">H", 0)).schema == "pg_catalog"


@given(LSN)
def test_positions_are_written_as_postgresql_writes_them(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn


def test_positions() -> None:
    assert format_lsn(0x16B374D848) == "16/B374D848"
    with pytest.raises(ValueError, match="not an LSN"):
        parse_lsn("16B374D848")


def test_a_keepalive_says_how_far_the_server_is_and_whether_it_waits() -> None:
    assert keepalive(pack(">cQqB", b"k", 77, 0, 1)) == Keepalive(77, True)
    with pytest.raises(ProtocolError, match="keepalive"):
        keepalive(b"k")


@pytest.mark.parametrize(
    ("xid", "reference", "expected"),
    [
        (700, 800, 700),
        (900, 800, 900),  # the reference was read before
        (2**32 - 5, 2**32 + 10, 2**32 - 5),  # the epoch has just turned; this one is from before
        (3, 2**32 - 5, 2**32 + 3),  # the epoch is about to turn
        (3, 5 * 2**32 + 10, 5 * 2**32 + 3),
        (2**32 - 1, 5 * 2**32, 5 * 2**32 - 1),
        (0, 2**31 - 1, 0),
    ],
)
def test_transaction_ids_get_the_epoch_they_belong_to(xid: int, reference: int, expected: int) -> None:
    assert extend_xid(xid, reference) == expected


@given(st.integers(3, 2**63), st.integers(1 - 2**31, 2**31 - 1))
def test_transaction_ids_near_the_reference_are_found_again(whole: int, away: int) -> None:
    assert extend_xid(whole % 2**32, max(whole + away, 0)) == whole


def test_a_transaction_id_before_the_first_is_refused() -> None:
    with pytest.raises(ProtocolError, match="impossible"):
        extend_xid(2**32 - 3, 100)


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, list[int], list[Values]]:
    """A number of columns, those used, and rows."""
    count = draw(st.integers(0, 5))
    used = sorted(draw(st.sets(st.integers(0, count - 1)))) if count else []
    return count, used, draw(st.lists(values("bbbn", count), min_size=1, max_size=8))


@given(tables(), st.binary(max_size=9), st.binary(max_size=9))
def test_rows_all_at_once_are_the_same_as_one_by_one(
    table: tuple[int, list[int], list[Values]], head: bytes, tail: bytes
) -> None:
    count, used, rows = table
    expected = b""
    for each in rows:
        taken = fields(each)
        expected += head + b"".join(taken[place] or b"?" for place in used) + tail
    done, left = transcode([b"N" + row(each) for each in rows], count, used, head, tail)
    assert (done, left) == (expected, [])


@given(tables(), st.lists(st.binary(max_size=20), min_size=1, max_size=4))
def test_what_is_not_a_row_is_left_over(table: tuple[int, list[int], list[Values]], junk: list[bytes]) -> None:
    count, used, rows = table
    good = [b"N" + row(each) for each in rows]

    def is_row(data: bytes) -> bool:
        try:
            found = pgoutput.insert(b"N" + data[1:], 0)
        except ProtocolError:
            return False
        return len(data) > 0 and len(found) == count and UNCHANGED not in found

    bad = [each for each in junk if not is_row(each)]
    expected, _ = transcode(good, count, used, b"<", b">")
    mixed = [*bad, *good]
    done, left = transcode(mixed, count, used, b"<", b">")
    assert sorted(left) == sorted(bad)
    assert done == expected


def shape(*columns: str) -> BufferShape:
    return BufferShape(1, columns, ((25, -1),) * len(columns))


def relation_of(*columns: str, identity: str = "f", keys: str = "") -> Relation:
    return Relation(9, "s", "t", identity, tuple(RelationColumn(name, 25, -1, name in keys) for name in columns))


def route_of(*used: str, columns: str = "abc", identity: str = "f", keys: str = "") -> Route:
    target = CopyTarget(shape(*used))
    target.begin(7, 8)
    return Route(target, relation_of(*columns, identity=identity, keys=keys), frozenset(), None)


def actions(route: Route) -> str:
    """The actions of the rows made; all values in these tests are empty or NULL."""
    rows, found = bytes(route.target.take()), ""
    each = 36 + 8 * len(route.target.shape.columns)
    for start in range(0, len(rows), each):
        found += chr(rows[start + 30])
    return found


EMPTY: Values = [("b", b""), ("b", b""), ("b", b"")]


def test_a_row_has_transaction_position_action_and_values() -> None:
    route = route_of("a", "c")
    route.inserts([b"N" + row([("b", b"x"), ("b", b"?"), ("n", b"")])])
    assert bytes(route.target.take()) == (
        pack(">hiQiQi1si1s", 8, 8, 7, 8, 8, 1, b"I", 1, b"W") + pack(">I", 1) + b"x" + NULL + NULL + NULL
    )


@pytest.mark.parametrize("count", [1, BULK_ROWS])
def test_columns_in_another_order_than_the_buffers(count: int) -> None:
    route = route_of("c", "a")
    route.inserts([b"N" + row([("b", b"1"), ("b", b"2"), ("b", b"3")])] * count)
    assert bytes(route.target.take()).endswith(pack(">I", 1) + b"3" + pack(">I", 1) + b"1" + NULL + NULL)


def test_an_update_of_other_columns_writes_nothing() -> None:
    route = route_of("a")
    old = row([("b", b""), ("b", b"1"), ("n", b"")])
    route.updates([b"O" + old + b"N" + row([("b", b""), ("b", b"2"), ("u", b"")])])
    assert actions(route) == ""
    route.updates([b"O" + old + b"N" + row([("n", b""), ("b", b"2"), ("u", b"")])])
    assert actions(route) == "U"


def test_an_unchanged_large_value_is_that_of_the_old_row() -> None:
    route = route_of("a", "b")
    old = row([("b", b"x"), ("b", b"large"), ("n", b"")])
    route.updates([b"O" + old + b"N" + row([("b", b"y"), ("u", b""), ("n", b"")])])
    large = pack(">I", 5) + b"large"
    assert bytes(route.target.take()).endswith(b"y" + large + pack(">I", 1) + b"x" + large)


def test_with_an_identity_index_no_old_row_means_that_nothing_used_changed() -> None:
    route = route_of("a", identity="i", keys="a")
    route.updates([b"N" + row(EMPTY)])
    assert actions(route) == ""


def test_old_values_that_were_not_logged_are_not_made_up() -> None:
    route = route_of("a", "b", identity="d", keys="a")
    route.inserts([b"N" + row(EMPTY)])
    route.updates([b"N" + row(EMPTY)] * 3)
    route.deletes([b"K" + row(EMPTY)])
    assert actions(route) == "IT"
    whole = route_of("a")
    whole.updates([b"N" + row(EMPTY)])  # FULL, and yet no old row
    assert actions(whole) == "T"


def test_why_rows_do_not_fit() -> None:
    text, number = ValueType(25, -1), ValueType(23, -1)
    assert misfit(relation_of("a", "b"), shape("b"), [number, text]) is None
    assert misfit(relation_of("a"), shape("b"), [text]) == "s.t has no column 'b'"
    for other in (number, ValueType(25, 9), None):
        assert misfit(relation_of("a"), shape("a"), [other]) == "the type of s.t.a is not the one captured"
    parted = BufferShape(1, ("a",), ((25, -1),), partitioned=True)
    assert misfit(relation_of("a"), parted, [text]) is None
    assert "identity" in str(misfit(relation_of("a", identity="d", keys="a"), parted, [text]))
    route = Route(CopyTarget(shape("b")), relation_of("a"), frozenset(), "no column")
    route.inserts([b"N" + row(EMPTY)] * 2)
    assert actions(route) == "T"
