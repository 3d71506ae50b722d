"""Install, upgrade and remove the catalog. Called by `connect()` and by the verbs `install` and `uninstall`.

The migrations are numbered SQL files; each is applied once, in order, and recorded with its checksum.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from pgtrickle import slots
from pgtrickle.catalog import ddl, serving
from pgtrickle.db import OWN_PATH
from pgtrickle.errors import ServerError, StateError
from pgtrickle.model import STREAM_TABLE_COMMENT

MIGRATIONS: Final = Path(__file__).parent / "migrations"
SCHEMAS: Final = ("pgtrickle", "pgtrickle_changes", "pgtrickle_internal", "pgtrickle_state")
_LATER_SCHEMAS: Final = {"pgtrickle_internal": 22}
"""Those that the first migration does not make, with the number of the one that does."""
USER_ROLE: Final = "pgtrickle_user"
ADMIN_ROLE: Final = "pgtrickle_admin"
ROLES: Final = (USER_ROLE, ADMIN_ROLE)
"""Both read the catalog and make requests; what the second may ask for of tables of others, `steers` says (0018)."""


_SLOT: Final = "replication slot"
_MOST_TRIES: Final = 10

_DEFINERS: Final = """
SELECT p.oid::pg_catalog.regprocedure::text FROM pg_catalog.pg_proc AS p
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace WHERE p.prosecdef AND n.nspname = ANY(%s)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered SQL file."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class InstallResult:
    """What `install` did: versions it applied (none when up to date) and what the user should know."""

    version: int
    applied: tuple[int, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Removal:
    """One object that `uninstall` drops, or keeps as it is (`kept`)."""

    kind: str
    name: str
    kept: bool = False

    def __str__(self) -> str:
        return f"{'keep' if self.kept else 'drop'} {self.kind} {self.name}"


def load_migrations(directory: Path = MIGRATIONS) -> tuple[Migration, ...]:
    """The migrations of `directory` in order; a gap in their numbers is a bug of ours."""
    found = []
    for path in sorted(directory.glob("*.sql")):
        name = re.fullmatch(r"(\d{4})_(\w+)\.sql", path.name)
        if name is None:
            raise ValueError(f"{path.name} is not named NNNN_name.sql")
        found.append(Migration(int(name[1]), name[2], path.read_text(encoding="utf-8")))
    if [each.version for each in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations are not numbered 1 to {len(found)}: {[each.version for each in found]}")
    return tuple(found)


def install(conn: psycopg.Connection[Any], *, directory: Path = MIGRATIONS) -> InstallResult:
    """Bring the catalog to this code's version in one transaction; does nothing when it is there already."""
    migrations = load_migrations(directory)
    serving.require_trusted_catalog(conn)
    try:
        if not _missing(conn, migrations):
            return InstallResult(len(migrations), (), ())
        while True:
            try:
                return _install(conn, migrations)
            except (psycopg.errors.DuplicateSchema, psycopg.errors.UniqueViolation):
                if not _exists(conn, "pgt_migrations"):  # else another installer was quicker: see what it has left
                    raise
    except psycopg.errors.InsufficientPrivilege as error:
        raise ServerError(
            f"this role may not read or install the catalog: {error.diag.message_primary}",
            code="PT402",
            hint="Connect as the owner of the schema pgtrickle, or GRANT CREATE ON DATABASE … to install it.",
        ) from error


def _install(conn: psycopg.Connection[Any], migrations: tuple[Migration, ...]) -> InstallResult:
    with conn.transaction():
        _one_at_a_time(conn)
        _as_owner(conn)
        missing = _missing(conn, migrations)  # again: another installer may have been at it until now
        _require_free_schemas(conn, missing)
        conn.execute(f"SET LOCAL search_path = {OWN_PATH}")  # by which views and defaults are read for good
        for migration in missing:
            _apply(conn, migration)
        notes = _grant(conn) + _track_ddl(conn)
    return InstallResult(len(migrations), tuple(each.version for each in missing), notes)


def require(conn: psycopg.Connection[Any], *, directory: Path = MIGRATIONS) -> int:
    """The catalog's version, for those who only look; StateError unless it is there and up to date. Changes nothing."""
    migrations = load_migrations(directory)
    try:
        missing = _missing(conn, migrations)
    except psycopg.errors.InsufficientPrivilege as error:
        raise ServerError(
            f"this role may not read the catalog: {error.diag.message_primary}",
            code="PT402",
            hint=f"GRANT {USER_ROLE} to it, or connect as the owner of the schema pgtrickle.",
        ) from error
    if len(missing) == len(migrations):
        raise StateError(
            "there is no catalog of pgtrickle in this database",
            code="PT364",
            hint="`pgtrickle install` or `pgtrickle create` makes one; check that this is the database you mean.",
        )
    if missing:
        raise StateError(
            f"the catalog has version {len(migrations) - len(missing)}, this pgtrickle needs {len(migrations)}",
            code="PT365",
            hint="`pgtrickle install` brings it up to date.",
        )
    return len(migrations)


def has_leases(conn: psycopg.Connection[Any]) -> bool:
    """Whether there is a catalog in which services agree on who leads."""
    return _exists(conn, "pgt_leases")


def _one_at_a_time(conn: psycopg.Connection[Any]) -> None:
    """One installer or remover at a time. Where there is no catalog yet, the first to make its schema has all others
    wait, and fail. A table of ours is nothing that others could lock so: readers of it may not."""
    if _exists(conn, "pgt_migrations"):
        try:
            with conn.transaction():
                conn.execute("LOCK TABLE pgtrickle.pgt_migrations IN SHARE ROW EXCLUSIVE MODE")
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            pass  # removed meanwhile: there is none


def uninstall(conn: psycopg.Connection[Any], *, drop_stream_tables: bool, dry_run: bool = False) -> list[Removal]:
    """Remove all that pgtrickle made, in one transaction, and return what that was; `dry_run` only returns it.

    The replication slot goes after it, since its end cannot be rolled back; left behind by a failure, it is found and
    dropped by the next `uninstall`. Stream tables stay as plain tables unless `drop_stream_tables`; the index we keep
    on them goes. The roles stay, since other databases of the server may use them.
    """
    with conn.transaction():
        serving.require_trusted_catalog(conn)
        _one_at_a_time(conn)
        if drop_stream_tables and not dry_run and _exists(conn, "pgt_stream_tables"):
            _keep_names(conn)
        removals = _removals(conn, drop_stream_tables)
        if not dry_run:
            ddl.announce_own(conn)
            _drop(conn, removals)
    slots = [removal.name for removal, _ in removals if removal.kind == _SLOT]
    if not dry_run:
        for name in slots:
            _drop_slot(conn, name)
    return [removal for removal, _ in removals]


def _as_owner(conn: psycopg.Connection[Any]) -> None:
    """For this transaction: what a member of the catalog's owner adds to the catalog belongs to the owner too."""
    conn.execute(
        "SELECT set_config('role', pg_get_userbyid(nspowner), true) FROM pg_namespace"
        " WHERE nspname = 'pgtrickle' AND pg_get_userbyid(nspowner) <> current_user"
    )


def _missing(conn: psycopg.Connection[Any], migrations: tuple[Migration, ...]) -> tuple[Migration, ...]:
    """The migrations still to apply; StateError if what is applied is not a prefix of `migrations`."""
    with conn.transaction():
        if not _exists(conn, "pgt_migrations"):
            return migrations
        applied = conn.execute("SELECT version, checksum FROM pgtrickle.pgt_migrations ORDER BY version").fetchall()
    if len(applied) > len(migrations):
        raise StateError(
            f"the catalog has version {applied[-1][0]}, this pgtrickle knows {len(migrations)}",
            code="PT360",
            hint="Upgrade pgtrickle.",
        )
    for (version, checksum), migration in zip(applied, migrations, strict=False):
        if version != migration.version or checksum != migration.checksum:
            raise StateError(
                f"migration {migration.version} of the catalog is not the one this pgtrickle has",
                code="PT361",
                hint="Use the pgtrickle that installed the catalog, or uninstall and install again.",
            )
    return migrations[len(applied) :]


def _exists(conn: psycopg.Connection[Any], name: str) -> bool:
    """Whether the catalog has that table. Not by to_regclass(): after a wait for a lock it may still answer
    from what the session had cached before, while a query of pg_class sees what was committed meanwhile."""
    return bool(
        conn.execute(
            "SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'pgtrickle' AND c.relname = %s",
            (name,),
        ).rowcount
    )


def _require_free_schemas(conn: psycopg.Connection[Any], missing: tuple[Migration, ...]) -> None:
    """Refuse to build on schemas of our names that someone else made (the pg_trickle extension, say)."""
    versions = {migration.version for migration in missing}
    made = [name for name in SCHEMAS if _LATER_SCHEMAS.get(name, 1) in versions]
    taken = conn.execute("SELECT nspname FROM pg_namespace WHERE nspname = ANY(%s)", (made,)).fetchone()
    if taken is not None:
        raise StateError(
            f"the schema {taken[0]} exists, but not by this pgtrickle",
            code="PT362",
            hint="Rename or drop that schema, or use another database.",
        )


def _apply(conn: psycopg.Connection[Any], migration: Migration) -> None:
    if migration.version == 1:
        conn.execute("CREATE SCHEMA pgtrickle")
        conn.execute(
            "CREATE TABLE pgtrickle.pgt_migrations (version integer PRIMARY KEY, name text NOT NULL,"
            " checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
        )
    conn.execute(migration.text.encode())
    conn.execute(
        "INSERT INTO pgtrickle.pgt_migrations (version, name, checksum) VALUES (%s, %s, %s)",
        (migration.version, migration.name, migration.checksum),
    )


def _grant(conn: psycopg.Connection[Any]) -> tuple[str, ...]:
    """Let our roles read the catalog and make requests, creating them if we may; says which are missing."""
    missing = [role for role in ROLES if not _has_role(conn, role)]
    for role in ROLES:
        if role not in missing:
            _let_read(conn, sql.Identifier(role))
    return tuple(
        f"the role {role} does not exist and this role may not create it; no one else was given access"
        for role in missing
    )


def _has_role(conn: psycopg.Connection[Any], name: str) -> bool:
    """Whether the role is there, by now."""
    row = conn.execute(
        "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = %s),"
        " (SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user)",
        (name,),
    ).fetchone()
    exists, may_create = row or (False, False)
    if not exists and may_create:
        try:
            with conn.transaction():
                conn.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(name)))
        except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
            pass  # created meanwhile from another database: it is there, which is all we want
    return bool(exists or may_create)


