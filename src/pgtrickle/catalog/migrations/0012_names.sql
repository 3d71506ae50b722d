-- Stream tables are known by the oid of their table. Name, schema and owner are those it has now; the stored name is a
-- memory of it, for a table that was dropped. So a rename needs no one's attention, and no name is ever in the way.

ALTER TABLE pgtrickle.pgt_stream_tables DROP CONSTRAINT pgt_stream_tables_pgt_schema_pgt_name_key;
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.pgt_name IS
    'The name as last seen; pgt_present has the one that the table has now.';

-- Oids mean something only in the database they were noted in. One that was restored from a dump has others, by which
-- any table might be taken for ours: there, none is.
CREATE TABLE pgtrickle.pgt_origin (catalog_relid oid NOT NULL);
INSERT INTO pgtrickle.pgt_origin VALUES ('pgtrickle.pgt_stream_tables'::regclass);
COMMENT ON TABLE pgtrickle.pgt_origin IS 'The oid of pgt_stream_tables where this catalog was made.';

CREATE VIEW pgtrickle.pgt_present AS
SELECT t.pgt_id, coalesce(n.nspname::text COLLATE "default", t.pgt_schema) AS pgt_schema,
       coalesce(c.relname::text COLLATE "default", t.pgt_name) AS pgt_name,
       pg_get_userbyid(c.relowner)::text AS owner, c.oid IS NOT NULL AS is_there,
       CASE WHEN c.oid IS NULL THEN 'ERROR' ELSE t.status END AS status,
       CASE WHEN c.oid IS NOT NULL THEN t.last_error
            WHEN o.here THEN 'PT311: its table was dropped'
            ELSE 'PT311: this catalog was restored from a dump, and its oids are those of another database' END AS last_error
FROM pgtrickle.pgt_stream_tables AS t
CROSS JOIN (SELECT EXISTS (SELECT FROM pgtrickle.pgt_origin
                           WHERE catalog_relid = 'pgtrickle.pgt_stream_tables'::regclass) AS here) AS o
LEFT JOIN pg_class AS c ON o.here AND c.oid = t.pgt_relid AND c.relkind IN ('r', 'p')
LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace;
COMMENT ON VIEW pgtrickle.pgt_present IS
    'What PostgreSQL has of each stream table now. One that was dropped is there until the next look removes it.';

CREATE OR REPLACE VIEW pgtrickle.stream_tables_info AS
SELECT t.pgt_id, t.pgt_relid, p.pgt_schema, p.pgt_name, t.defining_query, t.schedule, t.refresh_mode, t.effective_mode,
       t.mode_reason, p.status, t.is_populated, t.needs_reinit, t.reinit_reason, t.data_timestamp,
       now() - t.data_timestamp AS staleness, t.last_refresh_at, t.consecutive_errors, p.last_error, t.created_at,
       t.updated_at, p.owner
FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id);

CREATE OR REPLACE VIEW pgtrickle.pgt_stream_table_sources AS
SELECT p.pgt_schema, p.pgt_name, coalesce(n.nspname::text COLLATE "default", d.source_schema) AS source_schema,
       coalesce(c.relname::text COLLATE "default", d.source_name) AS source_name, d.source_relid, d.columns_used, d.cdc_mode,
       u.pgt_id IS NOT NULL AS source_is_stream_table
FROM pgtrickle.pgt_dependencies AS d
JOIN pgtrickle.pgt_present AS p USING (pgt_id)
LEFT JOIN pg_class AS c ON c.oid = d.source_relid
LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pgtrickle.pgt_stream_tables AS u ON u.pgt_relid = d.source_relid;

CREATE OR REPLACE VIEW pgtrickle.pg_stat_stream_tables AS
SELECT t.pgt_id, p.pgt_schema, p.pgt_name, p.status, t.refresh_mode, t.effective_mode, t.is_populated,
       t.data_timestamp, now() - t.data_timestamp AS staleness, t.schedule, t.consecutive_errors, p.last_error,
       h.total_refreshes, h.successful_refreshes, h.failed_refreshes, h.full_refreshes, h.differential_refreshes,
       h.rows_inserted, h.rows_deleted, h.changes_read, h.avg_duration_ms,
       l.action AS last_action, l.status AS last_status, l.reason AS last_reason, l.duration_ms AS last_duration_ms,
       c.cdc_modes, c.slot_name,
       CASE WHEN c.slot_name IS NOT NULL THEN (SELECT s.lag_bytes FROM pgtrickle.pgt_slot AS s) END AS slot_lag_bytes,
       (SELECT d.status FROM pgtrickle.pgt_decoder AS d WHERE d.slot_name = c.slot_name) AS decoder_status
