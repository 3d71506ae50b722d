"""Statements that keep the rows of a recursion: evaluated again, or changed by rounds over what has changed. Pure.

Rounds read tables as they are after the window, so they run where these are read so; what comes of them goes into the
refresh's transaction. The equations are in `delta/recursive.py`, the choice of the way is `physical/recursion.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pgtrickle.delta.algebra import Changes
from pgtrickle.delta.monotone import Term, terms
from pgtrickle.model import BIGINT, Column, quote
from pgtrickle.postgres.aggregate import hash_keys
from pgtrickle.postgres.recursion import (
    COPIES,
    ROUND,
    carrying,
    names,
    state_columns,
    told_apart,
    weight_of,
)
from pgtrickle.postgres.row_image import by_image, image
from pgtrickle.postgres.statements.script import (
    Expected,
    FromTables,
    Problem,
    Require,
    Rounds,
    Run,
    Scratch,
    Script,
    There,
    When,
    temporary,
)
from pgtrickle.postgres.statements.state import StateMerge, wrong
from pgtrickle.postgres.wire import WEIGHT, definition
from pgtrickle.query import render
from pgtrickle.query.operators import Operator, Recursive, Scan, WorkingTable

_HASH = Column("h", BIGINT)


@dataclass(frozen=True, slots=True)
class RecursiveRows:
    """Where the rows of a recursion are kept. `hashable` are the columns that have a hash function, `sought` those by
    which joins look for rows."""

    name: str
    node: Recursive
    hashable: frozenset[str]
    sought: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Tables:
    """How the rounds read the sources: SQL of those that are not as whoever reads sees them, the name of a table with
    the changes of one, and of which sources there are changes."""

    after: render.Leaf
    changes: Callable[[Scan], str]
    changed: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Recursion:
    """One recursion while its rounds run; `most` rounds are its limit."""

    kept: RecursiveRows
    scratch: Scratch
    tables: Tables
    most: int

    @property
    def node(self) -> Recursive:
        return self.kept.node

    def table(self, what: str) -> str:
        return self.scratch.table(what)


def rebuild(kept: RecursiveRows, scratch: Scratch, tables: Tables, most: int) -> StateMerge:
    """Evaluates the recursion, and replaces what is kept."""
    run = _Recursion(kept, scratch, tables, most)
    columns = (*told_apart(kept.node), Column(WEIGHT, BIGINT))
    written = names(state_columns(kept.node))
    given = f"{names(told_apart(kept.node))}{'' if kept.node.distinct else f', {WEIGHT}'}"
    fill = f"SELECT {hash_keys(kept.node.names, kept.hashable)}, {given} FROM {run.table('now')}"
    return StateMerge(
        compute=(*_evaluated(run), FromTables(run.table("now"), columns, _now(run))),
        write=(
            Run(f"TRUNCATE {kept.name}"),
            Run(f"INSERT INTO {kept.name} (h, {written}) {fill}"),
            Run(f"ANALYZE {kept.name}"),
        ),
    )


def again(kept: RecursiveRows, scratch: Scratch, tables: Tables, most: int) -> StateMerge:
    """Evaluates the recursion, and compares its rows with those kept."""
    run = _Recursion(kept, scratch, tables, most)
    copies = "1" if kept.node.distinct else quote(COPIES.name)
    old = f"SELECT {names(told_apart(kept.node))}, -{copies}::bigint AS {WEIGHT} FROM {kept.name}"
    found = by_image(f"{_now(run)} UNION ALL {old}", told_apart(kept.node))
    return _merge(run, _evaluated(run), found)


def by_rounds(kept: RecursiveRows, scratch: Scratch, tables: Tables, most: int) -> StateMerge:
    """What changes follow from those of the sources, round by round."""
    run = _Recursion(kept, scratch, tables, most)
    if kept.node.distinct:
        return _merge(run, _sets(run), _difference(run))
    found = by_image(f"SELECT * FROM {run.table('rows')}", told_apart(kept.node))
    return _merge(run, _weights(run), found)


def new_rows(kept: RecursiveRows, scratch: Scratch) -> str:
    """What to read FROM the new state after `compute` and before `write`."""
    node = kept.node
    columns, copies = told_apart(node), "1::bigint" if node.distinct else quote(COPIES.name)
    old = f"SELECT {names(columns)}, {copies} AS {WEIGHT} FROM {kept.name}"
    both = f"{old} UNION ALL SELECT {names(columns)}, {WEIGHT} FROM {scratch.table('delta')}"
    given = "" if node.distinct else f", {WEIGHT} AS {quote(COPIES.name)}"
    return f"(SELECT {names(columns)}{given} FROM ({by_image(both, columns)}) AS net) AS new_state"


def _merge(run: _Recursion, rounds: Script, found: str) -> StateMerge:
    """Rounds, what they found brought into the refresh's transaction, and written."""
    node, delta, out = run.node, run.table("delta"), run.table("out")
    columns = (*told_apart(node), Column(WEIGHT, BIGINT))
    shown = f"SELECT {names(node.columns)}, {WEIGHT} FROM {delta}"
    return StateMerge(
        compute=(
            *rounds,
            FromTables(delta, columns, found),
            Run(f"ANALYZE {delta}"),  # few, mostly: what they meet is to be found by index
            temporary(out, shown if node.distinct else by_image(shown, node.columns)),
        ),
        write=_write(run, delta),
    )


