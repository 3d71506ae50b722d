"""Where decoded changes go: the buffers, and the record of how far we are, in one transaction. Called by the decoder.

A batch is one transaction with the changes of whole source transactions. Before the first row of a batch goes into a
buffer, the buffer is locked against DDL and its shape read, so a column that a new consumer needs is never left out:
who widens a buffer waits for our batch, or we see what he did.

Two decoders cannot both write: whoever starts puts its session's pid into `pgt_decoder`, and no batch commits without
finding its own there. Rows a dead decoder's session is still committing are waited for by the lock on that row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import Copy, sql
from psycopg.pq import TransactionStatus

from pgtrickle import db, failpoints
from pgtrickle.capture.buffer import PAGE, SCHEMA, buffer_column, buffer_identifier, buffer_name
from pgtrickle.capture.copybinary import HEADER, TRAILER, BufferShape, CopyTarget, Route, ValueType, extend_xid, misfit
from pgtrickle.capture.pgoutput import Relation
from pgtrickle.capture.replication import format_lsn, parse_lsn
from pgtrickle.capture.source import WIDTH
from pgtrickle.errors import StateError
from pgtrickle.fence import Fence, hold

LOCK_TIMEOUT_S: Final = 20
"""Longer than any lock of ours on a buffer, and short enough that the server does not give the stream up meanwhile."""

# A source counts while it is captured from the WAL, and also on its way back: the side of each change is decided by
# the handovers when the buffer is read, so a row too many does no harm.
_STATE = f"""
SELECT t.source_relid::bigint, b.names, b.types, b.modifiers, pg_snapshot_xmax(pg_current_snapshot())::text, t.columns,
       EXISTS (SELECT FROM pg_partitioned_table AS p WHERE p.partrelid = t.source_relid),
       coalesce(t.refused_lsn - '0/0', 0), b.pairs
FROM pgtrickle.pgt_change_tracking AS t
CROSS JOIN LATERAL (
    SELECT array_agg(a.attname::text) AS names, array_agg(a.atttypid::bigint) AS types,
           array_agg(a.atttypmod) AS modifiers,
           sum({WIDTH.format(length="a.attlen", storage="a.attstorage")}) + max(a.attnum) / 8 + 32 <= {PAGE} AS pairs
    FROM pg_attribute AS a
    WHERE a.attrelid = to_regclass({{schema}} || '.changes_' || t.source_relid) AND a.attnum > 0 AND NOT a.attisdropped
) AS b
WHERE (t.source_relid = {{relation}}
       OR t.source_relid IN (SELECT p.relid FROM pg_partition_ancestors({{relation}}) AS p))
  AND (t.cdc_mode <> 'TRIGGER'
       OR EXISTS (SELECT FROM pgtrickle.pgt_handovers AS h WHERE h.source_relid = t.source_relid))
  AND b.names IS NOT NULL
