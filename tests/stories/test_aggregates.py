"""Aggregates that step files do not tell: no inverse, digits, and expressions that fail on some data."""

from __future__ import annotations

import pytest

from pgtrickle.errors import StateError
from tests.stories.telling import Story


@pytest.fixture
def sales(story18: Story) -> Story:
    story18.run(
        "CREATE TABLE sales (id int PRIMARY KEY, kind text, v int, price numeric, f float8)",
        "INSERT INTO sales SELECT g, 'k' || g % 3, g, g / 7.0, g FROM generate_series(1, 15) g",
    )
    return story18


def churn(story: Story) -> None:
    """A group loses rows, is emptied, is reborn; rows move between groups; one is filled with NULLs."""
    for statements in (
        ("DELETE FROM sales WHERE id IN (1, 3)", "UPDATE sales SET v = 100, price = 1.10 WHERE id = 2"),
        ("DELETE FROM sales WHERE kind = 'k1'",),
        ("INSERT INTO sales VALUES (50, 'k1', 7, 7.700, 'NaN'), (51, 'k9', NULL, NULL, NULL), (52, NULL, 1, 1, 1)",),
        ("UPDATE sales SET kind = 'k0' WHERE kind = 'k2'", "INSERT INTO sales VALUES (53, 'k2', 9, 9, 9)"),
        ("DELETE FROM sales WHERE kind IS NULL", "UPDATE sales SET v = NULL, f = NULL WHERE kind = 'k0'"),
    ):
        story.run(*statements)
        story.follow()


def test_a_group_emptied_and_reborn(sales: Story) -> None:
    sales.create(
        "kinds",
        "SELECT kind, count(*) AS n, count(v) AS some, sum(v) AS total, avg(v) AS mean, min(price) AS least, "
        "max(price) AS most FROM sales GROUP BY kind",
    )
    churn(sales)


def test_aggregates_without_an_inverse(sales: Story) -> None:
    sales.create(
        "kinds",
        "SELECT kind, string_agg(v::text, ',' ORDER BY v DESC, id) AS listed, array_agg(id ORDER BY id) AS ids, "
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY v) AS median, mode() WITHIN GROUP (ORDER BY v % 2) AS parity, "
        "count(DISTINCT v % 2) AS parities, sum(DISTINCT v % 4) AS sums, stddev(v) AS spread, bool_and(v > 1) AS big "
        "FROM sales GROUP BY kind",
    )
    churn(sales)


def test_a_user_defined_aggregate(sales: Story) -> None:
    sales.run(
        "CREATE FUNCTION times(a numeric, b numeric) RETURNS numeric IMMUTABLE LANGUAGE sql RETURN a * coalesce(b, 1)",
        "CREATE AGGREGATE product(numeric) (SFUNC = times, STYPE = numeric, INITCOND = 1)",
    )
    sales.create("products", "SELECT kind, product(price) AS p FROM sales GROUP BY kind")
    churn(sales)


def test_sums_and_averages_have_the_digits_of_postgres(sales: Story) -> None:
    sales.create("digits", "SELECT kind, sum(price) AS s, avg(price) AS a, avg(v) AS i FROM sales GROUP BY kind")
    sales.create("all_digits", "SELECT sum(price) AS s, avg(price) AS a, sum(price) / count(*) AS q FROM sales")
    churn(sales)
    sales.run("DELETE FROM sales", "INSERT INTO sales VALUES (1, 'k', 1, 1.5, 0), (2, 'k', 2, 2.25, 0)")
    sales.follow()
    sales.run("DELETE FROM sales WHERE id = 2")
    sales.follow()
    assert sales.rows("SELECT s::text, a::text FROM digits") == [("1.5", "1.50000000000000000000")]
    sales.run("UPDATE sales SET price = 1.500000")
    sales.follow()
    assert sales.rows("SELECT s::text FROM digits") == [("1.500000",)]


def test_float_sums_with_nan_infinities_and_zeros_of_both_signs(sales: Story) -> None:
    sales.create("floats", "SELECT kind, sum(f) AS s, avg(f) AS a, min(f) AS l, max(f) AS m FROM sales GROUP BY kind")
    for value in ("NaN", "Infinity", "-Infinity", "-0", "0", "1e100", "-1e-300"):
        sales.run(f"UPDATE sales SET f = '{value}' WHERE id % 5 = 1")
        sales.follow()
    sales.run("UPDATE sales SET f = '-0'")
    sales.follow()
    sales.run("DELETE FROM sales WHERE kind = 'k0' AND id > 4", "UPDATE sales SET f = 0 WHERE kind = 'k1'")
    sales.follow()


def test_numeric_beyond_38_digits_with_nan_and_infinity(sales: Story) -> None:
    sales.create("prices", "SELECT kind, sum(price) AS s, avg(price) AS a, max(price) AS m FROM sales GROUP BY kind")
    sales.create("rows", "SELECT id, price, price * price AS squared FROM sales")
    long = "123456789012345678901234567890123456789012345678901234567890.123456789012345678901234567890123456789"
    for value in (long, f"-{long}", "NaN", "Infinity", "-Infinity", "1e-60", "0.00000"):
        sales.run(f"UPDATE sales SET price = '{value}' WHERE id % 4 = 1")
        sales.follow()
    sales.run("UPDATE sales SET price = '-Infinity' WHERE id % 4 = 2")
    sales.follow()
    sales.run("UPDATE sales SET price = 1 WHERE price::text !~ '^[0-9.]+$'")
    sales.follow()


@pytest.mark.parametrize(
    ("expression", "poison", "words"),
    [("v * 1000000", "v = 2147483647", "integer out of range"), ("100 / v", "v = 0", "division by zero")],
    ids=["overflow", "division"],
)
@pytest.mark.parametrize(
    "shape", ["SELECT id, {} AS e FROM sales", "SELECT kind, max({}) AS e FROM sales GROUP BY kind"]
)
def test_an_expression_that_fails_is_a_clear_error_and_loses_nothing(
    sales: Story, expression: str, poison: str, words: str, shape: str
) -> None:
    sales.create("computed", shape.format(expression))
    before = sales.content("computed")
    sales.run("INSERT INTO sales VALUES (60, 'k1', 5, 5, 5)", f"UPDATE sales SET {poison} WHERE id = 7")
    with pytest.raises(StateError, match=words) as caught:
        sales.trickle.refresh_stream_table("computed")
    assert caught.value.code == "PT343"
    assert sales.content("computed") == before
    failed = sales.last("computed")
    assert (failed.status, failed.action, failed.error_code) == ("FAILED", "DIFFERENTIAL", "PT343")
    assert words in str(failed.error)
    assert sales.stream("computed").consecutive_errors == 1
    sales.run("UPDATE sales SET v = 7 WHERE id = 7")
    sales.check("computed")
    assert sales.stream("computed").consecutive_errors == 0
    sales.run("DELETE FROM sales WHERE id = 60")
    sales.check("computed")
