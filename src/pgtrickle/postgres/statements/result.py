"""Statements that change the stream table: a weighted relation, consolidated, is deleted and inserted row by row. Pure.

Where a key of rows is given (`apply/update_key.py`), a row that goes and one that comes with the same key are one that
is updated.

Rows are told apart by their image, so `1.0` becoming `1.00` is a change, and duplicates are deleted by number. A row to
delete is found by its 64-bit hash through an index and compared whole: a collision costs time, never data. Rows of
tables that inherit from the stream table are not its own, and are left alone (ONLY).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pgtrickle.model import Column, quote
from pgtrickle.postgres.row_image import by_image, image
from pgtrickle.postgres.statements.at_once import AtOnce, Part
from pgtrickle.postgres.statements.script import (
    Expected,
    Problem,
    Require,
    Run,
    Scratch,
    Script,
    UnlessConflict,
    When,
    drop,
    temporary,
)
from pgtrickle.postgres.wire import WEIGHT

INSERTED, DELETED = "inserted", "deleted"
"""What the scripts count. An updated row counts as one deleted and one inserted."""
Key: TypeAlias = frozenset[int] | None
"""The positions of the columns by which rows stay themselves; None: none do."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A stream table's own table; `columns` carry the user's names, `hashable` the positions with a hash function."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    hashable: frozenset[int]

    @property
    def qualified(self) -> str:
        return f"{quote(self.schema)}.{quote(self.name)}"

    def row_hash(self, names: tuple[str, ...], alias: str = "") -> str:
        usable = [f"{alias}{quote(name)}" for position, name in enumerate(names) if position in self.hashable]
        return f"hash_record_extended(ROW({', '.join(usable)}), 0)" if usable else "0::bigint"


def apply_delta(
    storage: Storage,
    relation: str,
    columns: tuple[Column, ...],
    scratch: Scratch,
    key: Key = None,
    *,
    once: bool = False,
) -> Script:
    """Applies weighted rows; `columns` are their names, in the order of the storage's. `once`: nothing else of the
    transaction has these names, so that its end drops the tables. (At a DROP psycopg forgets what it has prepared.)"""
    delta = _Delta(storage, tuple(column.name for column in columns), scratch.table("apply"), scratch.table("pairs"))
    consolidated = (
        temporary(delta.table, by_image(relation, columns)),
        Run(
            f"ANALYZE {delta.table} ({WEIGHT})"
        ),  # else PostgreSQL takes it for large, and reads the whole stream table
    )
    if key is None or len(key) == len(columns):
        applied: Script = (*consolidated, delta.delete(), delta.insert())
        made: tuple[str, ...] = (delta.table,)
    else:
        applied = (*consolidated, *delta.take_pairs(key), delta.delete(), delta.update(key), delta.insert())
        made = (delta.table, delta.pairs)
    return applied if once else (*applied, *drop(*made))


def apply_at_once(
    storage: Storage, relation: str, columns: tuple[Column, ...], scratch: Scratch, *, are_unlike: bool
) -> AtOnce:
    """The same as parts of one statement, for a table whose rows are deleted and inserted. The first is done with
    before the other begins, since a row that comes may have the unique key of one that goes. `are_unlike`: no two of
    the rows of either weight are alike, and none is of both."""
    names = tuple(column.name for column in columns)
    delta = _Delta(storage, names, scratch.table("apply"), scratch.table("pairs"))
    gone, came = scratch.table("deleted"), scratch.table("inserted")
    delete = delta.delete()
    assert delete.expected is not None
    problem = delete.expected.problem
    told = Problem(f"{problem.message}, and not all are there", problem.code, problem.hint)
    return AtOnce(
        (
            Part(delta.table, relation if are_unlike else by_image(relation, columns)),
            Part(gone, f"{delete.sql} RETURNING 1", writes=True),
            Part(came, f"{delta.insert().sql} AND (SELECT count(*) FROM {gone}) >= 0", writes=True),
        ),
        (Require(f"(SELECT count(*) FROM {gone}) = ({delete.expected.rows})", told),),
    )


