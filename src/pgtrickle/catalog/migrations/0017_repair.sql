-- Repair: a catalog that came by a dump is told from one that was made here, stream table by stream table, until
-- `pgtrickle repair` has attached each to the tables of this database.

-- An oid may be the same in two databases by chance, and so it is where a restore is done twice in the same way. Who
-- wrote a row is not: a dump has no xmin. That one is kept by all that keeps the oids and transactions of a database
-- valid: a physical copy, promotion, pg_upgrade, CREATE DATABASE ... TEMPLATE, VACUUM FULL.
ALTER TABLE pgtrickle.pgt_origin ADD COLUMN written_in xid;
COMMENT ON COLUMN pgtrickle.pgt_origin.written_in IS 'The xmin of this row. Another one: it was restored from a dump.';

-- This catalog's oids and transactions are those of this database, from now on.
CREATE FUNCTION pgtrickle.set_origin() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM pgtrickle.pgt_origin;
    INSERT INTO pgtrickle.pgt_origin (catalog_relid) VALUES ('pgtrickle.pgt_stream_tables'::regclass);
    UPDATE pgtrickle.pgt_origin SET written_in = xmin;  -- which the new version has too: it may be a subtransaction's
END
$$;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pgtrickle.pgt_origin WHERE catalog_relid = 'pgtrickle.pgt_stream_tables'::pg_catalog.regclass) THEN
        PERFORM pgtrickle.set_origin();
    END IF;
END
$$;

-- Whether the catalog was made in this database, or taken over for it.
CREATE FUNCTION pgtrickle.catalog_is_here() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pgtrickle.pgt_origin AS o
                   WHERE o.catalog_relid = 'pgtrickle.pgt_stream_tables'::regclass AND o.written_in = o.xmin)
$$;

ALTER TABLE pgtrickle.pgt_stream_tables ADD COLUMN restored boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.restored IS
    'It came by a dump, and is attached to no table of this database yet: pgtrickle repair does that.';

CREATE OR REPLACE VIEW pgtrickle.pgt_present AS
SELECT t.pgt_id, coalesce(n.nspname::text COLLATE "default", t.pgt_schema) AS pgt_schema,
       coalesce(c.relname::text COLLATE "default", t.pgt_name) AS pgt_name,
       pg_get_userbyid(c.relowner)::text AS owner, c.oid IS NOT NULL AS is_there,
       CASE WHEN c.oid IS NULL THEN 'ERROR' ELSE t.status END AS status,
       CASE WHEN c.oid IS NOT NULL THEN t.last_error
            WHEN NOT o.here THEN 'PT460: this catalog was restored from a dump: run pgtrickle repair'
            WHEN t.restored THEN coalesce(t.last_error, 'PT460: it was restored from a dump: run pgtrickle repair')
            ELSE 'PT311: its table was dropped' END AS last_error,
       t.restored OR NOT o.here AS is_restored
FROM pgtrickle.pgt_stream_tables AS t
CROSS JOIN (SELECT pgtrickle.catalog_is_here() AS here) AS o
LEFT JOIN pg_class AS c ON o.here AND NOT t.restored AND c.oid = t.pgt_relid AND c.relkind IN ('r', 'p')
LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace;
COMMENT ON VIEW pgtrickle.pgt_present IS
    'What PostgreSQL has of each stream table now. One that was dropped is there until the next look removes it.';

-- A stream table that is there can be mended by request; one that was restored from a dump by the program alone.
ALTER TABLE pgtrickle.pgt_requests DROP CONSTRAINT pgt_requests_kind_check,
    ADD CONSTRAINT pgt_requests_kind_check CHECK (kind IN ('create', 'alter', 'drop', 'refresh', 'repair'));

CREATE FUNCTION pgtrickle.repair_stream_table(name text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN pgtrickle.add_request('repair', pg_catalog.jsonb_build_object('name', pgtrickle.check_own_name(name)));
END
$$;

-- As before, but for the hint of PT270, which is what to run.
CREATE OR REPLACE FUNCTION pgtrickle.wal_verdict(
    is_stream_table boolean, kind "char", persistence "char", is_partition boolean, wal_level text, free_slots bigint,
    free_senders bigint, may_replicate boolean, may_publish boolean, unidentified text[], set_identity boolean, unpublished text[],
    refused_writes text[], unsendable text[], encoding text, OUT code text, OUT reason text, OUT hint text)
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT v.code, v.reason, v.hint FROM (VALUES
        (is_stream_table AND kind IS NOT NULL, 'PT259',
         'it is a stream table: what reads it may be refreshed before its changes are committed and decoded',
         'Stream tables stay with triggers; leave cdc_mode out.'),
        (kind IS NULL, 'PT260', 'the table does not exist', 'Drop or alter the stream tables that read it.'),
        (kind NOT IN ('r', 'p'), 'PT261',
         CASE kind WHEN 'f' THEN 'it is a foreign table' WHEN 'v' THEN 'it is a view'
                   WHEN 'm' THEN 'it is a materialized view' ELSE 'it is not a table' END,
         'Only ordinary and partitioned tables are in the WAL.'),
        (persistence <> 'p', 'PT262', 'it is, or has a partition that is, an unlogged or temporary table',
         'ALTER TABLE ... SET LOGGED.'),
        (is_partition, 'PT263', 'it is a partition: its changes are published as those of its root',
         'Read the partitioned table, or stay with triggers.'),
        (wal_level <> 'logical', 'PT264', 'wal_level is ' || wal_level,
         'ALTER SYSTEM SET wal_level = logical, and restart the server.'),
        (free_slots < 1, 'PT265', 'no replication slot is free',
         'Raise max_replication_slots, or drop an unused slot.'),
        (free_senders < 1, 'PT266', 'no WAL sender is free', 'Raise max_wal_senders.'),
        (NOT may_replicate, 'PT267', 'the role has no REPLICATION right', 'ALTER ROLE ... REPLICATION.'),
        (NOT may_publish, 'PT268', 'the role may not create the publication', 'GRANT CREATE ON DATABASE ... to it.'),
        (cardinality(unpublished) > 0, 'PT269',
         'the generated column ' || coalesce(unpublished[1], '') || ' is not in the WAL''s changes',
         'Stay with triggers, which compute it.'),
        (cardinality(unidentified) > 0 AND NOT set_identity, 'PT270',
         'the replica identity of ' || coalesce(unidentified[1], '')
         || CASE kind WHEN 'p' THEN ' is not FULL' ELSE ' does not cover the columns used' END,
         (SELECT string_agg(format('ALTER TABLE %s REPLICA IDENTITY FULL;', u), ' ' ORDER BY u) FROM unnest(unidentified) AS u)
         || ' Or have us do it: the setting pg_trickle.auto_replica_identity.'),
        (cardinality(refused_writes) > 0, 'PT271',
         'with REPLICA IDENTITY FULL and the generated column ' || coalesce(refused_writes[1], '')
         || ' PostgreSQL would refuse its updates', 'Use an identity index that covers the columns used.'),
        (cardinality(unsendable) > 0, 'PT272',
         'values of the column ' || coalesce(unsendable[1], '') || ' have parts without a binary form',
         'Stay with triggers, or drop the column.'),
        (encoding <> 'UTF8', 'PT273', 'the encoding of the database is ' || encoding,
         'Stay with triggers: the WAL is read in UTF8, and not all values can be written so.')
    ) AS v(holds, code, reason, hint) WHERE v.holds ORDER BY v.code LIMIT 1
$$;