def _let_read(conn: psycopg.Connection[Any], role: sql.Identifier) -> None:
    grants = [
        "GRANT USAGE ON SCHEMA pgtrickle TO {}",
        "GRANT SELECT ON ALL TABLES IN SCHEMA pgtrickle TO {}",
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgtrickle TO {}",
    ]
    if conn.execute("SELECT FROM pg_namespace WHERE nspname = 'pgtrickle_internal'").rowcount:
        grants += [
            "GRANT USAGE ON SCHEMA pgtrickle_internal TO {}",
            "GRANT SELECT ON ALL TABLES IN SCHEMA pgtrickle_internal TO {}",
            "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgtrickle_internal TO {}",
        ]
    for grant in grants:
        conn.execute(sql.SQL(grant).format(role))
    for (function,) in conn.execute(_DEFINERS, (list(SCHEMAS),)).fetchall():  # called by their triggers alone
        conn.execute(sql.SQL("REVOKE ALL ON FUNCTION {} FROM {}").format(sql.SQL(function), role))


def mend(conn: psycopg.Connection[Any]) -> tuple[str, ...]:
    """What `install` does beside the migrations: the rights of readers, and the event triggers."""
    with conn.transaction():
        _as_owner(conn)
        return _grant(conn) + _track_ddl(conn)