@dataclass(frozen=True, slots=True)
class OneRow:
    """Statements that delete, update or insert a row, and why there may be none or several and not one."""

    delete: str
    update: str
    insert: str
    unlike_one: Problem


def one_row(storage: Storage, columns: tuple[Column, ...], old: str, new: str) -> OneRow:
    """`old` and `new` are relations of one row each, with the columns in the order of the storage's."""
    names, targets = (tuple(column.name for column in each) for each in (columns, storage.columns))
    theirs = ", ".join(
        image(Column(name, column.type), "g.") for name, column in zip(names, storage.columns, strict=True)
    )
    delta = _Delta(storage, names, "", "")
    is_it = (
        f"{storage.row_hash(targets, 't.')} = {storage.row_hash(names, 'g.')} "
        f"AND ROW({delta.stored()})::record *= ROW({theirs})::record"
    )
    values = ", ".join(f"{quote(target)} = a.{quote(name)}" for target, name in zip(targets, names, strict=True))
    into, came = (", ".join(each) for each in (map(quote, targets), (f"a.{quote(name)}" for name in names)))
    return OneRow(
        f"DELETE FROM ONLY {storage.qualified} AS t USING {old} AS g WHERE {is_it}",
        f"UPDATE ONLY {storage.qualified} AS t SET {values} FROM {old} AS g, {new} AS a WHERE {is_it}",
        f"INSERT INTO {storage.qualified} ({into}) SELECT {came} FROM {new} AS a",
        delta.missing("updated in or deleted from"),
    )


