"""What is asked twice is asked once: terms that have a question in common are one task."""

from __future__ import annotations

import pyarrow as pa

from pgtrickle.spark.recipe import All, Asked, Recipe, Rows, Term, together

SCHEMA = pa.schema([("w", pa.int64())])
ROWS = Rows(SCHEMA.empty_table())


def ask(sql: str, *inputs: Recipe) -> Asked:
    return Asked(sql, inputs or (ROWS,), SCHEMA)


def terms(*recipes: Recipe) -> tuple[Term, ...]:
    """A term of a flow of its own for each."""
    return tuple(Term(flow, recipe) for flow, recipe in enumerate(recipes))


def test_terms_that_ask_the_same_go_together() -> None:
    shared = ask("shared")
    first, other, second = terms(ask("first", shared, shared), ask("other"), ask("second", All((shared,), SCHEMA)))
    assert together((first, other, second)) == ((other,), (first, second))


def test_a_term_may_bring_others_together() -> None:
    one, two = ask("one"), ask("two")
    first, second, third = terms(ask("first", one), ask("second", two), ask("third", one, two))
    assert together((first, second, third)) == ((first, second, third),)


def test_rows_at_hand_are_no_question() -> None:
    first, second = terms(ask("first"), ask("second"))
    assert together((first, second)) == ((first,), (second,))
