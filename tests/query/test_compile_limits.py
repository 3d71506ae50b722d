"""Queries that are very deep, wide or long: compiled, or refused with a code and a hint. Never a traceback."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from itertools import chain

import pytest

from pgtrickle import db
from pgtrickle.errors import Error
from pgtrickle.query import compile_limits
from pgtrickle.query.compile import compile_query


def nested(depth: int, level: Callable[[str, int], str], innermost: str) -> str:
    for number in range(depth):
        innermost = level(innermost, number)
    return innermost


def joined(number: int) -> str:
    joins = (f"JOIN t AS t{n} ON t{n}.id = t{n - 1}.id" for n in range(1, number))
    return " ".join(chain(["SELECT t0.a FROM t AS t0"], joins))


def unions(number: int) -> str:
    return " UNION ALL ".join(f"SELECT a, {n} AS k FROM t" for n in range(number))


COMPILED = {
    "sum of 1000": f"SELECT {'+'.join(['a'] * 1000)} AS x FROM t",
    "400 NOT": f"SELECT a FROM t WHERE {'NOT (' * 400} a = 1 {')' * 400}",
    "500 AND": f"SELECT a FROM t WHERE {' AND '.join(f'a <> {n}' for n in range(500))}",
    "1000 parentheses": f"SELECT {'(' * 1000}a{')' * 1000} AS x FROM t",
    "200 nested CASE": nested(200, lambda q, n: f"CASE WHEN a = {n} THEN {n} ELSE {q} END", "SELECT").replace(
        "SELECT", "a", 1
    ),
    "100 nested subqueries": nested(100, lambda q, n: f"SELECT a FROM ({q}) AS q{n} WHERE a > {n}", "SELECT a FROM t"),
    "300 columns": f"SELECT {', '.join(f'a + {n} AS c{n}' for n in range(300))} FROM t",
    "IN list of 1000": f"SELECT a FROM t WHERE a IN ({', '.join(map(str, range(1000)))})",
    "40 tables": joined(40),
    "40 UNION branches": unions(40),
}
COMPILED["200 nested CASE"] = f"SELECT {COMPILED['200 nested CASE']} AS x FROM t"
REFUSED = {
    "sum of 4000": (f"SELECT {'+'.join(['a'] * 4000)} AS x FROM t", "PT280"),
    "60 tables": (joined(60), "PT280"),
    "80 nested IN": (nested(80, lambda q, _: f"SELECT a FROM t WHERE a IN ({q})", "SELECT a FROM t"), "PT280"),
    "a sum that is too deep for PostgreSQL": (f"SELECT {'+'.join(['a'] * 50_000)} AS x FROM t", "PT110"),
    "1665 columns": (f"SELECT {', '.join(f'a AS c{n}' for n in range(1665))} FROM t", "PT110"),
    "too many brackets for its parser": (f"SELECT a FROM t WHERE {'NOT (' * 20000} a = 1 {')' * 20000}", "PT100"),
}


@pytest.fixture
def conn(database18: str) -> Iterator[db.Connection]:
    with db.open_session(database18) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b text)")
        yield connection


def test_they_are_compiled(conn: db.Connection) -> None:
    refused = {name: compile_query(conn, query, within_s=300).refusal for name, query in COMPILED.items()}
    assert {name: str(refusal) for name, refusal in refused.items() if refusal is not None} == {}


def test_or_refused(conn: db.Connection) -> None:
    def code(query: str) -> str | None:
        try:
            refusal: Error | None = compile_query(conn, query, within_s=300).refusal
        except Error as error:
            refusal = error
        assert refusal is None or refusal.hint
        return None if refusal is None else refusal.code

    assert {name: code(query) for name, (query, _) in REFUSED.items()} == {name: c for name, (_, c) in REFUSED.items()}


def test_the_time_is_bounded(conn: db.Connection) -> None:
    refusal = compile_query(conn, unions(60), within_s=0.05).refusal
    assert refusal is not None
    assert refusal.code == "PT281"
    assert compile_query(conn, unions(60), with_tree=False).refusal is None  # FULL needs no tree, and no time


def _down(levels: int) -> int:
    return 0 if levels == 0 else 1 + next(map(_down, [levels - 1]))  # through C, which takes of the thread's own stack


def test_the_stack_is_there_and_python_s_limit_is_as_before() -> None:
    before = sys.getrecursionlimit()
    assert (
        compile_limits.with_deep_stack(lambda: _down(compile_limits.DEPTH // 2 - 100))
        == compile_limits.DEPTH // 2 - 100
    )
    with pytest.raises(RecursionError):
        compile_limits.with_deep_stack(lambda: _down(compile_limits.DEPTH * 2))
    both = [threading.Thread(target=compile_limits.with_deep_stack, args=(lambda: _down(5000),)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert sys.getrecursionlimit() == before
    with pytest.raises(ZeroDivisionError):
        compile_limits.with_deep_stack(lambda: 1 // 0)
