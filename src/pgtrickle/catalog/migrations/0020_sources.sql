-- More kinds of sources: tables that a crash empties (unlogged), tables that others inherit from, relations whose
-- changes nothing tells (materialized views, foreign tables), and tables with row-level security.

-- Unlogged ------------------------------------------------------------------------------------------------------------

-- A crash empties unlogged tables, and no trigger fires. It empties this one with them: a source whose row is missing
-- was emptied, and its readers are recomputed.
CREATE UNLOGGED TABLE pgtrickle.pgt_unlogged (source_relid oid PRIMARY KEY);
COMMENT ON TABLE pgtrickle.pgt_unlogged IS
    'A row for each captured source that is unlogged, or has an unlogged partition or child. A crash removes the rows.';
ALTER TABLE pgtrickle.pgt_change_tracking ADD COLUMN unlogged boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN pgtrickle.pgt_change_tracking.unlogged IS
    'It was unlogged when capture was last set up: its row in pgt_unlogged must be there, even if it is logged by now.';

-- A relation, and all that are below it: partitions or children, at all levels.
CREATE FUNCTION pgtrickle.with_descendants(relation oid) RETURNS SETOF oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE tree(oid) AS (
        SELECT relation
        UNION SELECT i.inhrelid FROM tree AS t JOIN pg_catalog.pg_inherits AS i ON i.inhparent = t.oid
    ) SELECT t.oid FROM tree AS t
$$;

-- Whether no crash has emptied a source since its capture was set up.
CREATE FUNCTION pgtrickle.outlived_crashes(source_relid oid, unlogged boolean) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pgtrickle.pgt_unlogged AS u WHERE u.source_relid = $1)
        OR NOT ($2 OR EXISTS (SELECT FROM pgtrickle.with_descendants($1) AS d(oid)
                              JOIN pg_catalog.pg_class AS c ON c.oid = d.oid WHERE c.relpersistence = 'u'))
$$;

-- Compared sources ----------------------------------------------------------------------------------------------------

CREATE TABLE pgtrickle.pgt_compared (
    source_relid  oid PRIMARY KEY,
    copy_relid    oid NOT NULL UNIQUE,
    token         text,
    compared_at   timestamptz,
    changed_in    xid8
);
COMMENT ON TABLE pgtrickle.pgt_compared IS
    'Materialized views and foreign tables that stream tables read, each with the copy that it is compared with.';
COMMENT ON COLUMN pgtrickle.pgt_compared.token IS
    'Stands for the content of a materialized view that was compared last: REFRESH gives it another.';
COMMENT ON COLUMN pgtrickle.pgt_compared.compared_at IS 'NULL: the copy was not filled yet.';
COMMENT ON COLUMN pgtrickle.pgt_compared.changed_in IS 'The transaction that last changed the copy.';

