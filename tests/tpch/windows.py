"""Windows of changes over the eight TPC-H tables: in each, rows of every table come, change, move and go.

Rows are chosen by a hash of their key and the window's number, so a window is the same whenever it is played.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TpchTable:
    """A table: its key, its other columns, and which of the key's columns a new row gets a fresh value of."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    fresh: str


TABLES = (
    TpchTable("region", ("r_regionkey",), ("r_name", "r_comment"), "r_regionkey"),
    TpchTable("nation", ("n_nationkey",), ("n_name", "n_regionkey", "n_comment"), "n_nationkey"),
    TpchTable(
        "supplier",
        ("s_suppkey",),
        ("s_name", "s_address", "s_nationkey", "s_phone", "s_acctbal", "s_comment"),
        "s_suppkey",
    ),
    TpchTable(
        "part",
        ("p_partkey",),
        ("p_name", "p_mfgr", "p_brand", "p_type", "p_size", "p_container", "p_retailprice", "p_comment"),
        "p_partkey",
    ),
    TpchTable("partsupp", ("ps_partkey", "ps_suppkey"), ("ps_availqty", "ps_supplycost", "ps_comment"), "ps_suppkey"),
    TpchTable(
        "customer",
        ("c_custkey",),
        ("c_name", "c_address", "c_nationkey", "c_phone", "c_acctbal", "c_mktsegment", "c_comment"),
        "c_custkey",
    ),
    TpchTable(
        "orders",
        ("o_orderkey",),
        (
            "o_custkey",
            "o_orderstatus",
            "o_totalprice",
            "o_orderdate",
            "o_orderpriority",
            "o_clerk",
            "o_shippriority",
            "o_comment",
        ),
        "o_orderkey",
    ),
    TpchTable(
        "lineitem",
        ("l_orderkey", "l_linenumber"),
        (
            "l_partkey",
            "l_suppkey",
            "l_quantity",
            "l_extendedprice",
            "l_discount",
            "l_tax",
            "l_returnflag",
            "l_linestatus",
            "l_shipdate",
            "l_commitdate",
            "l_receiptdate",
            "l_shipinstruct",
            "l_shipmode",
            "l_comment",
        ),
        "l_linenumber",
    ),
)
_FIRST_FRESH = 100_000_000
_SMALL = frozenset({"region", "nation"})
_LARGE = frozenset({"part", "partsupp", "customer", "orders", "lineitem"})


def window(number: int, rows: int) -> list[str]:
    """The statements of one window: about `rows` rows of each table inserted, updated and deleted."""
    return [statement for table in TABLES for statement in _changes(table, table.name, number, rows)]


def lasting_window(number: int, rows: int, percent: float) -> list[str]:
    """A window for large data, and for many of them: regions and nations keep their names and keys, which queries ask
    for (a nation goes to another region), and the rows of large tables are chosen among some percent."""
    found = []
    for table in TABLES:
        if table.name in _SMALL:
            found += _small_changes(table, number)
        else:
            sample = f" TABLESAMPLE BERNOULLI ({percent}) REPEATABLE ({number})" if table.name in _LARGE else ""
            found += _changes(table, f"{table.name}{sample}", number, rows)
    return found


def _changes(table: TpchTable, source: str, number: int, rows: int) -> list[str]:
    few = 1 if table.name in _SMALL else rows
    parts = min(3, len(table.columns))
    taken = [column for position, column in enumerate(table.columns) if position % parts == number % parts]
    return [
        _insert(table, _chosen(table, source, f"i{number}", few), _FIRST_FRESH + 1000 * number),
        _update(table, taken, source, f"u{number}", few),
        _move(table, _chosen(table, source, f"m{number}", 1), _FIRST_FRESH + 1000 * number + 500),
        _delete(table, source, f"d{number}", few, number),
    ]


def _small_changes(table: TpchTable, number: int) -> list[str]:
    taken = [column for column in table.columns if not column.endswith("_name")]
    return [
        _insert(table, _chosen(table, table.name, f"i{number}", 1), _FIRST_FRESH + number),
        _update(table, taken, table.name, f"u{number}", 1),
        f"DELETE FROM {table.name} WHERE {table.fresh} = {_FIRST_FRESH + number}",
    ]


def _chosen(table: TpchTable, source: str, seed: str, rows: int, condition: str = "true") -> str:
    """The keys of some rows of the table, or of a sample of it."""
    keys = ", ".join(table.key)
    hashed = f"md5(ROW({keys})::text || '{seed}')"
    return f"SELECT {keys} FROM {source} WHERE {condition} ORDER BY {hashed} LIMIT {rows}"


def _insert(table: TpchTable, chosen: str, first: int) -> str:
    """Copies of some rows under a fresh key; an order's lines have the order's number."""
    columns = ", ".join((*table.key, *table.columns))
    values = ", ".join(
        f"{first} + row_number() OVER ()" if column == table.fresh else column
        for column in (*table.key, *table.columns)
    )
    some = f"({', '.join(table.key)}) IN ({chosen})"
    return f"INSERT INTO {table.name} ({columns}) SELECT {values} FROM {table.name} WHERE {some}"


def _update(table: TpchTable, taken: Sequence[str], source: str, seed: str, rows: int) -> str:
    """Some rows take the values that another row has in some columns."""
    keys = ", ".join(table.key)
    donor = f"SELECT {', '.join(taken)} FROM {source} ORDER BY md5(ROW({keys})::text || 'from{seed}') LIMIT 1"
    sets = ", ".join(f"{column} = donor.{column}" for column in taken)
    chosen = _chosen(table, source, seed, rows)
    return f"UPDATE {table.name} SET {sets} FROM ({donor}) AS donor WHERE ({keys}) IN ({chosen})"


def _move(table: TpchTable, chosen: str, key: int) -> str:
    """One row gets another key."""
    keys = ", ".join(table.key)
    return f"UPDATE {table.name} SET {table.fresh} = {key} WHERE ({keys}) IN ({chosen})"


def _delete(table: TpchTable, source: str, seed: str, rows: int, number: int) -> str:
    """Some rows go; of the two small tables only what came before, so that the queries do not run dry."""
    keys = ", ".join(table.key)
    some = f"{table.fresh} >= {_FIRST_FRESH}" if table.name in _SMALL and number % 4 else "true"
    return f"DELETE FROM {table.name} WHERE ({keys}) IN ({_chosen(table, source, seed, rows, some)})"
