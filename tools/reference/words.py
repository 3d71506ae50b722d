"""Causes and cures of errors whose words the source puts together as they are raised, or keeps elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Words:
    """One way in which an error is told: what is wrong, and what to do."""

    cause: str
    cure: str


_NEXT_ROUND: Final = (
    "Nothing to do: the sources go back to triggers, and their stream tables are computed from scratch."
)

WORDS: Final = {
    "PT000": Words("an error without a code of its own", "read its message"),
    "PT005": Words(
        "there is no schema {schema}, or none to create the table in",
        "write schema.name with a schema that exists, or set search_path to one",
    ),
    "PT006": Words("there is no refresh mode {refresh_mode}", "use AUTO, FULL, DIFFERENTIAL or IMMEDIATE"),
    "PT007": Words("there is no capture mode {cdc_mode}", "use auto, trigger, wal or inherit"),
    "PT008": Words("status cannot be set to {status}", "use ACTIVE or SUSPENDED"),
    "PT013": Words("there is no diamond consistency {consistency}", "use atomic, none or inherit"),
    "PT014": Words("there is no diamond schedule policy {policy}", "use fastest, slowest or inherit"),
    "PT022": Words(
        "a setting of the embedded server has a name that is none, or a line break in its value", "correct it"
    ),
    "PT317": Words(
        "a constraint refuses rows of the query: {what PostgreSQL says}",
        "correct the data or the query, or drop the constraint (primary_key => 'none') or the unique index"
        " (indexes => …); nothing was changed",
    ),
    "PT318": Words(
        "{schema}.{table} is a protected stream table: only refreshes write to it",
        "change its sources; its owner can allow writes with alter_stream_table(name, protect => false)",
    ),
    "PT101": Words("more than one statement given", "give one SELECT statement"),
    "PT102": Words("not a query a view could have: {what PostgreSQL says}", "give one SELECT that changes nothing"),
    "PT104": Words("two output columns have one name", "give each output column its own name with AS"),
    "PT105": Words("a column has a type that a table cannot have", "cast the column to a type a table can have"),
    "PT106": Words("a table, column, function or type does not exist", "check the name and search_path"),
    "PT107": Words("this role may not read a table of the query", "grant SELECT on it to this role"),
    "PT110": Words(
        "too much for PostgreSQL: {what PostgreSQL says}", "make it smaller: fewer levels, columns or tables"
    ),
    "PT200": Words("the query cannot be maintained in this refresh mode", "use refresh_mode => 'AUTO' or 'FULL'"),
    "PT250": Words(
        "changes of {table} cannot be captured: it is unlogged, or others inherit from it, or one of its partitions is"
        " foreign or unlogged, or it is partitioned and the target of a subscription",
        "do what the hint says, or use refresh_mode => 'FULL'",
    ),
    "PT261": Words("it is not a table", "only ordinary and partitioned tables are in the WAL"),
    "PT264": Words("wal_level is {wal_level}", "ALTER SYSTEM SET wal_level = logical, and restart the server"),
    "PT270": Words(
        "the replica identity of {table} does not cover the columns used",
        "ALTER TABLE {table} REPLICA IDENTITY FULL, or set pg_trickle.auto_replica_identity",
    ),
    "PT300": Words("the stream table is not in a state that allows this", "`pgtrickle status` shows its state"),
    "PT331": Words("the state of a query is not what its sources say it is", "refresh the stream table in full"),
    "PT340": Words(
        "PostgreSQL refused: {what PostgreSQL says}",
        "correct the data or the query, then refresh again; the server's log has the statement",
    ),
    "PT342": Words("the sources keep changing while the table is refreshed", "refresh again when no DDL is under way"),
    "PT352": Words(
        "an audit found that the stream table is not equal to its query",
        "`pgtrickle refresh NAME --full` mends it; report it, with `pgtrickle explain NAME`",
    ),
    "PT357": Words("the replication slot could not be made: {what PostgreSQL says}", "do what PostgreSQL's hint says"),
    "PT359": Words(
        "the source cannot go to the WAL or back to triggers: {reason}",
        "do what the hint says; until then it is captured as before",
    ),
    "PT370": Words(
        "{object} is used by the stream table {table}, and block_source_ddl is on",
        "alter or drop the stream table first, or SET pg_trickle.block_source_ddl = off for this change",
    ),
    "PT375": Words("the circle keeps changing while it is refreshed", "refresh again when no DDL is under way"),
    "PT380": Words(
        "the request was made in this transaction, which has not been committed",
        "commit first, then CALL pgtrickle.wait_for(…) by itself",
    ),
    "PT382": Words(
        "request {id} is still PENDING or RUNNING",
        "wait longer; if it stays PENDING, start a service with the login of the owner: pgtrickle run",
    ),
    "PT383": Words(
        "the service stopped several times while it carried the request out", "see the service's log, then ask again"
    ),
    "PT385": Words("a request failed by an error that no one foresaw", "a fault of pgtrickle: see the service's log"),
    "PT407": Words("the role may not create temporary tables", "grant TEMPORARY on the database to it"),
    "PT412": Words("the replication slot does not exist: what came since it was dropped is lost", _NEXT_ROUND),
    "PT413": Words(
        "the server gave the replication slot up: it was too far behind, or wal_level was lowered",
        f"{_NEXT_ROUND} Raise max_slot_wal_keep_size if it was too small.",
    ),
    "PT414": Words(
        "someone else streams from the replication slot", "stop the other reader: pg_replication_slots has its process"
    ),
    "PT415": Words("the publication was dropped: what was written since is lost", _NEXT_ROUND),
    "PT454": Words(
        "wait_for cannot wait inside a transaction block or a function",
        "end the transaction, then CALL pgtrickle.wait_for(…) by itself; or look at pgtrickle.pgt_requests",
    ),
    "PT500": Words("a part of the machine is missing or broken", "read the message: it names the part"),
    "PT640": Words(
        "others inherit from a source, whose changes the WAL tells as those of other tables",
        "leave it on triggers: cdc_mode auto or trigger",
    ),
    "PT641": Words(
        "a source is our copy of a materialized view or foreign table, which has no changes in the WAL of its own",
        "leave it on triggers: cdc_mode auto or trigger",
    ),
}