FROM pgtrickle.pgt_stream_tables AS t
JOIN pgtrickle.pgt_present AS p USING (pgt_id)
CROSS JOIN LATERAL (
    SELECT coalesce(sum(refreshes), 0)::bigint AS total_refreshes,
           coalesce(sum(refreshes) FILTER (WHERE status = 'COMPLETED'), 0)::bigint AS successful_refreshes,
           coalesce(sum(refreshes) FILTER (WHERE status = 'FAILED'), 0)::bigint AS failed_refreshes,
           coalesce(sum(refreshes) FILTER (WHERE status = 'COMPLETED' AND action IN ('FULL', 'REINITIALIZE')), 0)::bigint
               AS full_refreshes,
           coalesce(sum(refreshes) FILTER (WHERE status = 'COMPLETED' AND action = 'DIFFERENTIAL'), 0)::bigint
               AS differential_refreshes,
           coalesce(sum(rows_inserted), 0) AS rows_inserted,
           coalesce(sum(rows_deleted), 0) AS rows_deleted,
           coalesce(sum(changes_read), 0) AS changes_read,
           1000 * sum(seconds) FILTER (WHERE status = 'COMPLETED')
               / nullif(sum(refreshes) FILTER (WHERE status = 'COMPLETED'), 0)::double precision AS avg_duration_ms
    FROM pgtrickle.pgt_refresh_counts WHERE pgt_id = t.pgt_id
) AS h
CROSS JOIN LATERAL (
    SELECT array_agg(DISTINCT cdc_mode) AS cdc_modes, min(slot_name) AS slot_name
    FROM pgtrickle.pgt_dependencies WHERE pgt_id = t.pgt_id
) AS c
LEFT JOIN LATERAL (
    SELECT action, status, reason, duration_ms FROM pgtrickle.pgt_refresh_history
    WHERE pgt_id = t.pgt_id AND status <> 'RUNNING' ORDER BY refresh_id DESC LIMIT 1
) AS l ON true;

CREATE OR REPLACE FUNCTION pgtrickle.pgt_status()
RETURNS TABLE (name text, status text, refresh_mode text, effective_mode text, is_populated boolean,
               consecutive_errors integer, schedule text, data_timestamp timestamptz, staleness interval)
LANGUAGE sql STABLE AS $$
    SELECT pg_catalog.format('%I.%I', p.pgt_schema, p.pgt_name), p.status, t.refresh_mode, t.effective_mode, t.is_populated,
           t.consecutive_errors, t.schedule, t.data_timestamp, now() - t.data_timestamp
    FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)
    ORDER BY p.pgt_schema, p.pgt_name
$$;

CREATE OR REPLACE FUNCTION pgtrickle.diamond_groups()
RETURNS TABLE (group_id bigint, member_name text, member_schema text, is_convergence boolean, epoch bigint,
               schedule_policy text, consistency text)
LANGUAGE sql STABLE AS $$
    SELECT g.group_id, p.pgt_name, p.pgt_schema, p.pgt_id = ANY (g.convergence), g.epoch, g.policy, g.consistency
    FROM pgtrickle.pgt_diamonds AS g JOIN pgtrickle.pgt_present AS p ON p.pgt_id = ANY (g.members)
    ORDER BY g.group_id, p.pgt_id = ANY (g.convergence), p.pgt_schema, p.pgt_name
$$;

-- The full name of a stream table that the caller may change.
CREATE OR REPLACE FUNCTION pgtrickle.check_own_name(name text) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    full_name text;
    owner oid;