def _track_ddl(conn: psycopg.Connection[Any]) -> tuple[str, ...]:
    """Create the event triggers if we may; a directory of older migrations has none."""
    return () if not _exists(conn, "pgt_ddl_tracking") or ddl.track(conn) else (ddl.NOT_TRACKED,)


def _removals(conn: psycopg.Connection[Any], drop_stream_tables: bool) -> list[tuple[Removal, sql.Composed | None]]:
    """What there is to remove, each with the statement that does it (None: kept, or gone with what it depends on)."""
    found: list[tuple[Removal, sql.Composed | None]] = []
    triggers = conn.execute(
        "SELECT tgname, c.oid::regclass::text FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = tgrelid"
        " JOIN pg_proc AS p ON p.oid = tgfoid WHERE p.pronamespace = ANY("
        "   SELECT oid FROM pg_namespace WHERE nspname = ANY(%s)) AND c.relnamespace <> p.pronamespace"
        " AND NOT tgisinternal ORDER BY 2, 1",
        (list(SCHEMAS),),
    )
    found += [(Removal("trigger", f"{name} on {table}"), None) for name, table in triggers]
    events = conn.execute(
        "SELECT e.evtname FROM pg_event_trigger AS e JOIN pg_proc AS p ON p.oid = e.evtfoid"
        " JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = ANY(%s) ORDER BY 1",
        (list(SCHEMAS),),
    )
    found += [(Removal("event trigger", name), None) for (name,) in events]
    if _exists(conn, "pgt_stream_tables"):
        found += _stream_tables(conn, drop_stream_tables)
    ours = "'pgtrickle_' || (SELECT oid FROM pg_database WHERE datname = current_database())"
    for (name,) in conn.execute(f"SELECT pubname FROM pg_publication WHERE pubname = {ours}").fetchall():
        found.append((Removal("publication", name), sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(name))))
    for (name,) in conn.execute(f"SELECT slot_name FROM pg_replication_slots WHERE slot_name = {ours}").fetchall():
        found.append((Removal(_SLOT, name), None))
    schemas = conn.execute(
        "SELECT nspname FROM pg_namespace WHERE nspname = ANY(%s) ORDER BY nspname DESC", (list(SCHEMAS),)
    )
    for (name,) in schemas:
        found.append((Removal("schema", name), sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name))))
    return found


