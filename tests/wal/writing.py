"""Writers for the soak: three tables that are changed without pause in every way a user might, and a ledger of it all.

Every row image ever written has a number of its own (`rev`). A trigger of the user's notes it in `ledger` in the same
transaction, with weight 1 when the image comes and −1 when it goes; so what was committed can be told from outside.
"""

from __future__ import annotations

import random
import threading
from typing import Final

import psycopg

from pgtrickle import db

TABLES: Final = {
    "keyed": ("id", "grp", "v", "big", "rev"),
    "keyless": ("grp", "v", "rev"),
    "parted": ("id", "grp", "v", "rev"),
}

SCHEMA: Final = """
CREATE SEQUENCE ids;
CREATE SEQUENCE revs;
CREATE TABLE ledger (source text, rev bigint, w int);
CREATE TABLE keyed (id int PRIMARY KEY, grp int, v int, big text, rev bigint DEFAULT nextval('revs'));
ALTER TABLE keyed ALTER big SET STORAGE EXTERNAL;
CREATE TABLE keyless (grp int, v int, rev bigint DEFAULT nextval('revs'));
CREATE TABLE parted (id int, grp int, v int, rev bigint DEFAULT nextval('revs'), PRIMARY KEY (id, grp))
    PARTITION BY LIST (grp);
CREATE TABLE parted_low PARTITION OF parted FOR VALUES IN (0, 1, 2);
CREATE TABLE parted_high PARTITION OF parted FOR VALUES IN (3, 4);
ALTER TABLE keyed REPLICA IDENTITY FULL;
ALTER TABLE keyless REPLICA IDENTITY FULL;
ALTER TABLE parted REPLICA IDENTITY FULL;
ALTER TABLE parted_low REPLICA IDENTITY FULL;
ALTER TABLE parted_high REPLICA IDENTITY FULL;
INSERT INTO keyed SELECT nextval('ids'), g % 5, g FROM generate_series(1, 600) AS g;
INSERT INTO keyless SELECT g % 5, g FROM generate_series(1, 600) AS g;
INSERT INTO parted SELECT nextval('ids'), g % 5, g FROM generate_series(1, 600) AS g;
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN INSERT INTO ledger VALUES (TG_ARGV[0], OLD.rev, -1); END IF;
    IF TG_OP <> 'DELETE' THEN INSERT INTO ledger VALUES (TG_ARGV[0], NEW.rev, 1); END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON keyed FOR EACH ROW EXECUTE FUNCTION note('keyed');
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON keyless FOR EACH ROW EXECUTE FUNCTION note('keyless');
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON parted FOR EACH ROW EXECUTE FUNCTION note('parted');
"""

# Rows that others are at are passed over, so writers do not deadlock.
_KEYED: Final = "ctid = ANY (ARRAY(SELECT ctid FROM keyed ORDER BY random() LIMIT %(n)s FOR UPDATE SKIP LOCKED))"
_KEYLESS: Final = "ctid = ANY (ARRAY(SELECT ctid FROM keyless ORDER BY random() LIMIT %(n)s FOR UPDATE SKIP LOCKED))"
_PARTED: Final = "(id, grp) IN (SELECT id, grp FROM parted ORDER BY random() LIMIT %(n)s FOR UPDATE SKIP LOCKED)"
_LARGE: Final = "repeat(md5(random()::text), 320)"  # 10 kB, kept out of line and not compressed

OPERATIONS: Final = (
    "INSERT INTO keyed SELECT nextval('ids'), %(grp)s, %(v)s FROM generate_series(1, %(n)s)",
    f"INSERT INTO keyed SELECT nextval('ids'), %(grp)s, %(v)s, {_LARGE}",
    f"UPDATE keyed SET v = %(v)s, rev = nextval('revs') WHERE {_KEYED}",
    f"UPDATE keyed SET v = %(v)s, rev = nextval('revs') WHERE big IS NOT NULL AND {_KEYED}",
    f"UPDATE keyed SET big = {_LARGE}, rev = nextval('revs') WHERE big IS NOT NULL AND {_KEYED}",
    f"UPDATE keyed SET id = nextval('ids'), rev = nextval('revs') WHERE {_KEYED}",
    f"DELETE FROM keyed WHERE {_KEYED}",
    "INSERT INTO keyless SELECT %(grp)s, %(v)s, nextval('revs') FROM generate_series(1, %(n)s)",
    "INSERT INTO keyless SELECT * FROM keyless ORDER BY random() LIMIT %(n)s",  # the same rows again
    f"UPDATE keyless SET v = %(v)s, rev = nextval('revs') WHERE {_KEYLESS}",
    f"DELETE FROM keyless WHERE {_KEYLESS}",
    f"DELETE FROM keyless WHERE {_KEYLESS}",
    "INSERT INTO parted SELECT nextval('ids'), %(grp)s, %(v)s FROM generate_series(1, %(n)s)",
    f"UPDATE parted SET v = %(v)s, rev = nextval('revs') WHERE {_PARTED}",
    f"UPDATE parted SET grp = %(grp)s, rev = nextval('revs') WHERE {_PARTED}",
    f"DELETE FROM parted WHERE {_PARTED}",
)


class Writer:
    """One session that writes transaction after transaction until told to stop, whatever happens to the server."""

    def __init__(self, dsn: str, name: str, stop: threading.Event, *, lingers: float) -> None:
        """`lingers` is the share of its transactions that are long."""
        self._dsn = dsn
        self._lingers = lingers
        self._random = random.Random(name)
        self._stop = stop
        self.committed = 0

    def run(self) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._dsn) as conn:
                    while not self._stop.wait(self._random.uniform(0, 0.03)):
                        self._write(conn)
            except psycopg.OperationalError:
                self._stop.wait(0.1)  # the server is down, or is just coming up

    def _write(self, conn: psycopg.Connection) -> None:
        try:
            self._transaction(conn)
        except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
            conn.rollback()  # a row moved to another partition under our hands, say
        else:
            self.committed += 1

    def _transaction(self, conn: psycopg.Connection) -> None:
        """A few changes, in the order of chance. A long transaction has its id, and perhaps changes to one table, long
        before it gets to the next, which may be handed over meanwhile."""
        chance = self._random.random
        is_long = chance() < self._lingers
        if is_long:
            conn.execute("SELECT pg_current_xact_id()")
        for _ in range(self._random.randint(1, 4)):
            if is_long:
                self._stop.wait(self._random.uniform(0.1, 0.6))
            if chance() < 0.2:
                conn.execute("SAVEPOINT s")
                self._change(conn)
                conn.execute("ROLLBACK TO s" if chance() < 0.6 else "RELEASE s")
            else:
                self._change(conn)
        if chance() < 0.1:
            conn.rollback()
        else:
            conn.commit()

    def _change(self, conn: psycopg.Connection) -> None:
        several = 40 if self._random.random() < 0.03 else self._random.randint(1, 3)
        values = {"grp": self._random.randrange(5), "v": self._random.randrange(1000), "n": several}
        conn.execute(db.statement(self._random.choice(OPERATIONS)), values)
