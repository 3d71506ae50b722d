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