def _drop_slot(conn: psycopg.Connection[Any], name: str) -> None:
    """Last of all; a decoder that still runs finds no catalog and ends."""
    try:
        slots.drop(conn, name)
    except (psycopg.errors.ObjectInUse, psycopg.errors.InsufficientPrivilege) as error:
        raise ServerError(
            f"all is removed but the replication slot {name}, which keeps WAL: {error.diag.message_primary}",
            code="PT405",
            hint=f"Stop the service, then SELECT pg_drop_replication_slot('{name}').",
        ) from error


def _keep_names(conn: psycopg.Connection[Any]) -> None:
    """Lock all stream tables under the names they have, so that what is dropped by these names is them."""
    for _ in range(_MOST_TRIES):
        names = _names(conn)
        try:
            with conn.transaction():
                for schema, name in names:
                    conn.execute(
                        sql.SQL("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE").format(sql.Identifier(schema, name))
                    )
                if _names(conn) == names:
                    return
                raise psycopg.Rollback
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.WrongObjectType):
            continue  # one was renamed or dropped before it was locked
    raise StateError("stream tables keep being renamed", code="PT316", hint="Uninstall when no DDL is under way.")


def _names(conn: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    """The stream tables that still exist, under the names they have now."""
    if _exists(conn, "pgt_present"):
        return conn.execute(
            "SELECT pgt_schema, pgt_name FROM pgtrickle.pgt_present WHERE is_there ORDER BY 1, 2"
        ).fetchall()
    return conn.execute(
        "SELECT n.nspname, c.relname FROM pgtrickle.pgt_stream_tables AS t JOIN pg_class AS c ON c.oid = t.pgt_relid"
        " JOIN pg_namespace AS n ON n.oid = c.relnamespace ORDER BY 1, 2"
    ).fetchall()


def _stream_tables(conn: psycopg.Connection[Any], drop: bool) -> list[tuple[Removal, sql.Composed | None]]:
    """Stream tables that still exist: to drop, or to keep without the index and the comment that we made on them."""
    tables = _names(conn)
    if drop:
        return [
            (Removal("table", f"{schema}.{name}"), sql.SQL("DROP TABLE {}").format(sql.Identifier(schema, name)))
            for schema, name in tables
        ]
    indexes = conn.execute(
        "SELECT n.nspname, i.relname FROM pgtrickle.pgt_stream_tables AS t"
        " JOIN pg_index AS x ON x.indrelid = t.pgt_relid"
        " JOIN pg_class AS i ON i.oid = x.indexrelid JOIN pg_namespace AS n ON n.oid = i.relnamespace"
        " WHERE pg_get_indexdef(i.oid) LIKE '%%hash\\_record\\_extended(%%' ORDER BY 1, 2"
    ).fetchall()
    kept: list[tuple[Removal, sql.Composed | None]] = [
        (Removal("table", f"{schema}.{name}", kept=True), None) for schema, name in tables
    ]
    kept += [
        (Removal("index", f"{schema}.{name}"), sql.SQL("DROP INDEX {}").format(sql.Identifier(schema, name)))
        for schema, name in indexes
    ]
    comments = conn.execute(
        "SELECT n.nspname, c.relname FROM pgtrickle.pgt_stream_tables AS t JOIN pg_class AS c ON c.oid = t.pgt_relid"
        " JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE obj_description(c.oid, 'pg_class') = %s ORDER BY 1, 2",
        (STREAM_TABLE_COMMENT,),
    )
    return kept + [
        (
            Removal("comment", f"on {schema}.{name}"),
            sql.SQL("COMMENT ON TABLE {} IS NULL").format(sql.Identifier(schema, name)),
        )
        for schema, name in comments
    ]


def _drop(conn: psycopg.Connection[Any], removals: list[tuple[Removal, sql.Composed | None]]) -> None:
    for removal, statement in removals:
        if statement is None:
            continue
        try:
            conn.execute(statement)
        except psycopg.errors.DependentObjectsStillExist as error:
            raise StateError(
                f"{removal.kind} {removal.name} is still used: {error.diag.message_detail}",
                code="PT363",
                hint="Drop what depends on it first, or keep the stream tables.",
            ) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise ServerError(
                f"this role may not drop {removal.kind} {removal.name}", code="PT402", hint="Uninstall as its owner."
            ) from error