BEGIN
    SELECT pg_catalog.format('%I.%I', p.pgt_schema, p.pgt_name), c.relowner INTO full_name, owner
    FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)
    LEFT JOIN pg_class AS c ON c.oid = t.pgt_relid
    WHERE t.pgt_id = pgtrickle.pgt_id_of(name);
    IF owner IS NULL OR NOT pg_has_role(owner, 'USAGE') THEN
        PERFORM pgtrickle.refuse('PT402', format('this role does not own %s', full_name),
                                 'Only the owner of a stream table may alter, drop or refresh it.');
    END IF;
    RETURN full_name;
END
$$;

-- Notes which used objects the command at hand has dropped, for whom; returns what was noted of sources. The table of a
-- stream table itself is noted too: what belongs to it is removed at the next look, since no user's DDL may wait for it.
CREATE OR REPLACE FUNCTION pgtrickle.note_dropped(command text) RETURNS bigint[]
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO pgtrickle.pgt_source_ddl (pgt_id, classid, objid, objsubid, title, reason, gone, command)
    SELECT t.pgt_id, d.classid, d.objid, 0, format('stream table %I.%I', d.schema_name, d.object_name),
           format('the stream table %I.%I was dropped', d.schema_name, d.object_name), true, $1
    FROM pg_event_trigger_dropped_objects() AS d JOIN pgtrickle.pgt_stream_tables AS t ON t.pgt_relid = d.objid
    WHERE d.classid = 'pg_class'::regclass AND d.objsubid = 0;
    WITH added AS (
        INSERT INTO pgtrickle.pgt_source_ddl (pgt_id, classid, objid, objsubid, title, reason, gone, command)
        SELECT u.pgt_id, u.classid, u.objid, u.objsubid, u.title, pgtrickle.describe_change(u.title, u.shape, NULL),
               u.objsubid = 0 AND u.classid IN ('pg_class'::regclass, 'pg_proc'::regclass), $1
        FROM pg_event_trigger_dropped_objects() AS d
        JOIN pgtrickle.pgt_used_objects AS u USING (classid, objid, objsubid)
        RETURNING id
    ) SELECT array_agg(id) FROM added
$$;

-- As the user's transaction commits: the stream table shows what was done to it, and whoever listens is told. The
-- service wakes to remove what belonged to a stream table that was dropped.
CREATE OR REPLACE FUNCTION pgtrickle.tell_source_ddl() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own boolean;
BEGIN
    IF TG_RELID <> 'pgtrickle.pgt_source_ddl'::regclass THEN
        RETURN NULL;  -- someone's own table: it has no say
    END IF;
    own := NEW.gone AND EXISTS (SELECT FROM pgtrickle.pgt_stream_tables AS t
                                WHERE t.pgt_id = NEW.pgt_id AND t.pgt_relid = NEW.objid);
    UPDATE pgtrickle.pgt_stream_tables AS t
    SET needs_reinit = true, reinit_reason = NEW.reason, updated_at = clock_timestamp(),
        status = CASE WHEN NEW.gone AND t.status <> 'SUSPENDED' THEN 'ERROR' ELSE t.status END,
        last_error = CASE WHEN own THEN NEW.reason
                          WHEN NEW.gone THEN NEW.reason
                               || ': create it again and alter the stream table with its query, or drop the stream table'
                          ELSE t.last_error END
    FROM (SELECT pgt_id FROM pgtrickle.pgt_stream_tables WHERE pgt_id = NEW.pgt_id
          FOR NO KEY UPDATE SKIP LOCKED) AS free
    WHERE t.pgt_id = free.pgt_id;
    PERFORM pg_notify('pg_trickle_alert', json_build_object(
        'event', CASE WHEN own THEN 'stream_table_dropped'
                      WHEN NEW.gone THEN 'source_dropped' ELSE 'reinitialize_needed' END,
        'table', format('%I.%I', p.pgt_schema, p.pgt_name), 'status', t.status, 'reason', NEW.reason)::text)
    FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id) WHERE t.pgt_id = NEW.pgt_id;
    IF own THEN
        PERFORM pg_notify('pg_trickle_wake', 'dropped');
    END IF;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING USING
        MESSAGE = format('pgtrickle could not mark a stream table (%s): %s', NEW.reason, SQLERRM),
        HINT = 'Nothing is lost: refreshes compare what they depend on themselves.';
    RETURN NULL;
END
$$;
