-- A table in IMMEDIATE mode is as its sources are, whenever it was last looked at: its data has no age, and no service is
-- needed for that. Its sources are told apart from those that are captured for refreshes.

CREATE OR REPLACE VIEW pgtrickle.stream_tables_info AS
SELECT t.pgt_id, t.pgt_relid, p.pgt_schema, p.pgt_name, t.defining_query, t.schedule, t.refresh_mode, t.effective_mode,
       t.mode_reason, p.status, t.is_populated, t.needs_reinit, t.reinit_reason, t.data_timestamp,
       CASE WHEN t.effective_mode = 'IMMEDIATE' AND t.is_populated AND NOT t.needs_reinit THEN interval '0'
            ELSE now() - t.data_timestamp END AS staleness,
       t.last_refresh_at, t.consecutive_errors, p.last_error, t.created_at,
       t.updated_at, p.owner, n.next_run, n.freshness_deadline, c.circle_id
FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)
JOIN pgtrickle.pgt_next_runs AS n USING (pgt_id)
LEFT JOIN pgtrickle.pgt_circles AS c USING (pgt_id);

CREATE OR REPLACE VIEW pgtrickle.pgt_stream_table_sources AS
SELECT p.pgt_schema, p.pgt_name, coalesce(n.nspname::text COLLATE "default", d.source_schema) AS source_schema,
       coalesce(c.relname::text COLLATE "default", d.source_name) AS source_name, d.source_relid, d.columns_used,
       CASE WHEN t.effective_mode = 'IMMEDIATE' THEN 'IMMEDIATE' ELSE d.cdc_mode END AS cdc_mode,
       u.pgt_id IS NOT NULL AS source_is_stream_table, pgtrickle.source_type(d.source_relid) AS source_type
FROM pgtrickle.pgt_dependencies AS d
JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)
JOIN pgtrickle.pgt_present AS p USING (pgt_id)
LEFT JOIN pg_class AS c ON c.oid = d.source_relid
LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pgtrickle.pgt_stream_tables AS u ON u.pgt_relid = d.source_relid;
COMMENT ON COLUMN pgtrickle.pgt_stream_table_sources.cdc_mode IS
    'How its changes are captured for this table. IMMEDIATE: not at all, writers keep the table; NULL: it is read in full.';

CREATE OR REPLACE VIEW pgtrickle.pg_stat_stream_tables AS
SELECT t.pgt_id, p.pgt_schema, p.pgt_name, p.status, t.refresh_mode, t.effective_mode, t.is_populated,
       t.data_timestamp,
       CASE WHEN t.effective_mode = 'IMMEDIATE' AND t.is_populated AND NOT t.needs_reinit THEN interval '0'
            ELSE now() - t.data_timestamp END AS staleness,
       t.schedule, t.consecutive_errors, p.last_error,
       h.total_refreshes, h.successful_refreshes, h.failed_refreshes, h.full_refreshes, h.differential_refreshes,
       h.rows_inserted, h.rows_deleted, h.changes_read, h.avg_duration_ms,
       l.action AS last_action, l.status AS last_status, l.reason AS last_reason, l.duration_ms AS last_duration_ms,
       c.cdc_modes, c.slot_name,
       CASE WHEN c.slot_name IS NOT NULL THEN (SELECT s.lag_bytes FROM pgtrickle.pgt_slot AS s) END AS slot_lag_bytes,
       (SELECT d.status FROM pgtrickle.pgt_decoder AS d WHERE d.slot_name = c.slot_name) AS decoder_status,
       n.next_run, n.freshness_deadline