# --- evaluated -----------------------------------------------------------------------------------------------


def _evaluated(run: _Recursion) -> Script:
    """All rows of the recursion, each with its round, in the table `rows`."""
    node, rows = run.node, run.table("rows")
    base = render.select(node.input, leaf=run.tables.after)
    step = render.select(node.step, leaf=_leaf(run, _last(rows)))
    following = f"(SELECT max({quote(ROUND.name)}) + 1 FROM {rows})"
    return (
        There(
            (
                *_numbered(run, rows),
                Run(_added(run, rows, base, "0")),
                Rounds(
                    (Run(_added(run, rows, step, following, () if not node.distinct else (rows,))),),
                    run.most,
                    _too_deep(),
                ),
            )
        ),
    )


def _now(run: _Recursion) -> str:
    """The rows that were evaluated, weighted."""
    columns = told_apart(run.node)
    rows = f"SELECT {names(columns)}, 1::bigint AS {WEIGHT} FROM {run.table('rows')}"
    return rows if run.node.distinct else by_image(rows, columns)


def _numbered(run: _Recursion, table: str) -> Script:
    """An empty table for rows with their rounds."""
    definitions = ", ".join(definition(column) for column in (*run.node.columns, _HASH, ROUND))
    hashed = (Run(f"CREATE INDEX ON {table} (h)"),) if run.node.distinct else ()
    return (
        Run(f"CREATE TEMPORARY TABLE {table} ({definitions}) ON COMMIT DROP"),
        Run(f"CREATE INDEX ON {table} ({quote(ROUND.name)})"),
        *hashed,
    )


def _added(run: _Recursion, table: str, rows: str, number: str, absent: Sequence[str] = (), more: str = "") -> str:
    """INSERT of the rows (of a UNION each once, and if they are not in the tables `absent`) under a round's number."""
    node = run.node
    columns, hashed = names(node.columns), hash_keys(node.names, run.kept.hashable)
    given = ", ".join(f"{quote(column.name)}" for column in node.columns)
    made = _renamed(rows, node)
    if node.distinct:
        made = f"SELECT DISTINCT * FROM ({made}) AS made"
    new = f"SELECT {given}, {hashed} AS h FROM ({made}) AS made"
    where = " AND ".join([*(f"NOT {_is_in(run, each, 'n')}" for each in absent), *([more] if more else [])])
    return (
        f"INSERT INTO {table} ({columns}, h, {quote(ROUND.name)}) SELECT {names(node.columns, 'n.')}, n.h, {number} "
        f"FROM ({new}) AS n{f' WHERE {where}' if where else ''}"
    )


