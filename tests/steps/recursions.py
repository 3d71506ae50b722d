"""Hypothesis strategies for recursive queries over small graphs with cycles, as text, and for steps that change
them."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st

from tests.steps.parser import Change, Row, Step, StepFile, TableDefinition

TABLES = (
    TableDefinition("edge", "a int, b int, k int"),
    TableDefinition("root", "id int, k int"),
    TableDefinition("shut", "id int"),
)
NODES = st.sampled_from((1, 1, 2, 2, 3, 3, 4, None))
FIRST = (
    "SELECT id, {} FROM root",
    "SELECT DISTINCT id, {} FROM root",
    "SELECT a, {} FROM edge WHERE k = 1",
    "SELECT 1, {}",
)
PLAIN = "SELECT e.b, {} FROM r JOIN edge e ON e.a = r.id"
STEPS = (
    PLAIN,
    PLAIN,
    PLAIN,
    "SELECT e.a, {} FROM edge e JOIN r ON e.b = r.id WHERE e.k < 4",
    "SELECT e.b, {} FROM r, edge e, root o WHERE e.a = r.id AND o.k = e.k",
    "SELECT f.b, {} FROM r JOIN edge e ON e.a = r.id JOIN edge f ON f.a = e.b",
    "SELECT e.b, {} FROM r JOIN edge e ON e.a = r.id WHERE EXISTS (SELECT FROM root o WHERE o.k = e.k)",
    "SELECT e.b, {} FROM r JOIN edge e ON e.a = r.id WHERE NOT EXISTS (SELECT FROM shut s WHERE s.id = e.b)",
    "SELECT coalesce(s.id, e.b), {} FROM r JOIN edge e ON e.a = r.id LEFT JOIN shut s ON s.id = e.b",
    "SELECT e.b, {} FROM r JOIN (SELECT DISTINCT a, b, k FROM edge) e ON e.a IS NOT DISTINCT FROM r.id",
    "SELECT e.b, {} FROM r JOIN (SELECT a, max(b) AS b, min(k) AS k FROM edge GROUP BY a) e ON e.a = r.id",
    "SELECT x.b, {} FROM (SELECT DISTINCT e.b, e.k, r.n FROM r JOIN edge e ON e.a = r.id) x(b, k, rn)",
    "SELECT r.id + g, {} FROM r CROSS JOIN generate_series(1, 2) g WHERE r.id < 4 AND r.id IN (SELECT id FROM root)",
)
ABOVE = (
    "SELECT id, n FROM r",
    "SELECT id, n FROM r",
    "SELECT id, count(*) AS rows, max(n) AS n FROM r GROUP BY id",
    "SELECT r.id, s.n FROM r JOIN r s ON s.n = r.id",
    "SELECT r.id, o.k FROM r LEFT JOIN root o ON o.id = r.id",
    "SELECT id FROM r EXCEPT ALL SELECT id FROM shut",
    "SELECT o.id, (SELECT count(*) FROM r WHERE r.n = o.k) AS n FROM root o",
    "SELECT id, n FROM r ORDER BY n DESC NULLS LAST, id LIMIT 3",
)


@st.composite
def views(draw: st.DrawFn) -> str:
    """A query whose recursion ends: of a UNION ALL a column counts its rounds, and is bounded."""
    first, step = draw(st.sampled_from(FIRST)), draw(st.sampled_from(STEPS))
    within = step.partition(" FROM ")[2]
    number = "x.rn" if "x.b" in step else "r.n"
    if draw(st.booleans()):
        union, begun, next_one = "UNION", "0", draw(st.sampled_from(("0", "NULL::int", f"{number} % 2 + 1")))
        if " e " in within and "x(" not in step:
            next_one = draw(st.sampled_from((next_one, "e.k")))
        bound = ""
    else:
        union, begun, next_one = draw(st.sampled_from(("UNION ALL", "UNION ALL", "UNION"))), "0", f"{number} + 1"
        bound = f"{' AND' if 'WHERE' in within.split(' x(')[-1] else ' WHERE'} {number} < 3"
    # what is filled in has no braces of its own
    recursion = f"{first.replace('{}', begun)} {union} {step.replace('{}', next_one)}{bound}"
    return f"WITH RECURSIVE r(id, n) AS ({recursion}) {draw(st.sampled_from(ABOVE))}"


@st.composite
def files(draw: st.DrawFn) -> StepFile:
    """A view and steps, the first of which makes a graph; what they must give is PostgreSQL's to say."""
    present: dict[str, Counter[Row]] = {table.name: Counter() for table in TABLES}
    sizes = [(8, 12), *[(1, 3)] * 10]
    steps = tuple(Step(line, _changes(draw, present, *size), Counter()) for line, size in enumerate(sizes))
    return StepFile("random", "a random recursion", TABLES, (), draw(views()), steps)


def _changes(draw: st.DrawFn, present: dict[str, Counter[Row]], least: int, most: int) -> tuple[Change, ...]:
    changes: list[Change] = []
    for _ in range(draw(st.integers(least, most))):
        table = draw(st.sampled_from(("edge", "edge", "edge", "edge", "root", "shut")))
        rows = sorted(present[table].elements(), key=repr)
        old = None if least > 1 else draw(st.sampled_from([None, *rows]))
        made = {"edge": st.tuples(NODES, NODES, NODES), "root": st.tuples(NODES, NODES), "shut": st.tuples(NODES)}
        new = draw(made[table]) if old is None or draw(st.booleans()) else None
        present[table].subtract([] if old is None else [old])
        present[table].update([] if new is None else [new])
        changes.append(Change(table, old, new))
    return tuple(changes)
