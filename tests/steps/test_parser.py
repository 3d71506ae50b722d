"""The step file format: what it reads, and that a malformed file is refused with its line."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import pytest

from tests.steps.parser import Change, MalformedStepFileError, parse, read
from tests.steps.runner import paths

HEAD = "# title: a title\ntable  t(id int primary key, v text)\nview   SELECT id FROM t\n"

WHOLE = """\
# title: everything the format has
# a comment
table  t(id int primary key, v text)
given  CREATE VIEW w AS SELECT 1
view   SELECT id
       FROM t

step   +t(1, 'it''s, (ok)')
       -t(-2, NULL)
  # a comment inside
       ~t(3, true) -> (4, 2.50)
expect +1 (1)  -2 (NULL)
       +3 ('x')
step   +t(5, 'z')
expect nothing
"""


def test_everything_the_format_has() -> None:
    file = parse(WHOLE, "some.steps")
    assert file.title == "everything the format has"
    assert [table.ddl for table in file.tables] == ["CREATE TABLE t (id int primary key, v text)"]
    assert file.given == ("CREATE VIEW w AS SELECT 1",)
    assert file.view == "SELECT id\nFROM t"
    first, second = file.steps
    assert first.line == 8
    assert first.changes == (
        Change("t", None, (1, "it's, (ok)")),
        Change("t", (-2, None), None),
        Change("t", (3, True), (4, Decimal("2.50"))),
    )
    assert first.expect == Counter({(1,): 1, (None,): -2, ("x",): 3})
    assert second.expect == Counter()


def test_a_step_is_undone_backwards() -> None:
    undone = parse(WHOLE).steps[0].undone()
    assert undone.changes == (
        Change("t", (4, Decimal("2.50")), (3, True)),
        Change("t", None, (-2, None)),
        Change("t", (1, "it's, (ok)"), None),
    )
    assert undone.expect == Counter({(1,): -1, (None,): 2, ("x",): -3})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("table t(id int)\nview SELECT 1\nstep +t(1)\nexpect nothing", "4: a file has a '# title:'"),
        ("# title: x\nview SELECT 1", "2: a file has a '# title:', a view and at least one step"),
        (HEAD + "step +t(1, 'a')", "4: the last step has no expect"),
        (HEAD + "step +t(1, 'a')\nstep +t(2, 'a')\nexpect nothing", "5: the step above has no expect"),
        (HEAD + "expect nothing", "4: expect without a step"),
        (HEAD + "view SELECT 2", "4: a file has one view"),
        ("# title: x\ntable t(id int)\nstep +t(1)", "3: a step before the view"),
        (HEAD + "step +u(1)", "4: no table u"),
        (HEAD + "step t(1)", r"4: a change is \+table"),
        (HEAD + "step +t(1", "4: a row is"),
        (HEAD + "step +t(1, 'a)", "4: a row is"),
        (HEAD + "step +t(1, frog)", "4: no value: 'frog'"),
        (HEAD + "step ~t(1, 'a')", "4: an update is"),
        (HEAD + "step +t(1, 'a')\nexpect (1)", "5: expect says nothing, or rows"),
        (HEAD + "step +t(1, 'a')\nexpect +0 (1)", "5: weight zero"),
        (HEAD + "step +t(1, 'a')\nexpect +1 (1) +1 (1)", "5: weight zero, or a row twice"),
        (HEAD + "stop +t(1, 'a')", "4: expected table, given, clock, view, step, expect"),
        ("# title: x\n  SELECT", "2: a continuation of nothing"),
        ("# title: x\ntable t", "2: a table is name"),
    ],
)
def test_a_malformed_file_is_refused(text: str, problem: str) -> None:
    with pytest.raises(MalformedStepFileError, match=f"^bad.steps:{problem}"):
        parse(text, "bad.steps")


def test_titles_are_unique() -> None:
    titles = Counter(read(path).title for path in paths())
    assert [title for title, times in titles.items() if times > 1] == []
    assert len(titles) >= 35