def _renamed(rows: str, node: Recursive) -> str:
    """The rows of a term, under the names of the recursion."""
    return f"SELECT * FROM ({rows}) AS term({names(node.columns)})"


def _is_in(run: _Recursion, table: str, alias: str) -> str:
    """Whether a row, with its hash, is in a table: by the equality of its types, NULLs being equal. OFFSET keeps it a
    question for each row, which an index answers: of the rows of a round PostgreSQL expects too many."""
    same = f"ROW({names(run.node.columns, 't.')}) IS NOT DISTINCT FROM ROW({names(run.node.columns, f'{alias}.')})"
    return f"EXISTS (SELECT FROM {table} AS t WHERE t.h = {alias}.h AND {same} OFFSET 0)"


def _last(table: str) -> str:
    """What the round before added to a table."""
    return f"SELECT * FROM {table} WHERE {quote(ROUND.name)} = (SELECT max({quote(ROUND.name)}) FROM {table})"


def _leaf(
    run: _Recursion, working: str, changes: str = "", *, before: bool = False, extra: Collection[Column] = ()
) -> render.Leaf:
    """What the leaves of a term are: `working` are the rows of the working table, `changes` is a condition on those of
    a delta. `before`: tables have the rows that they had before the window, besides those after it."""
    node, read = run.node, run.node.working.names

    def leaf(operator: Operator) -> str | None:
        match operator:
            case WorkingTable() if operator.names[: len(read)] == read:
                renamed = (f"{quote(c.name)} AS {quote(name)}" for c, name in zip(node.columns, read, strict=True))
                return f"SELECT {', '.join([*renamed, *(quote(c.name) for c in extra)])} FROM ({working}) AS working"
            case Changes(scan=scan):
                own = weight_of(operator)
                listed = [quote(name) for name in scan.names]
                listed += [f"{WEIGHT} AS {quote(own)}"] if own in operator.names else []
                return f"SELECT {', '.join(listed)} FROM {run.tables.changes(scan)}{changes}"
            case Scan() if before and operator.table.oid in run.tables.changed:
                after = render.select(operator, leaf=run.tables.after)
                gone = f"SELECT {names(operator.columns)} FROM {run.tables.changes(operator)} WHERE {WEIGHT} < 0"
                return f"{after} UNION ALL {gone}"
        return run.tables.after(operator)

    return leaf


# --- UNION: delete and rederive ------------------------------------------------------------------------------


def _sets(run: _Recursion) -> Script:
    """What may have gone in the table `gone`, and what has come, or come back, in `come`."""
    node, gone, come = run.node, run.table("gone"), run.table("come")
    number = quote(ROUND.name)
    stay = f"SELECT {names(node.columns)} FROM {run.kept.name} AS s WHERE NOT {_is_in(run, gone, 's')}"
    is_new = f"(NOT {_is_in(run, run.kept.name, 'n')} OR {_is_in(run, gone, 'n')})"
    lost = _union(_of_changes(run, f"SELECT * FROM {run.kept.name}", f" WHERE {WEIGHT} < 0", before=True))
    gained = _union(_of_changes(run, stay, f" WHERE {WEIGHT} > 0"))
    fewer = f"(SELECT coalesce(max({number}), 0) + 1 FROM {gone})"
    more = f"(SELECT max({number}) + 1 FROM {come})"
    lose = render.select(node.step, leaf=_leaf(run, _last(gone), before=True))
    gain = render.select(node.step, leaf=_leaf(run, _last(come)))
    delete: Script = (
        Run(_added(run, gone, lost, "0", more=_is_in(run, run.kept.name, "n"))),
        Rounds((Run(_added(run, gone, lose, fewer, (gone,), _is_in(run, run.kept.name, "n"))),), run.most, _too_deep()),
        Run(f"ANALYZE {gone}"),
        *(Run(_added(run, come, each, "0", (come,))) for each in _derived(run, gone, stay)),
    )
    some_gone = " OR ".join(f"EXISTS (SELECT FROM {each} WHERE {WEIGHT} < 0)" for each in _changes(run))
    return (
        There(
            (
                *_numbered(run, gone),
                *_numbered(run, come),
                When(some_gone, delete),
                Run(_added(run, come, gained, "0", (come,), is_new)),
                Rounds((Run(_added(run, come, gain, more, (come,), is_new)),), run.most, _too_deep()),
            )
        ),
    )


