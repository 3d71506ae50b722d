"""The text of a node tree is read as PostgreSQL reads it: names may hold anything."""

from __future__ import annotations

from pgtrickle.query.analyse import node_text


def test_a_tree() -> None:
    read = node_text.parse(
        r'({QUERY :a <> :resname \ \{x :b (i 1 2) :c {VAR :varno 7} :d 4 [ 1 -2 0 ] :e :f :g ("a\ b" [x)})'
    )
    assert isinstance(read, tuple)
    [query] = read
    assert isinstance(query, node_text.Node)
    assert query.kind == "QUERY"
    assert query.fields["a"] is None
    assert query.fields["e"] == ":f"
    assert query.fields["g"] == (r'"a\ b"', "[x")
    assert query.fields["d"] == ("4", "[ 1 -2 0 ]")
    assert query.numbers("b") == [1, 2]
    found = query.node("c")
    assert found is not None
    assert found.number("varno") == 7
    assert [node.kind for node in node_text.walk(read)] == ["QUERY", "VAR"]