FROM pgtrickle.pgt_stream_tables AS t
JOIN pgtrickle.pgt_present AS p USING (pgt_id)
JOIN pgtrickle.pgt_next_runs AS n USING (pgt_id)
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
    SELECT array_agg(DISTINCT cdc_mode) FILTER (WHERE cdc_mode IS NOT NULL) AS cdc_modes, min(slot_name) AS slot_name
    FROM pgtrickle.pgt_dependencies WHERE pgt_id = t.pgt_id
) AS c
LEFT JOIN LATERAL (
    SELECT action, status, reason, duration_ms FROM pgtrickle.pgt_refresh_history
    WHERE pgt_id = t.pgt_id AND status <> 'RUNNING' ORDER BY refresh_id DESC LIMIT 1
) AS l ON true;

CREATE OR REPLACE FUNCTION pgtrickle.pgt_status()
RETURNS TABLE (name text, status text, refresh_mode text, effective_mode text, is_populated boolean,
               consecutive_errors integer, schedule text, data_timestamp timestamptz, staleness interval,
               next_run timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('%I.%I', s.pgt_schema, s.pgt_name), s.status, s.refresh_mode, s.effective_mode, s.is_populated,
           s.consecutive_errors, s.schedule, s.data_timestamp, s.staleness, s.next_run
    FROM pgtrickle.stream_tables_info AS s
    ORDER BY s.pgt_schema, s.pgt_name
$$;

CREATE OR REPLACE FUNCTION pgtrickle_internal.staleness_of_full_name(name text) RETURNS double precision
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT extract(epoch FROM s.staleness)::double precision
    FROM pgtrickle.stream_tables_info AS s WHERE s.pgt_id = pgtrickle.pgt_id_of(name)
$$;

CREATE OR REPLACE FUNCTION pgtrickle_internal.lease_problems() RETURNS TABLE (severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN t.are_immediate THEN 'WARN' ELSE 'ERROR' END, 'no service runs in this database: pgtrickle run'
    FROM (SELECT bool_and(effective_mode = 'IMMEDIATE') AS are_immediate FROM pgtrickle.pgt_stream_tables) AS t
    WHERE t.are_immediate IS NOT NULL
      AND NOT EXISTS (SELECT FROM pgtrickle.pgt_leaders AS l WHERE l.purpose = 'service' AND l.connected)
    UNION ALL
    SELECT 'ERROR',
           pg_catalog.format('the service that leads as %s, in session %s, hangs: its last heartbeat was %s ago;'
                             ' another service takes over if one runs', l.role_name, l.backend_pid,
                             date_trunc('second', l.heartbeat_age))
    FROM pgtrickle.pgt_leaders AS l WHERE l.purpose = 'service' AND l.connected AND NOT l.beats
    UNION ALL
    SELECT 'WARN', l.obstacle FROM pgtrickle.pgt_leaders AS l WHERE l.obstacle IS NOT NULL
$$;

-- Two long functions, which stay as they are but for these words.
DO $edit$
DECLARE
    each record;
    definition text;
BEGIN
    FOR each IN
        SELECT * FROM (VALUES
            ('pgtrickle.health_check', $$now() - t.data_timestamp AS age$$,
             $$CASE WHEN t.effective_mode <> 'IMMEDIATE' THEN now() - t.data_timestamp END AS age$$),
            ('pgtrickle_internal.explain_full_name', $$coalesce('by ' || s.cdc_mode, 'read in full')$$,
             $$CASE s.cdc_mode WHEN 'IMMEDIATE' THEN 'followed by its writers'
               ELSE coalesce('by ' || s.cdc_mode, 'read in full') END$$),
            ('pgtrickle_internal.explain_full_name', $$s.cdc_mode IS NOT NULL AND o.buffer_relid$$,
             $$s.cdc_mode <> 'IMMEDIATE' AND o.buffer_relid$$)
        ) AS v(function, old_words, new_words)
    LOOP
        definition := pg_get_functiondef(each.function::regproc);
        IF strpos(definition, each.old_words) = 0 THEN
            RAISE EXCEPTION '% is not what it was', each.function;
        END IF;
        EXECUTE replace(definition, each.old_words, each.new_words);
    END LOOP;
END
$edit$;
