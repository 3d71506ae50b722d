"""The public Python interface: `pgtrickle.connect()` and what it returns. The CLI is a thin layer over it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from psycopg.pq import TransactionStatus

from pgtrickle import db, destination, options
from pgtrickle.answers import notes
from pgtrickle.apply import storage
from pgtrickle.capture import slot
from pgtrickle.capture.advice import advice, set_identities
from pgtrickle.catalog import followers, health, install, origin, serving
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog import writer as record
from pgtrickle.catalog.followers import Follower
from pgtrickle.catalog.health import Check, SlotHealth
from pgtrickle.catalog.names import parse_columns
from pgtrickle.catalog.reader import CdcChange, CdcStatus, HistoryRow, ImmediateSource, StreamTable
from pgtrickle.config import Settings
from pgtrickle.errors import ColumnsWarning, IgnoredSetting, SessionWarning, StateError, UsageError
from pgtrickle.guard import Gate, checked, guarded
from pgtrickle.index_text import Index, parse_indexes
from pgtrickle.monitor import readiness
from pgtrickle.monitor.finding import Finding
from pgtrickle.refresh.circle import circle_refresh, rules
from pgtrickle.refresh.decide import Action
from pgtrickle.refresh.definition import define, dropped, repair
from pgtrickle.refresh.definition.repair import Repair
from pgtrickle.refresh.explain import explain_analyzed, explain_query, explain_stream_table
from pgtrickle.refresh.failure import as_ours, known_failures
from pgtrickle.refresh.immediate import switch
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.refresh_record import OTHER_GROUP, UNDER_WAY
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.units import refresh_table
from pgtrickle.refresh.verification.verify import Verification, verify_or_tell
from pgtrickle.schedule import check_schedule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNCHANGED = object()


@guarded
class Trickle:
    """A database with stream tables. Made by `connect()`; use it as a context manager, or call `close()`.

    Threads may share it: their calls take turns. Whatever fails is a `pgtrickle.Error`.
    """

    @checked
    def __init__(
        self,
        dsn: str,
        *,
        spark: SparkSession | None = None,
        master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        install_catalog: bool = True,
    ) -> None:
        self.dsn = dsn
        self._gate = Gate()
        self._spark = None if spark is None else _taken_over(spark)
        self._connection = db.connect(dsn)
        try:
            if install_catalog:
                install.install(self._connection)
            else:
                install.require(self._connection)
            self.settings = Settings.load(
                self._connection, {"spark_master": master, "spark_conf": _as_text(spark_conf)}
            )
        except BaseException:
            self._connection.close()
            raise
        self._refresher = Refresher(dsn, self.settings, self._session)

    def __enter__(self) -> Trickle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def connection(self) -> db.Connection:
        """The session in which definitions are read and changed: for whoever acts in it for someone else."""
        return self._connection

    @property
    def backend_pids(self) -> tuple[int, ...]:
        """The sessions in which a call may be waiting; may be asked for by another thread."""
        own = () if self._connection.closed else (self._connection.info.backend_pid,)
        return (*own, *self._refresher.backend_pids)

    def close(self) -> None:
        """Closes the connections. Spark stays warm for the next `connect()` of this process."""
        self._gate.closed = True
        self._refresher.close()
        self._connection.close()

    def _ready(self) -> None:
        """Opens the session again if the server has ended it, unless someone acts in it: that would be another one."""
        known = self._connection
        under_way = not known.closed and known.info.transaction_status is not TransactionStatus.IDLE
        if under_way or db.acts_for_another(known) or db.is_usable(known):
            return
        known.close()
        self._connection = db.connect(self.dsn)

    def create_stream_table(
        self,
        name: str,
        query: str,
        schedule: str | None = "1m",
        refresh_mode: str = "AUTO",
        cdc_mode: str | None = None,
        initialize: bool = True,
        diamond_consistency: str | None = None,
        diamond_schedule_policy: str | None = None,
        auto_replica_identity: bool = False,
        primary_key: str | None = None,
        protect: bool | None = None,
        indexes: Sequence[str] | None = None,
    ) -> RefreshResult | None:
        """Creates a stream table, and populates it; with `initialize` false the service does, when it is first due. On
        failure nothing is left behind. `auto_replica_identity` sets REPLICA IDENTITY FULL on those sources that it
        keeps from the WAL; it is put back when no stream table reads them any more. `primary_key` names columns of the
        result, as in `region, day`: a refresh that would give two rows the same key, or a NULL, fails. `indexes` are
        over columns of the result, as in `["(region, day)", "UNIQUE (id)", "USING gin (tags)"]`, and are made once the
        table is filled. `protect` has writes by others than refreshes refused."""
        origin.require_here(self._connection)
        dropped.look(self._connection)
        asked = options.of_diamonds(diamond_consistency, diamond_schedule_policy)
        schedule = check_schedule(schedule, self.settings.min_schedule_seconds)
        self._tell_of_session(name)
        self._tell_of_capture(name, refresh_mode, cdc_mode)
        pgt_id = define.create(
            self._connection,
            name,
            query,
            settings=self.settings,
            schedule=schedule,
            refresh_mode=refresh_mode.upper(),
            cdc_mode=None if cdc_mode is None else options.cdc_mode(cdc_mode),
            fill_when_due=not initialize,
            set_identity=auto_replica_identity,
            primary_key=() if primary_key is None else parse_columns(primary_key),
            indexes=parse_indexes(indexes or ()),
            protect=bool(protect),
        )
        self._ask_of_diamond(pgt_id, asked)
        if not initialize:
            return None
        try:
            return self._fill(pgt_id, initiated_by="INITIAL")
        except BaseException:
            stream = catalog.by_id(self._connection, pgt_id)
            if stream is not None:
                self._drop(stream, cascade=False)
            raise

    def create_or_replace_stream_table(
        self,
        name: str,
        query: str,
        schedule: str | None = "1m",
        refresh_mode: str = "AUTO",
        cdc_mode: str | None = None,
        initialize: bool = True,
        diamond_consistency: str | None = None,
        diamond_schedule_policy: str | None = None,
        auto_replica_identity: bool = False,
        primary_key: str | None = None,
        protect: bool | None = None,
        indexes: Sequence[str] | None = None,
    ) -> RefreshResult | None:
        """Creates a stream table, or alters the one of that name to be as given; None if it was altered."""
        asked: dict[str, Any] = {
            "cdc_mode": cdc_mode,
            "diamond_consistency": diamond_consistency,
            "diamond_schedule_policy": diamond_schedule_policy,
            "primary_key": primary_key,
            "indexes": indexes,
            "protect": protect,
        }
        if not self.exists(name):
            return self.create_stream_table(
                name,
                query,
                schedule=schedule,
                refresh_mode=refresh_mode,
                initialize=initialize,
                auto_replica_identity=auto_replica_identity,
                **asked,
            )
        self.alter_stream_table(name, query=query, schedule=schedule, refresh_mode=refresh_mode, **asked)
        if auto_replica_identity:
            with self._connection.transaction():
                set_identities(self._connection, self.settings, self._sources(name))
        return None

    def exists(self, name: str) -> bool:
        """Whether there is a stream table of that name."""
        try:
            catalog.resolve(self._connection, name)
        except StateError as error:
            if error.code != "PT301":
                raise
            return False
        return True

    def alter_stream_table(
        self,
        name: str,
        *,
        query: str | None = None,
        schedule: object = _UNCHANGED,
        refresh_mode: str | None = None,
        status: str | None = None,
        cdc_mode: str | None = None,
        diamond_consistency: str | None = None,
        diamond_schedule_policy: str | None = None,
        primary_key: str | None = None,
        protect: bool | None = None,
        indexes: Sequence[str] | None = None,
    ) -> None:
        """Changes what is given. A new query takes effect at once: the table is computed again before this returns.
        Another `cdc_mode` is carried out by the service, at its next look. `inherit` for `cdc_mode` or an option of
        diamonds gives it back to the setting. `primary_key` is `none` to have none any more; given with a query, the
        table has it once the new rows are there. `indexes` are all that were asked for like this from now on: others
        are dropped, but for those made by CREATE INDEX."""
        key = None if primary_key is None else parse_columns(primary_key)
        wanted = None if indexes is None else parse_indexes(indexes)
        asked = options.of_diamonds(diamond_consistency, diamond_schedule_policy)
        stream = catalog.resolve(self._connection, name)
        if query is not None:
            self._tell_of_session(name)
        self._tell_of_capture(name, refresh_mode, cdc_mode or stream.requested_cdc_mode)
        with self._connection.transaction():
            mode = None if refresh_mode is None else refresh_mode.upper()
            if query is None and mode is not None and self._stays_as_it_is(stream, mode):
                pass
            elif query is not None or (mode is not None and mode != stream.refresh_mode):
                # First, since it waits for a refresh under way, which writes to the rows of the catalog that follow.
                self._redefine(stream, query, mode, wanted if query is not None else None)
            if protect is not None:
                define.protect(self._connection, self._again(stream), protect=protect)
            if key is not None:
                define.set_primary_key(self._connection, self._again(stream), key if query is None else ())
            if wanted is not None and query is None:
                define.set_indexes(self._connection, self._again(stream), wanted)
            if schedule is not _UNCHANGED:
                text = check_schedule(None if schedule is None else str(schedule), self.settings.min_schedule_seconds)
                record.set_schedule(self._connection, stream.pgt_id, text)
            if status is not None:
                record.set_status(self._connection, stream.pgt_id, options.status(status))
            self._ask_of_diamond(stream.pgt_id, asked)
            if cdc_mode is not None:
                define.ask_for(self._connection, self._again(stream), options.cdc_mode(cdc_mode), self.settings)
        altered = query is not None or (mode == "IMMEDIATE" and not self._again(stream).is_immediate)
        if altered and stream.is_populated and self._again(stream).status != "SUSPENDED":
            self._fill(stream.pgt_id)
        if key and query is not None:
            with self._connection.transaction():
                define.set_primary_key(self._connection, self._again(stream), key)

    def _stays_as_it_is(self, stream: StreamTable, refresh_mode: str) -> bool:
        """Whether the mode is all that is altered: between IMMEDIATE and what is maintained by changes too, nothing is
        computed again."""
        incremental = stream.is_populated and not stream.needs_reinit
        if refresh_mode == stream.refresh_mode or not incremental:
            return False
        if stream.is_immediate and refresh_mode in {"AUTO", "DIFFERENTIAL"}:
            switch.out_of(self._connection, stream, refresh_mode, self.settings)
            return True
        if stream.effective_mode == "DIFFERENTIAL" and refresh_mode == "IMMEDIATE":
            define.require_immediate(self._connection, stream)
            record.set_refresh_mode(self._connection, stream.pgt_id, refresh_mode)
            return True
        return False

    def _again(self, stream: StreamTable) -> StreamTable:
        """The same stream table as it is now, whatever its name."""
        found = catalog.by_id(self._connection, stream.pgt_id)
        if found is None or found.owner is None:
            raise storage.dropped(stream)
        return found

    def _redefine(
        self, stream: StreamTable, query: str | None, refresh_mode: str | None, indexes: Sequence[Index] | None = None
    ) -> None:
        """Defines it anew, unless it would then read itself, through others or not, where that may not be."""
        from pgtrickle.scheduler import dag  # here: graphs are loaded only where one is asked for

        before = dag.read(self._connection)
        fitted = define.redefine(
            self._connection,
            stream,
            settings=self.settings,
            reason="the query was altered" if query is not None else "the refresh mode was altered",
            query=query,
            refresh_mode=refresh_mode,
            indexes=indexes,
        )
        sources = catalog.dependencies(self._connection, stream.pgt_id)
        relids = [source.source_relid for source in sources]
        if not self.settings.allow_circular:
            before.require_no_cycle(stream.pgt_id, relids)
        else:
            after = before.with_sources(stream.pgt_id, relids)
            circle_ids = next((part for part in after.circles if stream.pgt_id in part), ())
            if circle_ids and fitted.other_columns:
                raise rules.other_columns(str(stream))
            self._require_monotone(circle_ids)
        self._tell_of_losses(stream, fitted.lost)

    def _tell_of_losses(self, stream: StreamTable, lost: Sequence[str]) -> None:
        """What goes with columns that the table no longer has; to who asked by SQL, it is not told."""
        if lost and not db.acts_for_another(self._connection):
            told = f"{stream}: with the columns that it no longer has go {', '.join(lost)}"
            warnings.warn(told, ColumnsWarning, stacklevel=4)

    def _tell_of_capture(self, name: str, refresh_mode: str | None, cdc_mode: str | None) -> None:
        """Says that the WAL, where the setting asks for it, does not keep the table; to who asked by SQL, the request
        does."""
        by_setting = cdc_mode is None and self.settings.cdc_mode == "wal"
        immediate = refresh_mode is not None and refresh_mode.upper() == "IMMEDIATE"
        if immediate and by_setting and not db.acts_for_another(self._connection):
            told = f"{name}: cdc_mode = wal has no effect on it, as IMMEDIATE has triggers of its own"
            warnings.warn(told, IgnoredSetting, stacklevel=4)

    def _tell_of_session(self, name: str) -> None:
        """Says what will not be as it is in the session that defines a table; `explain` says it again. To who asked by
        SQL, the request does."""
        for note in () if db.acts_for_another(self._connection) else notes(db.caller(self._connection).settings):
            warnings.warn(f"{name}: {note}", SessionWarning, stacklevel=4)  # of who called the guarded method

    def _require_monotone(self, circle_ids: Sequence[int]) -> None:
        """Whether the circle that an altered table is now in, if any, can be refreshed."""
        members = [each for pgt_id in circle_ids if (each := catalog.by_id(self._connection, pgt_id)) is not None]
        rules.require_monotone([circle_refresh.member(each, define.load(self._connection, each)) for each in members])

    def _ask_of_diamond(self, pgt_id: int, asked: tuple[str | None, str | None]) -> None:
        if any(asked):
            from pgtrickle.scheduler import diamonds

            diamonds.ask(self._connection, pgt_id, *asked)

    def _fill(self, pgt_id: int, *, initiated_by: str = "MANUAL") -> RefreshResult:
        """Fills a table defined anew; if it is in an atomic group, its group is brought to the same version."""
        result = self._refresh_for_sure(pgt_id, initiated_by=initiated_by)
        if result.action is Action.SKIP:
            raise StateError(
                f"it cannot be filled together with the atomic group that it is part of: {result.reason}",
                code="PT347",
                hint="mend that, or leave the group with diamond_consistency none",
            )
        return result

    def _refresh_for_sure(self, pgt_id: int, *, initiated_by: str = "MANUAL") -> RefreshResult:
        """Refreshes, waiting for another refresh that is under way; a suspended table stays as it is."""
        while (result := self._refresh(pgt_id, initiated_by=initiated_by)).reason == UNDER_WAY:
            time.sleep(0.2)
        return result

    def drop_stream_table(self, name: str, cascade: bool = False) -> list[str]:
        """Drops a stream table and, with `cascade`, all that depends on it; returns the stream tables dropped. Of one
        that was restored from a dump and not repaired, only what is on record goes: no table is known to be its."""
        origin.require_here(self._connection)
        known = catalog.by_recorded_name(self._connection, name)
        restored = known if known is not None and known.is_restored else None
        return self._drop(restored or catalog.resolve(self._connection, name), cascade=cascade)

    def _drop(self, stream: StreamTable, *, cascade: bool) -> list[str]:
        dropped = define.drop(self._connection, stream, cascade=cascade)
        slot.drop_if_unused(self._connection)
        return dropped

    def refresh_stream_table(self, name: str, *, full: bool = False) -> RefreshResult:
        """Brings a stream table up to date now; if it is in a circle or an atomic group, all of that."""
        dropped.look(self._connection)
        return self._refresh(catalog.resolve(self._connection, name).pgt_id, full=full)

    def _refresh(self, pgt_id: int, *, full: bool = False, initiated_by: str = "MANUAL") -> RefreshResult:
        def alone(conn: db.Connection) -> bool:
            return not catalog.is_stacked(conn, pgt_id)

        if alone(self._connection):
            result = refresh_table(self._refresher, pgt_id, full=full, initiated_by=initiated_by, still=alone)[pgt_id]
            if result.reason != OTHER_GROUP:
                return result
        from pgtrickle.scheduler import refresh_by_name

        return refresh_by_name.refresh(self._refresher, pgt_id, full=full, initiated_by=initiated_by)

    def repair(self, *names: str, refresh: bool = True) -> list[Repair]:
        """Mends stream tables (all, if none is named) that were restored from a dump, or of which something was dropped
        by hand, and computes them from scratch where that is needed, unless `refresh` is false: then the service does.
        Says what it did for each; one that cannot be mended says why, and the others are mended all the same."""
        conn = self._connection
        whole = repair.take_up(conn)
        dropped.look(conn)
        streams = [self._recorded(name) for name in names] if names else catalog.list_tables(conn)
        examined = [(stream, repair.examine(conn, stream)) for stream in sorted(streams, key=lambda each: each.pgt_id)]
        found = {
            stream.pgt_id: finding
            if isinstance(finding, Repair)
            else repair.mend(conn, stream, finding, self.settings, by_name=bool(names))
            for stream, finding in examined
        }
        repair.finish(conn)
        if refresh:
            for stream in self.in_order():
                if stream.pgt_id in found and found[stream.pgt_id].outcome not in {"ERROR", "left"}:
                    found[stream.pgt_id] = self._compute(stream, found[stream.pgt_id])
        return [*(Repair("the catalog", (each,)) for each in whole), *found.values()]

    def _recorded(self, name: str) -> StreamTable:
        return catalog.by_recorded_name(self._connection, name) or catalog.resolve(self._connection, name)

    def _compute(self, stream: StreamTable, so_far: Repair) -> Repair:
        """What was repaired is computed from scratch, if it was ever filled, and is not suspended."""
        if not (stream.needs_reinit and stream.is_populated) or stream.status == "SUSPENDED":
            return so_far
        try:
            result = self._refresh_for_sure(stream.pgt_id)
        except known_failures() as error:
            return Repair(so_far.table, so_far.done, as_ours(error))
        if result.action is Action.SKIP:
            return so_far.then(f"not computed yet: {result.reason}")
        return so_far.then(f"computed again: {result.rows_inserted} rows in, {result.rows_deleted} out")

    def status(self, name: str | None = None) -> Sequence[StreamTable]:
        """All stream tables, or the one named."""
        dropped.look(self._connection)
        if name is not None:
            return (catalog.resolve(self._connection, name),)
        return catalog.list_tables(self._connection)

    def in_order(self) -> Sequence[StreamTable]:
        """All stream tables, each after those that it reads; the tables of a circle side by side."""
        from pgtrickle.scheduler import dag

        place = {pgt_id: place for place, pgt_id in enumerate(dag.read(self._connection).layers())}
        return sorted(self.status(), key=lambda stream: place.get(stream.pgt_id, len(place)))

    def history(self, name: str, max_rows: int = 20) -> Sequence[HistoryRow]:
        """The last refreshes of a stream table, newest first."""
        return catalog.history(self._connection, catalog.resolve(self._connection, name).pgt_id, max_rows)

    def explain(self, name: str | None = None, *, query: str | None = None, analyze: bool = False) -> str:
        """How a stream table, or a query that might become one, is maintained. With `analyze` the plan is run for the
        changes that are waiting, by PostgreSQL alone, and undone: it says how many rows there really were, and the time
        it took."""
        if (name is None) == (query is None):
            raise UsageError("explain takes a stream table or a query", hint="give one of them")
        if analyze and name is None:
            raise UsageError("only a stream table can be analyzed: a query has no changes", hint="name one")
        if query is not None:
            return explain_query(self._connection, query, self.settings)
        assert name is not None
        stream = catalog.resolve(self._connection, name)
        if analyze:
            serving.require(self._connection, stream)
            return explain_analyzed(self._refresher, stream)
        text = explain_stream_table(self._connection, stream, self._prepared(stream))
        way = self.circle(name)
        return f"{circle_refresh.explained(way)}\n{text}" if way else text

    def circle(self, name: str) -> str | None:
        """The circle that a stream table is part of, as a → b → a; None if it is in none."""
        found = catalog.circle(self._connection, catalog.resolve(self._connection, name).pgt_id)
        streams = [each for pgt_id in found if (each := catalog.by_id(self._connection, pgt_id)) is not None]
        members = [circle_refresh.member(each, self._prepared(each)) for each in streams]
        return rules.route(members) if members else None

    def verify(self, *names: str) -> list[Verification]:
        """Compares stream tables (all that this login computes, if none is named) with their queries as PostgreSQL
        evaluates them. One that cannot be compared says why, in its `error`."""
        dropped.look(self._connection)
        streams = [catalog.resolve(self._connection, name) for name in names]
        for stream in streams:
            serving.require(self._connection, stream)
        if not names:
            ours = serving.computable(self._connection)
            streams = [each for each in catalog.list_tables(self._connection) if each.pgt_id in ours]
        patience = self.settings.decoder_wait_timeout
        return [
            verify_or_tell(self._refresher.connections(), stream, patience, self._refresh_for_sure)
            for stream in streams
        ]

    def _prepared(self, stream: StreamTable) -> Prepared:
        """The compiled stream table; refused if we do not serve its owner."""
        serving.require(self._connection, stream)
        return self._refresher.prepared(stream)

    def cdc_status(self) -> Sequence[CdcStatus]:
        """How each source is captured, and why."""
        return catalog.cdc_status(self._connection)

    def immediate_sources(self) -> Sequence[ImmediateSource]:
        """The sources whose writers keep stream tables in IMMEDIATE mode, and these tables."""
        return catalog.immediate_sources(self._connection)

    def cdc_history(self, max_rows: int = 20) -> Sequence[CdcChange]:
        """The last changes of a source's capture mode, newest first."""
        return catalog.cdc_history(self._connection, max_rows=max_rows)

    def capture_advice(self, name: str | None = None) -> tuple[str, ...]:
        """What to run for sources, of all stream tables or of one, that only their replica identity keeps from the WAL:
        one line each."""
        return advice(self._connection, self.settings, None if name is None else self._sources(name))

    def _sources(self, name: str) -> set[int]:
        pgt_id = catalog.resolve(self._connection, name).pgt_id
        return {each.source_relid for each in catalog.dependencies(self._connection, pgt_id)}

    def slot_health(self) -> SlotHealth | None:
        """The replication slot that sources share; None if there is none."""
        return health.slot_health(self._connection)

    def health(self) -> Sequence[Check]:
        """Every check of health, with what is wrong where something is."""
        return health.health(self._connection)

    def followers(self) -> Sequence[Follower]:
        """Readers outside of the database that follow stream tables by their changes, such as streams of Spark."""
        return followers.list_all(self._connection)

    def drop_follower(self, name: str) -> None:
        """Forgets a follower: changes are no longer kept for it."""
        followers.drop(self._connection, name)

    def doctor(self) -> Sequence[Finding]:
        """Whether the server is ready for all that we can do, and the statements that make it so."""
        return readiness.examine(self._connection)

    def _session(self) -> SparkSession:
        if self._spark is not None:
            from pgtrickle.spark import user_session

            user_session.require_running(self._spark)
            return self._spark
        from pgtrickle.spark import session  # here, so that reading the catalog does not load Spark

        return session.configured(self.settings)


@checked
def connect(
    dsn: str | None = None,
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    install_catalog: bool = True,
) -> Trickle:
    """Connects to a database, and installs or upgrades its catalog unless told not to.

    Without `dsn` the database is PGTRICKLE_DSN's, else the one that libpq's variables or service name, else that of the
    embedded server, which is started. A SparkSession handed over as `spark` is checked: whether its Python workers can
    run our tasks. `spark_conf` are Spark's own settings by name, for the session that is started without one.
    """
    chosen = destination.choose(dsn)
    return Trickle(chosen.dsn, spark=spark, master=master, spark_conf=spark_conf, install_catalog=install_catalog)


def _as_text(spark_conf: Mapping[str, str] | None) -> str | None:
    """As the setting has it; what is not given is None."""
    return None if spark_conf is None else "; ".join(f"{name}={value}" for name, value in spark_conf.items())


def _taken_over(spark: SparkSession) -> SparkSession:
    """The session that was handed over, checked."""
    from pgtrickle.spark import user_session

    return user_session.taken_over(spark)
