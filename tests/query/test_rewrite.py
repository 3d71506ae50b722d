"""What is said in terms of other operators: each kind with a fixture of its name, a query and its tree a paragraph.

Both sides of a paragraph are run: PostgreSQL answers the tree and the query the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtrickle.delta.tree_text import tree as explained
from tests.query.test_build import Shop, compiled, difference

FIXTURES = sorted((Path(__file__).parent / "rewrite").glob("*.txt"))


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_rewrite(path: Path, shop: Shop, subtests: pytest.Subtests) -> None:
    for paragraph in path.read_text().strip().split("\n\n"):
        query, expected = paragraph.split("\n--\n")
        with subtests.test(query=query):
            tree = compiled(shop, query)
            assert explained(tree) == expected.strip()
            assert difference(shop, query, tree) == []


def test_every_rewrite_has_a_fixture() -> None:
    assert {path.stem for path in FIXTURES} >= {
        "inline_views",
        "distinct_on",
        "grouping_sets",
        "scalar_in_where",
        "scalar_in_select",
        "sublinks_in_or",
    }
