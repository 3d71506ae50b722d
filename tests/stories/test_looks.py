"""Aggregates that hand on one of several equal values, below a join: which look they show is one rule's to say, so what
a refresh takes away is what an earlier one brought. Rows move within their tables in between, which no one captures."""

from __future__ import annotations

from tests.stories.telling import Story

VALUES = {
    "numeric": ("1.0", "1.00", "1.000", "0"),
    "float8": ("-0", "0", "-0", "1"),
    "interval": ("1 month", "30 days", "720:00:00", "1 day"),
    "bpchar": ("a", "a ", "a  ", "b"),
    "jsonb": ("1.00", "1.0", "1", "2"),
    "numeric[]": ("{1.0}", "{1.00}", "{1}", "{1,NULL}"),
    "numrange": ("[1.0,2)", "[1.00,2)", "[1,2.0)", "[5,6)"),
}
"""By type: three values that are equal, and one that is not."""

_MOST = "numeric float8 interval bpchar jsonb numrange"
CALLS = {
    "array_agg(DISTINCT {k})": _MOST,
    "array_agg(DISTINCT {k} ORDER BY {k} DESC) FILTER (WHERE id < 9)": _MOST,
    "array_agg(DISTINCT {k} * 2)": "numeric float8 interval",
    "array_agg({k} ORDER BY {k})": _MOST,
    "min(DISTINCT {k})": "numeric float8 interval bpchar numeric[]",
    "max({k}) FILTER (WHERE id < 9)": "numeric float8 interval bpchar numeric[]",
    "mode() WITHIN GROUP (ORDER BY {k})": f"{_MOST} numeric[]",
    "percentile_disc(0.4) WITHIN GROUP (ORDER BY {k} DESC)": f"{_MOST} numeric[]",
    "percentile_disc(ARRAY[0.1, 0.9]) WITHIN GROUP (ORDER BY {k})": _MOST,
    "percentile_cont(0.4) WITHIN GROUP (ORDER BY {k})": "float8 interval",
    "rank(1) WITHIN GROUP (ORDER BY {k})": "numeric",
    "sum(DISTINCT {k})": "numeric float8 interval",
    "avg(DISTINCT {k})": "numeric float8 interval",
    "count(DISTINCT {k})": f"{_MOST} numeric[]",
    "string_agg(DISTINCT {k}::text, ' ')": f"{_MOST} numeric[]",
    "string_agg(DISTINCT ({k} || ''), ' ' ORDER BY ({k} || '') DESC) FILTER (WHERE {k} IS NOT NULL)": "numeric",
    "jsonb_agg(DISTINCT {k})": "numeric jsonb",
    "jsonb_object_agg(id, {k})": "numeric jsonb",
    "range_agg({k})": "numrange",
    "range_intersect_agg({k})": "numrange",
}
"""What takes values of which types, as PostgreSQL can compare it again."""


def column(kind: str) -> str:
    return "c_" + kind.replace("[]", "_array")


def test_which_look_is_taken(story18: Story) -> None:
    """Of each type, what each call makes of it."""
    story18.run(
        f"CREATE TABLE t (id int, g int, moved int, {', '.join(f'{column(kind)} {kind}' for kind in VALUES)})",
        "CREATE INDEX backwards ON t (id DESC)",
        "CREATE TABLE u (g int, n int)",
        "INSERT INTO u SELECT g, n FROM generate_series(1, 3) AS g, generate_series(1, 2) AS n",
    )
    for id in range(12):
        row = ", ".join(f"'{values[id % 4 if id < 8 else 0]}'" for values in VALUES.values())
        story18.run(f"INSERT INTO t VALUES ({id}, {id % 3 + 1}, 0, {row})")
    for name, calls in _tables().items():
        story18.looks.add(name)
        made = ", ".join(f"{call} AS m{place}" for place, call in enumerate(calls))
        story18.create(name, f"SELECT u.n, q.* FROM u JOIN (SELECT g, {made} FROM t GROUP BY g) AS q ON q.g = u.g")
    for place in range(3):
        story18.run(f"UPDATE t SET moved = moved + 1 WHERE id % 4 = {place}")
        story18.run(f"DELETE FROM u WHERE g = {place + 1} AND n = 1")
        story18.follow()
    story18.run("UPDATE t SET moved = moved + 1 WHERE id % 2 = 0", "UPDATE t SET g = g % 3 + 1 WHERE id IN (1, 5)")
    story18.run("INSERT INTO u SELECT g, 1 FROM generate_series(1, 3) AS g", "DELETE FROM t WHERE id = 9")
    story18.follow()
    story18.run("CLUSTER t USING backwards", "UPDATE u SET n = n + 1 WHERE g = 1")
    story18.follow()
    for name in _tables():
        again = story18.trickle.refresh_stream_table(name, full=True)
        assert (again.rows_inserted, again.rows_deleted) == (0, 0), name


def _tables() -> dict[str, list[str]]:
    """The calls of each stream table. PostgreSQL may sort the rows of a SELECT for one call, and all others get them
    so: those with an ORDER BY are by themselves."""
    made = [call.format(k=column(kind)) for call, kinds in CALLS.items() for kind in kinds.split()]
    distinct, within = ([call for call in made if what in call] for what in ("DISTINCT", "WITHIN"))
    return {
        "distinct_values": distinct,
        "within_groups": within,
        "others": [call for call in made if call not in distinct and call not in within],
    }