def replace_all(
    storage: Storage, relation: str, columns: tuple[Column, ...], scratch: Scratch, key: Key = None
) -> Script:
    """Makes the table equal to the relation (rows of weight one) by applying only what differs."""
    targets = ", ".join(quote(column.name) for column in storage.columns)
    names = ", ".join(quote(column.name) for column in columns)
    current = ", ".join(
        f"{quote(mine.name)} AS {quote(theirs.name)}" for mine, theirs in zip(storage.columns, columns, strict=True)
    )
    difference = (
        f"SELECT {names}, {WEIGHT} FROM ({relation}) AS rows "
        f"UNION ALL SELECT {current}, -1::bigint FROM ONLY {storage.qualified}"
    )
    fill = f"INSERT INTO {storage.qualified} ({targets}) SELECT {names} FROM ({relation}) AS rows"
    return (
        When(
            f"EXISTS (SELECT FROM ONLY {storage.qualified})",
            apply_delta(storage, difference, columns, scratch, key),
            (Run(fill, (INSERTED,)),),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Delta:
    """The consolidated rows in `table`, under `names`; those that stay as pairs in `pairs`, old and new values."""

    storage: Storage
    names: tuple[str, ...]
    table: str
    pairs: str

    def delete(self) -> Run:
        storage = self.storage
        targets = tuple(column.name for column in storage.columns)
        theirs = ", ".join(
            image(Column(name, column.type), "g.") for name, column in zip(self.names, storage.columns, strict=True)
        )
        return Run(
            f"WITH gone AS MATERIALIZED "
            f"(SELECT *, row_number() OVER () AS pgt_row FROM {self.table} WHERE {WEIGHT} < 0), "
            f"hit AS (SELECT t.ctid AS tid, -g.{WEIGHT} AS wanted, row_number() OVER (PARTITION BY g.pgt_row) AS found "
            f"FROM gone AS g JOIN ONLY {storage.qualified} AS t "
            f"ON {storage.row_hash(targets, 't.')} = {storage.row_hash(self.names, 'g.')} "
            f"AND ROW({self.stored()})::record *= ROW({theirs})::record) "
            f"DELETE FROM ONLY {storage.qualified} WHERE ctid = ANY (ARRAY(SELECT tid FROM hit WHERE found <= wanted))",
            (DELETED,),
            Expected(
                f"SELECT coalesce(-sum({WEIGHT}), 0) FROM {self.table} WHERE {WEIGHT} < 0",
                self.missing("deleted from"),
            ),
        )

    def take_pairs(self, key: frozenset[int]) -> Script:
        """Moves the rows that stay to the table of pairs. Where several rows of a key go or come, it is not known which
        became which."""
        columns = [Column(name, column.type) for name, column in zip(self.names, self.storage.columns, strict=True)]
        forms = ", ".join(image(columns[place]) for place in sorted(key))
        sides = ", ".join(
            f"{side}.{quote(name)} AS {side}{place}" for side in ("o", "n") for place, name in enumerate(self.names)
        )
        pairs = (
            f"WITH pair AS (SELECT (array_agg(ctid) FILTER (WHERE {WEIGHT} < 0))[1] AS old_row, "
            f"(array_agg(ctid) FILTER (WHERE {WEIGHT} > 0))[1] AS new_row FROM {self.table}"
            f"{f' GROUP BY {forms}' if forms else ''} "
            f"HAVING count(*) = 2 AND min({WEIGHT}) = -1 AND max({WEIGHT}) = 1) "
            f"SELECT p.old_row, p.new_row, {sides} FROM pair AS p "
            f"JOIN {self.table} AS o ON o.ctid = p.old_row JOIN {self.table} AS n ON n.ctid = p.new_row"
        )
        taken = f"SELECT old_row FROM {self.pairs} UNION ALL SELECT new_row FROM {self.pairs}"
        return (
            temporary(self.pairs, pairs),
            Run(f"DELETE FROM {self.table} WHERE ctid = ANY (ARRAY({taken}))"),
        )

    def update(self, key: frozenset[int]) -> UnlessConflict:
        """Gives rows that stay their new values. If a unique key of the user's is in the way, as where two rows swap
        values, they are put back, to be deleted and inserted."""
        storage, places = self.storage, range(len(self.names))
        theirs = ", ".join(image(Column(f"o{place}", storage.columns[place].type), "g.") for place in places)
        values = ", ".join(f"{quote(storage.columns[place].name)} = h.n{place}" for place in places if place not in key)
        targets = tuple(column.name for column in storage.columns)
        update = (
            f"WITH hit AS (SELECT g.*, t.ctid AS tid, row_number() OVER (PARTITION BY g.old_row) AS found "
            f"FROM {self.pairs} AS g JOIN ONLY {storage.qualified} AS t "
            f"ON {storage.row_hash(targets, 't.')} = {storage.row_hash(tuple(f'o{place}' for place in places), 'g.')} "
            f"AND ROW({self.stored()})::record *= ROW({theirs})::record) "
            f"UPDATE ONLY {storage.qualified} AS s SET {values} FROM hit AS h WHERE s.ctid = h.tid AND h.found = 1"
        )
        expected = Expected(f"SELECT count(*) FROM {self.pairs}", self.missing("updated in"))
        old, new = (", ".join(f"{side}{place}" for place in places) for side in ("o", "n"))
        put_back = f"SELECT {old}, -1 FROM {self.pairs} UNION ALL SELECT {new}, 1 FROM {self.pairs}"
        return UnlessConflict(
            Run(update, (INSERTED, DELETED), expected),
            (
                Run(f"DELETE FROM {self.table} WHERE {WEIGHT} < 0"),  # these are gone by now
                Run(f"INSERT INTO {self.table} {put_back}"),
                self.delete(),
            ),
        )

    def insert(self) -> Run:
        targets = ", ".join(quote(column.name) for column in self.storage.columns)
        values = ", ".join(f"a.{quote(name)}" for name in self.names)
        return Run(
            f"INSERT INTO {self.storage.qualified} ({targets}) "
            f"SELECT {values} FROM {self.table} AS a CROSS JOIN generate_series(1, a.{WEIGHT}) WHERE a.{WEIGHT} > 0",
            (INSERTED,),
        )

    def stored(self) -> str:
        """The images of the stored row `t`."""
        return ", ".join(image(column, "t.") for column in self.storage.columns)

    def missing(self, how: str) -> Problem:
        """Why not all rows are there."""
        return Problem(
            f"rows were to be {how} {self.storage.schema}.{self.storage.name}",
            "PT330",
            "if somebody changed the stream table by hand: the next refresh computes it again",
        )