-- As in 0018, and a copy is what it is a copy of.
CREATE OR REPLACE FUNCTION pgtrickle.source_type(source_relid oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN EXISTS (SELECT FROM pgtrickle.pgt_stream_tables AS t WHERE t.pgt_relid = c.oid) THEN 'STREAM_TABLE'
                ELSE CASE c.relkind WHEN 'r' THEN 'TABLE' WHEN 'p' THEN 'PARTITIONED_TABLE' WHEN 'f' THEN 'FOREIGN_TABLE'
                                    WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED_VIEW' ELSE 'OTHER' END END
    FROM pg_class AS c
    WHERE c.oid = coalesce((SELECT p.source_relid FROM pgtrickle.pgt_compared AS p WHERE p.copy_relid = $1), $1)
$$;

-- As in 0016; materialized views and foreign tables are compared, which takes no more than the right to read them.
CREATE OR REPLACE FUNCTION pgtrickle.check_differential(sources jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    refused record;
BEGIN
    SELECT w.code, w.what, w.hint INTO refused
    FROM jsonb_object_keys(sources) AS s(relid) JOIN pg_class AS c ON c.oid = s.relid::oid
    CROSS JOIN LATERAL (VALUES
        (1, c.relkind = 'S', 'PT206',
         format('%s is a system relation: its changes cannot be captured', c.oid::regclass),
         'Use refresh_mode => ''FULL''.'),
        (2, c.relkind NOT IN ('m', 'f') AND NOT pg_has_role(c.relowner, 'USAGE'), 'PT251',
         format('changes of %s cannot be captured: this role does not own it, so it cannot add triggers', c.oid::regclass),
         'Ask as the owner of the table, or use refresh_mode => ''FULL''.')
    ) AS w(place, holds, code, what, hint)
    WHERE w.holds ORDER BY c.oid, w.place LIMIT 1;
    IF refused.code IS NOT NULL THEN
        PERFORM pgtrickle.refuse(refused.code, refused.what, refused.hint);
    END IF;
END
$$;

-- Inheritance ---------------------------------------------------------------------------------------------------------

-- As in 0002, and a table that others inherit from stays with triggers: the WAL tells the rows of each heir apart.
-- What tells whether a source can be captured from the WAL by `role`, with these columns used.
CREATE OR REPLACE FUNCTION pgtrickle.wal_eligibility(
    source oid, used text[], role oid, set_identity boolean,
    OUT code text, OUT reason text, OUT hint text, OUT unidentified oid[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE server AS (
        SELECT current_setting('wal_level') AS wal_level,
               current_setting('max_replication_slots')::bigint - (SELECT count(*) FROM pg_replication_slots)
               + (SELECT count(*) FROM pgtrickle.pgt_slot) AS free_slots,
               current_setting('max_wal_senders')::bigint - (SELECT count(*) FROM pg_stat_replication)
               + (SELECT count(*) FROM pgtrickle.pgt_slot WHERE active) AS free_senders,
               current_setting('server_version_num')::integer AS version
    ), rights AS (
        SELECT r.rolsuper OR r.rolreplication OR EXISTS (
                   SELECT FROM pg_roles AS g WHERE g.rolname = 'rds_replication' AND pg_has_role(r.oid, g.oid, 'MEMBER')
               ) AS may_replicate,
               coalesce((SELECT pg_has_role(r.oid, p.pubowner, 'USAGE') FROM pg_publication AS p
                         WHERE p.pubname = pgtrickle.slot_name()),
                        has_database_privilege(r.oid, current_database(), 'CREATE')) AS may_publish
        FROM pg_roles AS r WHERE r.oid = role
    ), tree AS (
        -- A partition's changes come with the identity of its root, so an index would not be known by its columns.
        SELECT c.oid, c.relreplident, c.relpersistence,
               c.relreplident = 'f' OR c.relkind = 'r' AND NOT c.relispartition AND c.relreplident IN ('d', 'i')
               AND EXISTS (
                   SELECT FROM pg_index AS x
                   WHERE x.indrelid = c.oid AND x.indisvalid AND x.indimmediate
                     AND CASE c.relreplident WHEN 'd' THEN x.indisprimary ELSE x.indisreplident END
                     AND used <@ ARRAY(
                         SELECT a.attname::text FROM unnest(x.indkey[0:x.indnkeyatts - 1]) AS k(number)
                         JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = k.number)
               ) AS identified
        FROM pg_class AS c
        WHERE c.oid = source OR c.oid IN (SELECT p.relid FROM pg_partition_tree(source) AS p)
    ), shape AS (
        SELECT (SELECT array_agg(oid ORDER BY oid) FROM tree WHERE NOT identified) AS unidentified,
               (SELECT bool_or(relreplident = 'f' OR NOT identified AND set_identity) FROM tree) AS will_be_full,
               (SELECT relpersistence FROM tree ORDER BY relpersistence = 'p' LIMIT 1) AS persistence
    ), generated AS (
        SELECT array_agg(a.attname::text ORDER BY a.attnum) FILTER (
                   WHERE a.attname = ANY(used) AND (a.attgenerated = 'v' OR server.version < 180000)) AS unpublished,
               array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attgenerated = 'v') AS virtual
        FROM pg_attribute AS a, server
        WHERE a.attrelid = source AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> ''
    ), part AS (
        -- All columns are sent, also those that are not used. A column whose own type has no binary form is sent as
        -- text; but if its elements, attributes or bounds have none, the server fails, and all capture with it.
        SELECT a.attnum, a.attname::text AS name, a.atttypid AS type, false AS nested
        FROM pg_attribute AS a WHERE a.attrelid = source AND a.attnum > 0 AND NOT a.attisdropped
        UNION
        SELECT part.attnum, part.name, inner_type.oid, part.nested OR t.typtype <> 'd'
        FROM part JOIN pg_type AS t ON t.oid = part.type
        CROSS JOIN LATERAL (
            SELECT t.typbasetype WHERE t.typtype = 'd'
            UNION ALL SELECT t.typelem WHERE t.typtype <> 'd' AND t.typelem <> 0
            UNION ALL SELECT f.atttypid FROM pg_attribute AS f
                      WHERE t.typtype = 'c' AND f.attrelid = t.typrelid AND f.attnum > 0 AND NOT f.attisdropped
            UNION ALL SELECT CASE t.oid WHEN r.rngtypid THEN r.rngsubtype ELSE r.rngtypid END FROM pg_range AS r
                      WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
        ) AS inner_type(oid)
    ), unsendable AS (
        SELECT array_agg(DISTINCT part.name) AS columns
        FROM part JOIN pg_type AS t ON t.oid = part.type
        WHERE part.nested AND t.typsend = 0 OR t.typsend <> 0 AND t.typreceive = 0
    )
    SELECT coalesce(own.code, v.code), coalesce(own.reason, v.reason), coalesce(own.hint, v.hint),
           coalesce(shape.unidentified, '{}')
    FROM server CROSS JOIN shape CROSS JOIN generated CROSS JOIN unsendable LEFT JOIN rights ON true
    LEFT JOIN (
        SELECT 'PT640' AS code, 'others inherit from it: the WAL tells their changes as those of other tables' AS reason,
               'Stay with triggers, or use declarative partitioning.' AS hint
        WHERE EXISTS (SELECT FROM pg_inherits AS i JOIN pg_class AS p ON p.oid = i.inhparent
                      WHERE i.inhparent = source AND p.relkind <> 'p')
        UNION ALL
        SELECT 'PT641', 'it is a materialized view or foreign table: its changes are found by comparing it with a copy',
               'Leave cdc_mode out.'
        WHERE EXISTS (SELECT FROM pgtrickle.pgt_compared AS p WHERE p.copy_relid = source)
    ) AS own ON true
    LEFT JOIN pg_class AS c ON c.oid = source
    LEFT JOIN LATERAL pgtrickle.wal_verdict(
        EXISTS (SELECT FROM pgtrickle.pgt_stream_tables AS t WHERE t.pgt_relid = source), c.relkind, shape.persistence, c.relispartition, server.wal_level, server.free_slots, server.free_senders,
        coalesce(rights.may_replicate, false), coalesce(rights.may_publish, false),
        (SELECT array_agg(u::regclass::text) FROM unnest(shape.unidentified) AS u), set_identity, generated.unpublished,
        CASE WHEN shape.will_be_full THEN generated.virtual END, unsendable.columns, current_setting('server_encoding')
    ) AS v ON true
$$;

-- As in 0011, and of a table that others inherit from each heir may be the target.
CREATE OR REPLACE FUNCTION pgtrickle.sees_all_writers(source_relid oid, trigger_level text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT trigger_level = 'ROW' OR NOT EXISTS (
        SELECT FROM pg_subscription_rel AS s WHERE s.srrelid IN (SELECT pgtrickle.with_descendants(source_relid)))
$$;

-- A partitioned table that is a partition itself missed what was written through the table above. It is to have row
-- triggers: its readers are defined again.
UPDATE pgtrickle.pgt_stream_tables AS t SET source_fingerprint = 'before row triggers of partitions'
WHERE t.effective_mode <> 'FULL' AND t.source_fingerprint IS NOT NULL AND EXISTS (
    SELECT FROM pgtrickle.pgt_dependencies AS d JOIN pg_catalog.pg_class AS c ON c.oid = d.source_relid
    WHERE d.pgt_id = t.pgt_id AND c.relkind = 'p' AND c.relispartition);

COMMENT ON FUNCTION pgtrickle.with_descendants(oid) IS
'Internal: a table with all its partitions and heirs, at every level.';
COMMENT ON FUNCTION pgtrickle.outlived_crashes(oid, boolean) IS
'Internal: whether no crash has emptied an unlogged source since it is captured.';
