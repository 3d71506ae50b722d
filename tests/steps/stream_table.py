"""A step file as the life of a stream table: trigger capture, differential refreshes, and `verify` at the end."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.refresh.dry_run import NoRun, dry_run
from tests.steps.parser import Step, StepFile
from tests.steps.runner import ZSet
from tests.steps.sources import Sources


class OnTable:
    """A stream table of the view, refreshed after each step: on Spark, or, without one, by plain SQL."""

    created_on_spark = True

    def __init__(self, dsn: str, spark: SparkSession | None = None) -> None:
        self.connection = db.open_session(dsn)
        self.dsn = dsn
        self.spark = spark
        self.trickle: Trickle | None = None
        self.sources: Sources | None = None
        self.kept: ZSet = Counter()

    def setup(self, file: StepFile) -> None:
        self.sources = Sources(self.connection, file)
        dsn = make_conninfo(self.dsn, options=f"-csearch_path={self.sources.schema},public")
        self.trickle = Trickle(dsn, spark=self.spark)
        self.trickle._refresher.without_spark = self.spark is None or not self.created_on_spark
        if file.clock is not None:
            self.trickle._refresher.clock = self._time
        self.trickle.create_stream_table("stream", file.view, refresh_mode="DIFFERENTIAL")
        self.kept = self.contents()

    def apply(self, step: Step) -> ZSet:
        assert self.sources is not None
        assert self.trickle is not None
        self.sources.apply(step)
        is_last = step is self.sources.file.steps[-1] or step not in self.sources.file.steps
        foretold = self._foretold() if self.spark is None and is_last else None
        result = self.trickle.refresh_stream_table("stream")
        assert result.action in {"DIFFERENTIAL", "NO_DATA"}, result
        old, self.kept = self.kept, self.contents()
        delta = Counter(self.kept)
        delta.subtract(old)
        assert foretold is None or foretold == Counter({row: weight for row, weight in delta.items() if weight})
        assert result.rows_inserted >= sum(weight for weight in delta.values() if weight > 0), result
        if step is self.sources.file.steps[-1]:  # where the story has come to; the way back ends where it began
            assert all(found.equal and found.compared_with == "its snapshot" for found in self.trickle.verify("stream"))
        return delta

    def _time(self) -> datetime:
        assert self.sources is not None
        assert self.sources.at is not None
        return self.sources.at

    def _foretold(self) -> ZSet:
        """What a dry run in one session says that the refresh will change."""
        assert self.trickle is not None
        (stream,) = self.trickle.status("stream")
        with dry_run(self.trickle._refresher, stream.pgt_id) as found:
            if isinstance(found, NoRun):
                return Counter()
            rows = found.session.execute(db.statement(found.result)).fetchall()
        return Counter({row[:-1]: int(str(row[-1])) for row in rows})

    def contents(self) -> ZSet:
        return Counter(self.connection.execute("SELECT * FROM stream").fetchall())

    def answer(self) -> ZSet:
        assert self.sources is not None
        return self.sources.answer()

    def close(self) -> None:
        if self.trickle is not None:
            self.trickle.drop_stream_table("stream")
            self.trickle.close()
        if self.sources is not None:
            self.sources.drop()
        self.connection.close()


class AtOnce(OnTable):
    """A stream table that is created by plain SQL, since its tables are empty yet, and refreshed by Spark."""

    created_on_spark = False

    def setup(self, file: StepFile) -> None:
        super().setup(file)
        assert self.trickle is not None
        self.trickle._refresher.without_spark = False

    def refresh_in_full(self) -> None:
        assert self.trickle is not None
        result = self.trickle.refresh_stream_table("stream", full=True)
        assert result.action == "FULL", result


class OnWriters:
    """A stream table of the view in IMMEDIATE mode: after each statement it must be what the query says."""

    def __init__(self, dsn: str) -> None:
        self.connection = db.open_session(dsn)
        self.dsn = dsn
        self.trickle: Trickle | None = None
        self.sources: Sources | None = None
        self.is_created = False

    def setup(self, file: StepFile) -> None:
        self.sources = Sources(self.connection, file)
        dsn = make_conninfo(self.dsn, options=f"-csearch_path={self.sources.schema},public")
        self.trickle = Trickle(dsn)
        self.trickle._refresher.without_spark = True
        self.trickle.create_stream_table("stream", file.view, refresh_mode="IMMEDIATE")
        self.is_created = True
        (stream,) = self.trickle.status("stream")
        assert stream.effective_mode == "IMMEDIATE", stream
        assert self._by_one_statement() or "recursion" in str(file.path)

    def _by_one_statement(self) -> bool:
        """Whether few changes are applied by one statement."""
        row = self.connection.execute(
            "SELECT bool_or(f.prosrc LIKE '%WITH \"pgt_%') FROM pg_proc AS f JOIN pg_namespace AS n"
            " ON n.oid = f.pronamespace WHERE n.nspname = 'pgtrickle_state' AND f.proname LIKE 'i\\_%'"
        ).fetchone()
        assert row is not None
        return bool(row[0])

    def apply(self, step: Step) -> ZSet:
        assert self.sources is not None
        assert self.trickle is not None
        old = self.contents()
        self.sources.apply(step)
        delta = self.contents()
        delta.subtract(old)
        if step is self.sources.file.steps[-1]:
            assert all(found.equal for found in self.trickle.verify("stream"))
        return delta

    def contents(self) -> ZSet:
        return Counter(self.connection.execute("SELECT * FROM stream").fetchall())

    def answer(self) -> ZSet:
        assert self.sources is not None
        return self.sources.answer()

    def close(self) -> None:
        if self.trickle is not None:
            if self.is_created:
                self.trickle.drop_stream_table("stream")
            self.trickle.close()
        if self.sources is not None:
            self.sources.drop()
        self.connection.close()