def _changes(run: _Recursion) -> list[str]:
    """The tables of all changes that the terms read."""
    found = [tree for _, tree in _terms(run, once=True)]
    scans = {leaf.scan: None for tree in found for leaf in _deltas(tree)}
    return [run.tables.changes(scan) for scan in scans]


def _deltas(tree: Operator) -> list[Changes]:
    own = [tree] if isinstance(tree, Changes) else []
    return [*own, *(found for below in tree.inputs for found in _deltas(below))]


def _terms(run: _Recursion, *, once: bool) -> list[tuple[int, Operator]]:
    """The terms of a delta of both terms of the recursion, each with its sign."""
    found: list[Term] = []
    for tree in run.node.inputs:
        found += terms(tree, run.tables.changed, once=once)
    return [(term.sign, term.tree) for term in found]


def _of_changes(run: _Recursion, working: str, changes: str, *, before: bool = False) -> list[str]:
    """What both terms make of a change in one place, over `working` and over all in the other places."""
    leaf = _leaf(run, working, changes, before=before)
    return [render.select(tree, leaf=leaf) for _, tree in _terms(run, once=True)]


def _union(queries: Sequence[str]) -> str:
    return " UNION ALL ".join(f"({query})" for query in queries)


def _derived(run: _Recursion, gone: str, stay: str) -> list[str]:
    """Those of the rows that may have gone that something still gives: rows without NULLs are sought by `=`, which an
    index can serve."""
    node = run.node
    base = render.select(node.input, leaf=run.tables.after)
    step = render.select(node.step, leaf=_leaf(run, stay))
    whole = " AND ".join(f"g.{quote(name)} IS NOT NULL" for name in node.names) or "true"
    plain = " AND ".join(f"q.{quote(name)} = g.{quote(name)}" for name in node.names) or "true"
    alike = " AND ".join(f"q.{quote(name)} IS NOT DISTINCT FROM g.{quote(name)}" for name in node.names) or "true"
    return [
        f"SELECT {names(node.columns, 'g.')} FROM {gone} AS g WHERE {kind} "
        f"AND EXISTS (SELECT FROM ({_renamed(rows, node)}) AS q WHERE {same})"
        for rows in (base, step)
        for kind, same in ((whole, plain), (f"NOT ({whole})", alike))
    ]


def _difference(run: _Recursion) -> str:
    columns, gone, come = names(run.node.columns, "n."), run.table("gone"), run.table("come")
    return (
        f"SELECT {columns}, -1::bigint AS {WEIGHT} FROM {gone} AS n WHERE NOT {_is_in(run, come, 'n')} UNION ALL "
        f"SELECT {columns}, 1::bigint AS {WEIGHT} FROM {come} AS n WHERE NOT {_is_in(run, gone, 'n')}"
    )


# --- UNION ALL: weights by round -----------------------------------------------------------------------------


