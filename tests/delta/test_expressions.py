"""The interpreter's expressions agree with PostgreSQL: the values below are PostgreSQL's answers."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tests.delta.expressions import NotInterpretedError, evaluate

ROW = {"c1": 7, "c2": None, "c3": "ann", "c4": Decimal("2.50")}

ANSWERS = [
    ("c1 / 2", 3),
    ("-c1 / 2", -3),
    ("-c1 % 3", -1),
    ("c1 / 2.0", Decimal("3.5")),
    ("1 / 3.0", Decimal("0.33333333333333333333")),
    ("(20000)::numeric / (3)::numeric", Decimal("6666.6666666666666667")),
    ("c4 * 2", Decimal("5.00")),
    ("(c4)::integer", 3),
    ("(c4)::numeric(10,1)", Decimal("2.5")),
    ("(c1)::text || c3", "7ann"),
    ("c3 || c2", None),
    ("c2 = c2", None),
    ("c2 IS NULL", True),
    ("c2 IS NOT NULL", False),
    ("c1 IS DISTINCT FROM c2", True),
    ("c2 IS NOT DISTINCT FROM NULL", True),
    ("(c2 = 1) IS NOT TRUE", True),
    ("NOT (c2 = 1)", None),
    ("c2 = 1 AND c1 = 8", False),
    ("c2 = 1 AND c1 = 7", None),
    ("c2 = 1 OR c1 = 7", True),
    ("c2 = 1 OR c1 = 8", None),
    ("c1 IN (1, 7)", True),
    ("c1 IN (1, NULL)", None),
    ("c1 NOT IN (1, NULL)", None),
    ("c1 NOT IN (1, 2)", True),
    ("c1 = ANY (ARRAY[7, NULL])", True),
    ("c1 = ANY (ARRAY[1, NULL])", None),
    ("c1 <> ALL (ARRAY[1, 2])", True),
    ("c1 BETWEEN 1 AND c2", None),
    ("c1 BETWEEN 8 AND c2", False),
    ("(c1, c2) = (7, 1)", None),
    ("(c1, c2) = (8, 1)", False),
    ("(c2, c1) <> (1, 7)", None),
    ("(c2, c1) <> (1, 8)", True),
    ("(c1, c2) < (8, 1)", True),
    ("(c1, c2) < (7, 1)", None),
    ("(c1, c3) <= (7, 'ann')", True),
    ("(c1, c3) > (7, 'ann')", False),
    ("c3 OPERATOR(^@) 'an'", True),
    ("c3 OPERATOR(^@) c2", None),
    ("COALESCE(c2, c1, 0)", 7),
    ("NULLIF(c1, 7)", None),
    ("CASE WHEN c2 = 1 THEN 'a' WHEN c1 = 7 THEN 'b' END", "b"),
    ("CASE c1 WHEN 8 THEN 'a' ELSE 'z' END", "z"),
    ("c3 ~~ 'a%'::text", True),
    ("c3 !~~ 'a_'::text", True),
    ("upper(c3)", "ANN"),
    ("length(c3)", 3),
    ("abs(- c1)", 7),
]


@pytest.mark.parametrize(("sql", "answer"), ANSWERS, ids=[sql for sql, _ in ANSWERS])
def test_value(sql: str, answer: Any) -> None:
    value = evaluate(sql, ROW)
    assert (value, type(value)) == (answer, type(answer))


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(NotInterpretedError):
        evaluate("random()", {})