ORDER BY t.source_relid
"""

_TYPES = """
WITH RECURSIVE base AS (
    SELECT place, type_oid AS oid, modifier FROM unnest(%s::oid[], %s::integer[]) WITH ORDINALITY
           AS c(type_oid, modifier, place)
    UNION ALL
    SELECT base.place, t.typbasetype, t.typtypmod FROM base JOIN pg_type AS t ON t.oid = base.oid WHERE t.typtype = 'd'
)
SELECT base.place, base.oid::bigint, base.modifier, t.typsend <> 0
FROM base JOIN pg_type AS t ON t.oid = base.oid WHERE t.typtype <> 'd'
"""


class TakenOver(StateError):
    """Another decoder writes now."""

    code = "PT358"


@dataclass(frozen=True, slots=True)
class Staging:
    """A temporary table in front of a buffer with columns that come as text, and the statement that casts them."""

    shape: BufferShape
    as_text: frozenset[str]
    table: sql.Identifier
    fill: sql.Composed


class Sink:
    """A session that writes batches. `commit_lsn` and `confirmed_lsn` are what is recorded, 0 if nothing is;
    `written_lsn` is about where our own last commit is in the WAL."""

    def __init__(self, dsn: str, slot: str, publication: str, fence: Fence | None = None) -> None:
        self._conn = db.connect(dsn, autocommit=False, application_name="pgtrickle decoder")
        self._dsn = dsn
        self._fence = fence
        self._slot = slot
        self._pid = self._conn.info.backend_pid
        self._copy: tuple[CopyTarget, Copy, ExitStack] | None = None
        self._targets: dict[int, CopyTarget] = {}
        self._routes: dict[int, tuple[Relation, tuple[Route, ...]]] = {}
        self._partial: set[int] = set()
        """Relations whose old rows are not whole."""
        self._refused: int | None = None
        """The source whose buffer has refused a value."""
        self._reached_lsn = 0
        self._staging: dict[int, Staging] = {}
        self._locked: set[int] = set()
        self._types: dict[tuple[tuple[int, int], ...], tuple[ValueType | None, ...]] = {}
        try:
            # Not what the role or database says: a position must not be confirmed before its rows are on disk. And not
            # more than that, lest we wait for a synchronous standby that is ourselves.
            self._conn.execute("SET synchronous_commit = local")
            self._conn.execute(sql.SQL("SET lock_timeout = {}").format(sql.Literal(f"{LOCK_TIMEOUT_S}s")))
            self.confirmed_lsn, self.commit_lsn, self._xid_reference = self._take_over(publication)
            self.written_lsn = self.confirmed_lsn
        except BaseException:
            self._conn.close()
            raise

    def shape_of(self, relation: Relation) -> None:
        """The server told a shape. It tells that of a partition too, right after that of the root which its rows are
        sent as: nowhere else does it show that they come with another identity than the root's."""
        if (relation.identity != "f") != (relation.oid in self._partial):
            self._partial ^= {relation.oid}
            self._routes.clear()

    def routes(self, relation: Relation, xid: int, lsn: int) -> tuple[Route, ...]:
        """Where rows of `relation` go, for a transaction; nowhere if nobody wants them.

        Asks the server at the first row of a batch, and of each transaction as long as nobody wants them.
        """
        known = self._routes.get(relation.oid)
        if known is None or known[0] is not relation or not known[1] or not self._locked_all(known[1]):
            known = (relation, self._resolve(relation, known))
            self._routes[relation.oid] = known
        self._reached_lsn = lsn
        extended = extend_xid(xid, self._xid_reference)
        for route in known[1]:
            route.target.begin(extended, lsn)
        return known[1]

    def flush(self, target: CopyTarget) -> None:
        """Send the target's rows on. The server works on them while we go on."""
        if self._copy is None or self._copy[0] is not target:
            self._end_copy()
            stack = ExitStack()
            copy = stack.enter_context(self._conn.cursor().copy(self._copy_statement(target)))
            copy.write(HEADER)
            self._copy = (target, copy, stack)
        self._copy[1].write(target.take())

    def commit(self, confirmed_lsn: int, commit_lsn: int) -> None:
        """Commit the batch: all rows, and the position they reach to."""
        for target in self._targets.values():
            if target.rows:
                self.flush(target)
        self._end_copy()
        for source in self._locked & self._staging.keys():
            with self._noting_refusal(source):
                self._conn.execute(self._staging[source].fill)
        failpoints.reach("decoder-copied")
        row = self._conn.execute(
            "UPDATE pgtrickle.pgt_decoder SET confirmed_lsn = %s::pg_lsn, commit_lsn = %s::pg_lsn, error = NULL,"
            " updated_at = clock_timestamp() WHERE slot_name = %s AND pid = %s"
            " RETURNING pg_current_wal_insert_lsn()::text",
            (format_lsn(confirmed_lsn), format_lsn(commit_lsn), self._slot, self._pid),
        ).fetchone()
        self._require_ours(row is not None)
        assert row is not None
        self.written_lsn = parse_lsn(str(row[0]))
        failpoints.reach("decoder-recorded")
        hold(self._fence, self._conn)
        self._conn.commit()
        failpoints.reach("decoder-committed")
        self._locked.clear()
        self.confirmed_lsn, self.commit_lsn = confirmed_lsn, commit_lsn

    def rest(self) -> None:
        """Hold nothing while there is nothing to write: asking who wants a table's rows has begun a transaction."""
        if self._conn.info.transaction_status != TransactionStatus.IDLE:
            self._conn.rollback()
            self._locked.clear()

    def streaming(self) -> None:
        """Record that changes are coming. To be called before the first batch."""
        updated = self._conn.execute(
            "UPDATE pgtrickle.pgt_decoder SET status = 'STREAMING', updated_at = clock_timestamp()"
            " WHERE slot_name = %s AND pid = %s",
            (self._slot, self._pid),
        )
        self._require_ours(updated.rowcount == 1)
        self._conn.commit()

    def end(self, error: BaseException | None = None, *, told_lsn: int = 0) -> None:
        """End the session, which undoes what is not committed, and record why: an error, or that we were told to.
        And how far we told the server that we are: whoever else moves the slot from there loses changes.

        Another session records it: ours may be what failed, or in the middle of a COPY.
        """
        if self._copy is not None:
            cause = error or InterruptedError("the decoder was told to stop")
            with suppress(psycopg.Error):  # undone anyway
                self._copy[2].__exit__(type(cause), cause, cause.__traceback__)
        self._conn.close()
        status, text = ("STOPPED", None) if error is None else ("ERROR", f"{type(error).__name__}: {error}")
        with db.connect(self._dsn, application_name="pgtrickle decoder") as conn:
            conn.execute(
                "UPDATE pgtrickle.pgt_decoder SET status = %s, error = %s, updated_at = clock_timestamp(),"
                " confirmed_lsn = greatest(confirmed_lsn, nullif(%s::pg_lsn, '0/0')) WHERE slot_name = %s AND pid = %s",
                (status, text, format_lsn(told_lsn), self._slot, self._pid),
            )
            if self._refused is not None:
                conn.execute(
                    "UPDATE pgtrickle.pgt_change_tracking SET refused_lsn = %s::pg_lsn WHERE source_relid = %s",
                    (format_lsn(self._reached_lsn), self._refused),
                )

    def _require_unmoved(self) -> None:
        """While no one reads a slot, anyone may move it on by hand; what it passes over then never comes."""
        row = self._conn.execute(
            "SELECT moved_by_hand, confirmed_flush_lsn::text FROM pgtrickle_internal.pgt_slot WHERE slot_name = %s",
            (self._slot,),
        ).fetchone()
        if row is not None and row[0]:
            raise StateError(
                f"the slot {self._slot} was moved on to {row[1]} by another hand: changes before that are lost",
                code="PT351",
                hint="Nothing to do: the sources go back to triggers, their stream tables are computed again.",
            )

    def _take_over(self, publication: str) -> tuple[int, int, int]:
        self._require_unmoved()
        row = self._conn.execute(
            "INSERT INTO pgtrickle.pgt_decoder AS d (slot_name, publication, status, pid)"
            " VALUES (%s, %s, 'STARTING', %s) ON CONFLICT (slot_name) DO UPDATE SET publication = excluded.publication,"
            " status = excluded.status, error = NULL, pid = excluded.pid, updated_at = clock_timestamp()"
            " RETURNING coalesce(d.confirmed_lsn - '0/0', 0), coalesce(d.commit_lsn - '0/0', 0),"
            " pg_snapshot_xmax(pg_current_snapshot())::text",
            (self._slot, publication, self._pid),
        ).fetchone()
        assert row is not None
        hold(self._fence, self._conn)
        self._conn.commit()
        confirmed, commit, xmax = row
        return int(str(confirmed)), int(str(commit)), int(str(xmax))

    def _require_ours(self, ours: bool) -> None:
        if not ours:
            raise TakenOver(
                f"another decoder has taken over the slot {self._slot}",
                hint="Nothing to do: it goes on from where this one was.",
            )

    def _locked_all(self, routes: tuple[Route, ...]) -> bool:
        return all(route.target.shape.source in self._locked for route in routes)

    def _resolve(self, relation: Relation, known: tuple[Relation, tuple[Route, ...]] | None) -> tuple[Route, ...]:
        """Lock the buffers that want the relation's rows and see what they look like."""
        self._end_copy()
        guess = {route.target.shape.source for route in known[1]} if known is not None else set()
        while True:
            shapes = self._lock_and_read(guess - self._locked, relation.oid)
            if shapes is None:
                guess = set()
                continue
            guess = {shape.source for shape in shapes}
            if guess <= self._locked:
                break
        if known is not None and known[0] is relation and [route.target.shape for route in known[1]] == shapes:
            return known[1]
        types = self._value_types(relation)
        text = frozenset(place for place, each in enumerate(types) if each is None or not each.binary)
        routes = []
        for shape in shapes:
            target = self._target(shape)
            problem = misfit(relation, shape, types) or self._partial_partition(shape)
            if problem is None:
                self._stage(shape, relation, types)
            routes.append(Route(target, relation, text, problem))
        return tuple(routes)

    def _partial_partition(self, shape: BufferShape) -> str | None:
        """That a partition of the source sends old rows that are not whole, if one does. Where it has left the source
        since, the readers compute anew in any case."""
        if not shape.partitioned or not self._partial:
            return None
        row = self._conn.execute(
            "SELECT r.oid::regclass::text FROM unnest(%s::oid[]) AS r(oid) WHERE r.oid <> %s::oid"
            " AND %s::oid IN (SELECT a.relid FROM pg_partition_ancestors(r.oid) AS a) LIMIT 1",
            (list(self._partial), shape.source, shape.source),
        ).fetchone()
        return None if row is None else f"the replica identity of {row[0]} is not FULL"

    def _lock_and_read(self, sources: set[int], relation_oid: int) -> list[BufferShape] | None:
        """The shapes of the relation's buffers, after locking those of `sources`; None if one of them is gone.

        One round trip. Each statement sees what is committed when it starts, so the shapes are those under the lock.
        """
        state = sql.SQL(_STATE).format(schema=sql.Literal(SCHEMA), relation=sql.Literal(relation_oid))
        if not sources:
            cursor = self._conn.execute(state)
        else:
            buffers = sql.SQL(", ").join(buffer_identifier(source) for source in sorted(sources))
            try:
                cursor = self._conn.execute(
                    sql.SQL("SAVEPOINT touch; LOCK TABLE {} IN ROW EXCLUSIVE MODE; RELEASE SAVEPOINT touch; {}").format(
                        buffers, state
                    )
                )
            except psycopg.errors.UndefinedTable:
                self._conn.execute("ROLLBACK TO SAVEPOINT touch")
                return None
            while cursor.nextset():
                pass
            self._locked |= sources
        shapes = []
        for source, names, types, modifiers, xmax, columns, partitioned, refused, pairs in cursor:
            assert isinstance(source, int)
            assert isinstance(names, list)
            assert isinstance(types, list)
            assert isinstance(modifiers, list)
            assert isinstance(columns, list)
            self._xid_reference = int(str(xmax))
            type_of = dict(zip(names, zip(types, modifiers, strict=True), strict=True))
            kept = tuple(type_of.get(buffer_column("new", name), (0, 0)) for name in columns)
            shapes.append(BufferShape(source, tuple(columns), kept, bool(partitioned), int(str(refused)), bool(pairs)))
        return shapes

    def _target(self, shape: BufferShape) -> CopyTarget:
        """The target of a source, made anew when its buffer has changed."""
        target = self._targets.get(shape.source)
        if target is None or target.shape != shape:
            if target is not None:
                assert not target.rows, "a buffer changed within a batch"
            target = self._targets[shape.source] = CopyTarget(shape)
        return target

    def _value_types(self, relation: Relation) -> tuple[ValueType | None, ...]:
        key = tuple((column.type_oid, column.type_modifier) for column in relation.columns)
        if key not in self._types:
            found: dict[object, ValueType] = {}
            for place, oid, modifier, binary in self._conn.execute(
                _TYPES, ([oid for oid, _ in key], [modifier for _, modifier in key])
            ):
                assert isinstance(oid, int)
                assert isinstance(modifier, int)
                found[place] = ValueType(oid, modifier, bool(binary))
            self._types[key] = tuple(found.get(place + 1) for place in range(len(key)))
        return self._types[key]

    def _stage(self, shape: BufferShape, relation: Relation, types: tuple[ValueType | None, ...]) -> None:
        """For columns without a binary form: a table in between that has them as text."""
        value_of = {column.name: value for column, value in zip(relation.columns, types, strict=True)}
        as_text = frozenset(name for name in shape.columns if (value := value_of[name]) is None or not value.binary)
        staging = self._staging.pop(shape.source, None)
        if staging is not None and (staging.shape, staging.as_text) != (shape, as_text):
            self._conn.execute(sql.SQL("DROP TABLE {}").format(staging.table))
            staging = None
        if as_text:
            self._staging[shape.source] = staging or _create_staging(self._conn, shape, as_text)

    def _copy_statement(self, target: CopyTarget) -> sql.Composed:
        shape = target.shape
        staging = self._staging.get(shape.source)
        return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
            buffer_identifier(shape.source) if staging is None else staging.table,
            sql.SQL(", ").join(map(sql.Identifier, shape.copied)),
        )

    def _end_copy(self) -> None:
        if self._copy is not None:
            target, copy, stack = self._copy
            self._copy = None
            with self._noting_refusal(target.shape.source), stack:
                copy.write(TRAILER)

    @contextmanager
    def _noting_refusal(self, source: int) -> Iterator[None]:
        """A value that was right when it was written may not be now, as when a label of an enum has got another name.
        Or the row fitted a page of the source, and does not fit a page of the buffer, which has more columns.
        It ends this session; the next one does not try again."""
        try:
            yield
        except (psycopg.DataError, psycopg.errors.ProgramLimitExceeded):
            self._refused = source
            raise


