"""What refreshes make of DDL on their sources, whether event triggers noted it or the fingerprint tells."""

from __future__ import annotations

import pytest

from pgtrickle.errors import QueryError, StateError
from tests.ddl.place import QUERY, Place
from tests.ddl.test_events import REDEFINED


def test_columns_that_are_not_used_change_nothing(either: Place) -> None:
    assert either.trickle.refresh_stream_table("st").action == "NO_DATA"
    for ddl in (
        "ALTER TABLE t ADD COLUMN more int DEFAULT 7",
        "ALTER TABLE t ALTER w SET NOT NULL",
        "ALTER TABLE t RENAME w TO x",
        "ALTER TABLE t DROP COLUMN x",
    ):
        either.run(ddl)
        assert either.trickle.refresh_stream_table("st").action == "NO_DATA"
    assert either.stream().status == "ACTIVE"


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("DROP VIEW seen", '"seen"'),
        ("ALTER FUNCTION twice(int) RENAME TO double", "twice"),
    ],
)
def test_a_query_that_no_longer_holds_is_an_error_state_each_time(either: Place, ddl: str, said: str) -> None:
    assert either.trickle.refresh_stream_table("st").action == "NO_DATA"
    either.run(ddl)
    for _ in range(4):  # more often than what suspends a table
        with pytest.raises(QueryError, match=said) as caught:
            either.trickle.refresh_stream_table("st")
        assert caught.value.hint
        stream = either.stream()
        assert stream.status == "ERROR"
        assert stream.last_error == str(caught.value)
    last = either.trickle.history("st")[0]
    assert (last.status, last.error_code) == ("FAILED", caught.value.code)


def test_a_source_dropped(either: Place) -> None:
    either.trickle.refresh_stream_table("st")
    either.run("DROP TABLE t CASCADE")
    for _ in range(4):
        with pytest.raises(QueryError, match='"seen"'):
            either.trickle.refresh_stream_table("st")
        assert either.stream().status == "ERROR"
    either.trickle.drop_stream_table("st")
    assert either.value("SELECT count(*) FROM pgtrickle.pgt_change_tracking") == 0
    assert either.value("SELECT count(*) FROM pgtrickle.pgt_source_ddl") == 0


def test_computed_anew_or_in_error_until_altered(computing: Place) -> None:
    """The life of a source: redefined, rewritten, dropped and made again, retyped, renamed."""
    refresh = computing.trickle.refresh_stream_table
    computing.run("INSERT INTO t SELECT g, g, 'w' FROM generate_series(1, 9) g")
    refresh("st", full=True)

    computing.run(REDEFINED)
    assert refresh("st").action == "REINITIALIZE"
    assert computing.equal("st", QUERY)

    computing.run("ALTER TABLE t ALTER w TYPE varchar(9) USING 'x'", "INSERT INTO t VALUES (10, 10, 'x')")
    refresh("st")
    assert computing.equal("st", QUERY)

    computing.run(
        "DROP TABLE t CASCADE",
        "CREATE TABLE t (id int PRIMARY KEY, v int, w text)",
        "INSERT INTO t VALUES (1, 1), (2, 2)",
        "CREATE VIEW seen AS SELECT id, v FROM t WHERE v > 0",
    )
    with pytest.raises(StateError, match=r"public\.seen") as caught:
        refresh("st")  # other relations than those it was defined on
    assert (caught.value.code, computing.stream().status) == ("PT313", "ERROR")
    computing.trickle.alter_stream_table("st", query=QUERY)
    assert computing.equal("st", QUERY)
    assert computing.stream().status == "ACTIVE"
    computing.run("UPDATE t SET v = 7 WHERE id = 1")
    assert refresh("st").action == "DIFFERENTIAL"
    assert computing.equal("st", QUERY)

    computing.run("DROP VIEW seen", "ALTER TABLE t ALTER id TYPE bigint", "CREATE VIEW seen AS SELECT id, v FROM t")
    with pytest.raises(StateError) as caught:
        refresh("st")
    assert caught.value.code == "PT313"
    assert computing.stream().status == "ERROR"
    computing.run("ALTER TABLE t RENAME v TO amount", "INSERT INTO t VALUES (3, 3)")
    query = "SELECT id, amount FROM t"
    computing.trickle.alter_stream_table("st", query=query)
    assert computing.equal("st", query)
    stream = computing.stream()
    assert (stream.status, stream.last_error, stream.needs_reinit) == ("ACTIVE", None, False)
    assert computing.noted() == []
