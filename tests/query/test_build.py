"""The tree means what the query means: PostgreSQL answers both the same, and refusals say what and where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgtrickle.delta.tree_text import tree as explained
from pgtrickle.postgres.group_lookup import groups_by_key
from pgtrickle.query import gaps, render
from pgtrickle.query.compile import compile_query
from pgtrickle.query.operators import Aggregate, Filter, InnerJoin, Operator, Project, Scan, UnionAll, walk
from pgtrickle.query.whole_numbers import is_whole_number

Shop = psycopg.Connection[Any]

HERE = Path(__file__).parent
EQUAL = tuple(
    query
    for name in ("equal.sql", "correlated.sql", "windows.sql")
    for query in (HERE / name).read_text().split("\n\n")[1:]
)


def difference(shop: Shop, query: str, tree: Operator, ours: str | None = None) -> list[tuple[Any, ...]]:
    """What one has and the other has not, as text: EXCEPT ALL both ways."""
    ours, theirs = ours or render.select(tree), query
    names = ", ".join(f"x{index}" for index in range(len(tree.columns)))
    images = " || '|' || ".join(f"coalesce(x{index}::text, 'NULL')" for index in range(len(tree.columns)))
    one, other = (f"SELECT {images} FROM ({text}) AS q ({names})" for text in (ours, theirs))
    both = f"(({one}) EXCEPT ALL ({other})) UNION ALL (({other}) EXCEPT ALL ({one}))"
    return shop.execute(both.encode()).fetchall()


def compiled(shop: Shop, query: str) -> Operator:
    found = compile_query(shop, query)
    assert found.refusal is None, found.refusal
    assert found.tree is not None
    return found.tree


def shapes(tree: Operator) -> Iterator[str]:
    return (type(node).__name__ for node in walk(tree))


def test_the_tree_gives_what_the_query_gives(shop: Shop, subtests: pytest.Subtests) -> None:
    asked_by_key: set[str] = set()

    def always(scan: Scan, attribute: str) -> bool:
        asked_by_key.add(f"{scan.table.name}.{attribute}")
        return True

    for query in EQUAL:
        with subtests.test(query=query):
            tree = compiled(shop, query)
            assert difference(shop, query, tree) == []
            assert difference(shop, query, tree, render.select(tree, leaf=groups_by_key(always))) == []
            assert isinstance(tree, Project)
            analysis = compile_query(shop, query).analysis
            assert [(c.label, c.type) for c in tree.columns] == [(c.name, c.type) for c in analysis.columns]
            scans = [node for node in walk(tree) if isinstance(node, Scan)]
            read = {(name, s.table, a) for s in scans for name, a in zip(s.names, s.attributes, strict=True)}
            assert len({name for name, _, _ in read}) == len(read), "a column is of one table"
            assert explained(tree)
    assert {"customers.region", "orders.customer", "items.order_id"} <= asked_by_key


def test_a_key_that_is_a_whole_number_has_one_look(shop: Shop) -> None:
    def of_key(key: str) -> bool:
        tree = compiled(shop, f"SELECT k, count(*) FROM (SELECT {key} AS k FROM orders) o WHERE k > 0 GROUP BY k")
        [grouped] = [node for node in walk(tree) if isinstance(node, Aggregate)]
        return is_whole_number(grouped.input, grouped.keys[0])

    assert of_key("extract(year FROM placed AT TIME ZONE 'UTC')")
    assert not of_key("extract(second FROM placed AT TIME ZONE 'UTC')")
    assert not of_key("extract(year FROM placed AT TIME ZONE 'UTC') * 1.0")
    assert not of_key("id::numeric")


def test_compiling_leaves_nothing_behind(shop: Shop) -> None:
    before = shop.execute("SELECT count(*) FROM pg_class").fetchone()
    compiled(shop, EQUAL[4])
    assert shop.execute("SELECT count(*) FROM pg_class").fetchone() == before


REFUSED = (
    (
        "SELECT id, row_number() OVER () FROM (SELECT id FROM orders ORDER BY placed) o",
        gaps.SUBQUERY_ORDER,
        "line 1, column 61",
    ),
    ("VALUES (1), (2) LIMIT 1", gaps.LIMIT, "line 1, column 17"),
    (
        "WITH w (x) AS (VALUES (1), (2) OFFSET 1) SELECT id FROM customers JOIN w ON x = id",
        gaps.LIMIT,
        "line 1, column 32",
    ),
    ("VALUES ((SELECT max(id) FROM customers)), (2) LIMIT 1", gaps.LIMIT, "line 1, column 47"),
    ("SELECT id, ARRAY(SELECT product FROM items) FROM customers", gaps.ARRAY, "line 1, column 12"),
    (
        "SELECT (WITH RECURSIVE r AS (SELECT 1 FROM items WHERE unit=id UNION SELECT 2 FROM r) TABLE r) FROM orders",
        gaps.RECURSIVE,
        "line 1, column 9",
    ),
    (
        (
            "SELECT c.id, n.a FROM customers c JOIN"
            " (SELECT customer, JSON_OBJECTAGG(id: note) AS a FROM orders GROUP BY customer) n ON n.customer = c.id"
        ),
        gaps.UNORDERED,
        None,
    ),
    ("SELECT id FROM customers LIMIT 3", gaps.LIMIT, "line 1, column 26"),
    ("SELECT id FROM customers ORDER BY id LIMIT (SELECT 1)", gaps.LIMIT, "line 1, column 38"),
    ("SELECT id FROM customers OFFSET 1", gaps.LIMIT, "line 1, column 26"),
    ("SELECT region FROM customers GROUP BY ROLLUP (region) LIMIT 3", gaps.LIMIT, "line 1, column 55"),
    (
        "SELECT q.id FROM (SELECT id FROM orders ORDER BY placed) q WHERE q.id IN (SELECT id FROM notes) LIMIT 3",
        gaps.LIMIT,
        "line 1, column 97",
    ),
    ("SELECT id FROM customers FOR UPDATE", gaps.ROW_LOCK, "line 1, column 26"),
    ("SELECT id FROM customers TABLESAMPLE system (50)", gaps.TABLESAMPLE, "line 1, column 26"),
    ("SELECT to_jsonb(f) FROM customers, jsonb_each('{}') f", gaps.WHOLE_ROW, "line 1, column 17"),
    ("SELECT ctid FROM customers", gaps.SYSTEM_COLUMN, "line 1, column 8"),
    ("SELECT id FROM customers WHERE xmin::text = '1'", gaps.SYSTEM_COLUMN, "line 1, column 32"),
    ("SELECT 1 AS one", gaps.NO_FROM, "line 1, column 1"),
    (
        "SELECT array_agg(s.id) FROM (SELECT id FROM orders ORDER BY placed) s JOIN items ON true",
        gaps.SUBQUERY_ORDER,
        "line 1, column 52",
    ),
    (
        (
            "SELECT (SELECT array_agg(s.id) FROM (SELECT id FROM orders WHERE customer = c.id ORDER BY placed) s"
            " JOIN items ON true) FROM customers c"
        ),
        gaps.SUBQUERY_ORDER,
        "line 1, column 82",
    ),
    (
        "SELECT json_agg(s.id), array_agg(DISTINCT s.id) FROM (SELECT id FROM orders ORDER BY placed) s",
        gaps.SUBQUERY_ORDER,
        "line 1, column 77",
    ),
    (
        "SELECT s.note, json_agg(s.id) FROM (SELECT id, note FROM orders ORDER BY placed) s GROUP BY s.note",
        gaps.SUBQUERY_ORDER,
        "line 1, column 65",
    ),
    ("SELECT id FROM\n placed", gaps.SYSTEM_COLUMN, "line 2, column 2"),
    ("SELECT id, xmlcomment(note) FROM orders ORDER BY note USING ~<~", gaps.UNFAITHFUL, None),
)


def test_what_is_not_supported_is_refused_with_code_and_place(shop: Shop, subtests: pytest.Subtests) -> None:
    for query, gap, at in REFUSED:
        with subtests.test(query=query):
            found = compile_query(shop, query)
            assert found.tree is None
            assert found.refusal is not None
            assert (found.refusal.code, found.refusal.at) == (gap.code, at), str(found.refusal)
            assert found.refusal.hint


def test_a_second_row_where_one_is_wanted_fails_as_in_postgresql(shop: Shop) -> None:
    for row in ("SELECT o.id, o.note FROM orders o", "SELECT o.id, o.note FROM orders o WHERE o.id >= c.id"):
        for comparison in ("=", "<>", "<"):
            query = f"SELECT c.id FROM customers c WHERE (c.id, c.name) {comparison} ({row})"
            for text in (query, render.select(compiled(shop, query))):
                with pytest.raises(psycopg.errors.CardinalityViolation):
                    shop.execute(text.encode())


def test_every_gap_has_its_own_code() -> None:
    codes = [gap.code for gap in gaps.GAPS]
    assert len(set(codes)) == len(codes)
    assert all(code.startswith(("PT2", "PT6")) for code in codes)


def test_a_refusal_in_a_view_names_the_view(shop: Shop) -> None:
    shop.execute("CREATE VIEW above AS SELECT id FROM placed")
    refusal = compile_query(shop, "SELECT id FROM above").refusal
    assert "in view public.placed" in str(refusal)
    assert "line 1, column 16" in str(refusal)


def test_text_that_sqlglot_would_change_is_refused(shop: Shop) -> None:
    refusal = compile_query(shop, "SELECT id FROM orders ORDER BY note USING ~<~").refusal
    assert refusal is not None
    assert refusal.code == gaps.UNFAITHFUL.code
    assert "FULL" in (refusal.hint or "")


def test_filters_go_down_to_the_scans(shop: Shop) -> None:
    tree = compiled(
        shop,
        "SELECT s.name, o.note FROM (SELECT id, upper(name) AS name FROM customers) s, orders o"
        " WHERE s.id = o.customer AND s.name > 'A' AND o.note = 'a' AND o.id > 0",
    )
    filters = [node for node in walk(tree) if isinstance(node, Filter)]
    assert [type(node.input) for node in filters] == [Scan, Scan]
    assert filters[1].condition.sql.count(" AND ") == 1
    (join,) = (node for node in walk(tree) if isinstance(node, InnerJoin))
    assert len(join.equalities) == 1


def test_filters_go_into_the_branches_of_a_union(shop: Shop) -> None:
    tree = compiled(
        shop,
        "SELECT k FROM (SELECT id AS k FROM customers UNION ALL SELECT amount FROM items UNION ALL SELECT 1 FROM notes)"
        " AS u WHERE k > 2",
    )
    (union,) = (node for node in walk(tree) if isinstance(node, UnionAll))
    assert len(union.branches) == 3
    for branch in union.branches:
        assert isinstance(branch, Project)
        assert isinstance(branch.input, Filter)


def test_having_stays_above_the_aggregate(shop: Shop) -> None:
    tree = compiled(shop, "SELECT product FROM items GROUP BY product HAVING product > 'a' AND sum(amount) > 1")
    assert list(shapes(tree)) == ["Project", "Filter", "Aggregate", "Scan"]


def test_comma_joins_become_equijoins_in_a_connected_order(shop: Shop) -> None:
    tree = compiled(
        shop,
        "SELECT c.name, i.product FROM customers c, items i, orders o WHERE i.order_id = o.id AND o.customer = c.id",
    )
    joins = [node for node in walk(tree) if isinstance(node, InnerJoin)]
    assert all(join.equalities for join in joins)
    scans = [node.table.name for node in walk(tree) if isinstance(node, Scan)]
    assert scans == ["customers", "orders", "items"]


def test_inputs_with_an_aggregate_come_last(shop: Shop) -> None:
    tree = compiled(
        shop,
        "SELECT c.name, t.total, o.note FROM totals t JOIN customers c ON c.id = t.customer"
        " JOIN orders o ON o.customer = c.id",
    )
    top = next(node for node in walk(tree) if isinstance(node, InnerJoin))
    assert any(isinstance(node, Aggregate) for node in walk(top.right))
    assert not any(isinstance(node, Aggregate) for node in walk(top.left))


def test_scans_read_used_columns_only(shop: Shop) -> None:
    tree = compiled(shop, "SELECT count(*) AS n FROM customers c, orders o WHERE o.customer = c.id AND o.note = 'a'")
    read = {node.table.name: node.attributes for node in walk(tree) if isinstance(node, Scan)}
    assert read == {"customers": ("id",), "orders": ("customer", "note")}
    (bare,) = (node for node in walk(compiled(shop, "SELECT count(*) FROM items")) if isinstance(node, Scan))
    assert bare.attributes == ()


def test_plain_calls_name_their_argument(shop: Shop) -> None:
    tree = compiled(
        shop,
        "SELECT sum(amount + 1) AS a, count(*) AS b, count(DISTINCT unit) AS c, product(amount) AS d,"
        " sum(amount) FILTER (WHERE unit > 1) AS e, corr(amount, unit) AS f FROM items",
    )
    (aggregate,) = (node for node in walk(tree) if isinstance(node, Aggregate))
    calls = {call.function: call for call in aggregate.calls[:1] + aggregate.calls[1:4] + aggregate.calls[5:]}
    assert [call.function for call in aggregate.calls] == ["sum", "count", "count", "public.product", "sum", "corr"]
    assert [call.plain for call in aggregate.calls] == [True, True, False, True, True, True]
    assert [call.argument is None for call in aggregate.calls] == [False, True, True, False, False, True]
    assert calls["public.product"].call.sql.startswith("public.product(")


def test_a_column_the_key_determines_keeps_its_looks(shop: Shop) -> None:
    """Where equal values are not sure to be identical, a column is no key of the state but taken from a row."""
    with shop.transaction(force_rollback=True):
        shop.execute("CREATE TABLE rated (id int PRIMARY KEY, name text, score numeric, mood mood)")
        tree = compiled(shop, "SELECT id, name, score, mood FROM rated GROUP BY id")
    (aggregate,) = (node for node in walk(tree) if isinstance(node, Aggregate))
    labels = {column.name: column.label for column in aggregate.columns}
    assert [labels[key] for key in aggregate.keys] == ["rated.id", "rated.name", "rated.mood"]
    assert [call.function for call in aggregate.calls] == ["array_agg"]


def test_explain_shows_labels(shop: Shop) -> None:
    tree = compiled(
        shop, "SELECT c.name, sum(o.id) AS s FROM customers c JOIN orders o ON o.customer = c.id GROUP BY c.name"
    )
    assert explained(tree).splitlines() == [
        "Project c.name as name, sum(o.id) as s",
        "  Aggregate sum(o.id) by c.name",
        "    InnerJoin on o.customer = c.id",
        "      Scan public.customers (id, name)",
        "      Scan public.orders (id, customer)",
    ]


def test_a_leaf_may_be_given(shop: Shop) -> None:
    tree = compiled(shop, "SELECT count(*) AS n FROM customers")
    sql = render.select(tree, leaf=lambda node: "SELECT FROM items" if isinstance(node, Scan) else None)
    assert shop.execute(sql.encode()).fetchone() == (9,)


def test_what_is_used_twice_keeps_its_state_once(shop: Shop) -> None:
    with_query = (
        "WITH t AS (SELECT customer, count(*) AS n FROM orders GROUP BY customer) "
        "SELECT a.customer FROM t a JOIN t b ON b.n = a.n WHERE a.n < (SELECT max(n) FROM t)"
    )
    view = "SELECT a.customer FROM totals a JOIN totals b ON b.total < a.total"
    for query, states in ((with_query, 2), (view, 1)):
        tree = compiled(shop, query)
        assert len({node for node in walk(tree) if isinstance(node, Aggregate)}) == states
        assert difference(shop, query, tree) == []