def _weights(run: _Recursion) -> Script:
    """What the rows of each round gain and lose, in the table `rows`: those of a round are complete when its turn
    comes."""
    node, rows, at = run.node, run.table("rows"), run.table("at")
    number, copies = quote(ROUND.name), quote(COPIES.name)
    definitions = ", ".join(definition(column) for column in (*told_apart(node), Column(WEIGHT, BIGINT)))
    extra = (ROUND, COPIES)
    old = _leaf(run, f"SELECT * FROM {run.kept.name}", extra=extra)
    seeds = [_weighted(run, tree, sign, old) for sign, tree in _terms(run, once=False)]
    now = f"SELECT * FROM {rows} WHERE {number} = (SELECT {number} FROM {at})"
    turn = f"SELECT {names(told_apart(node))}, {WEIGHT} AS {copies} FROM ({by_image(now, told_apart(node))}) AS net"
    made = _weighted(run, node.step, 1, _leaf(run, turn, extra=extra))
    targets = f"{names(told_apart(node))}, {WEIGHT}"
    advance = f"(SELECT min(r.{number}) FROM {rows} AS r WHERE r.{number} > {at}.{number})"
    return (
        There(
            (
                Run(f"CREATE TEMPORARY TABLE {rows} ({definitions}) ON COMMIT DROP"),
                Run(f"CREATE INDEX ON {rows} ({number})"),
                temporary(at, f"SELECT -1 AS {number}"),
                *(Run(f"INSERT INTO {rows} ({targets}) {seed}") for seed in seeds),
                Rounds(
                    (
                        Run(f"UPDATE {at} SET {number} = {advance} WHERE {number} IS NOT NULL"),
                        Run(f"INSERT INTO {rows} ({targets}) {made}"),
                    ),
                    run.most,
                    _too_deep(),
                ),
            )
        ),
    )


def _weighted(run: _Recursion, term: Operator, sign: int, leaf: render.Leaf) -> str:
    """The rows of a term, each with its round and its weight."""
    node = run.node
    tree, carried = carrying(term, (ROUND, COPIES))
    weights = [quote(column.name) for column in carried if column.name != ROUND.name]
    number = f"{quote(ROUND.name)} + 1" if ROUND in carried else "0"
    given = (f"{quote(made)} AS {quote(name)}" for made, name in zip(term.names, node.names, strict=True))
    weight = " * ".join([str(sign), *weights])
    return f"SELECT {', '.join(given)}, {number}, {weight} FROM ({render.select(tree, leaf=leaf)}) AS term"


# --- written -------------------------------------------------------------------------------------------------


def _write(run: _Recursion, delta: str) -> Script:
    node, state = run.node, run.kept.name
    hashed = hash_keys(node.names, run.kept.hashable, "d.")
    same = " AND ".join(
        f"{image(column, 's.')} IS NOT DISTINCT FROM {image(column, 'd.')}" for column in told_apart(node)
    )
    match = f"s.h = {hashed} AND {same or 'true'}"
    written = names(state_columns(node))
    if node.distinct:
        problem = wrong(f"rows were to be deleted from the state {state}")
        fewer = Expected(f"SELECT count(*) FROM {delta} WHERE {WEIGHT} < 0", problem)
        new = f"SELECT {hashed}, {names(node.columns, 'd.')} FROM {delta} AS d WHERE d.{WEIGHT} > 0"
        return (
            Run(f"DELETE FROM {state} AS s USING {delta} AS d WHERE d.{WEIGHT} < 0 AND {match}", expected=fewer),
            Run(f"INSERT INTO {state} (h, {written}) {new}"),
        )
    copies = quote(COPIES.name)
    given = f"{names(told_apart(node), 'd.')}, d.{WEIGHT}"
    absent = f"NOT EXISTS (SELECT FROM {state} AS s WHERE {match})"
    problem = wrong(f"the state {state} has a row less often than it was deleted")
    return (
        Run(f"UPDATE {state} AS s SET {copies} = s.{copies} + d.{WEIGHT} FROM {delta} AS d WHERE {match}"),
        Run(f"INSERT INTO {state} (h, {written}) SELECT {hashed}, {given} FROM {delta} AS d WHERE {absent}"),
        Require(f"NOT EXISTS (SELECT FROM {delta} AS d JOIN {state} AS s ON {match} WHERE s.{copies} < 0)", problem),
        Run(f"DELETE FROM {state} AS s USING {delta} AS d WHERE {match} AND s.{copies} = 0"),
    )


def _too_deep() -> Problem:
    return Problem(
        "a recursion of the query goes deeper than ivm_recursive_max_depth allows",
        "PT620",
        "it may have no end: see to that with UNION, a CYCLE clause or a condition on the depth; or raise the setting",
    )