def _create_staging(conn: db.Connection, shape: BufferShape, as_text: frozenset[str]) -> Staging:
    """Make the temporary table; the session keeps it, and each commit empties it."""
    table = sql.Identifier("pg_temp", f"decoded_{shape.source}")
    buffer = buffer_identifier(shape.source)
    texts = {buffer_column(side, name) for side in ("new", "old") for name in as_text}
    conn.execute(
        sql.SQL("CREATE TEMP TABLE {} ON COMMIT DELETE ROWS AS SELECT {} FROM {} WITH NO DATA").format(
            sql.Identifier(f"decoded_{shape.source}"),
            sql.SQL(", ").join(
                sql.SQL("NULL::text AS {}" if name in texts else "{}").format(sql.Identifier(name))
                for name in shape.copied
            ),
            buffer,
        )
    )
    casts = {
        str(name): str(type_name)
        for name, type_name in conn.execute(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass(%s)",
            (f"{SCHEMA}.{buffer_name(shape.source)}",),
        )
    }
    fill = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(
        buffer,
        sql.SQL(", ").join(map(sql.Identifier, shape.copied)),
        sql.SQL(", ").join(
            sql.SQL("{}::{}").format(sql.Identifier(name), sql.SQL(casts[name]))
            if name in texts
            else sql.Identifier(name)
            for name in shape.copied
        ),
        table,
    )
    return Staging(shape, as_text, table, fill)
