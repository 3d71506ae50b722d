-- Front doors in SQL: everything has a comment, all tables can be paused at once, a query can be tried, lineage.

-- A copy that we compare has the name of what it is a copy of, and a source that was dropped the one that it had.

CREATE OR REPLACE VIEW pgtrickle.pgt_stream_table_sources AS
SELECT p.pgt_schema, p.pgt_name, coalesce(n.nspname::text COLLATE "default", d.source_schema) AS source_schema,
       coalesce(c.relname::text COLLATE "default", d.source_name) AS source_name, d.source_relid, d.columns_used, d.cdc_mode,
       u.pgt_id IS NOT NULL AS source_is_stream_table, pgtrickle.source_type(d.source_relid) AS source_type
FROM pgtrickle.pgt_dependencies AS d
JOIN pgtrickle.pgt_present AS p USING (pgt_id)
LEFT JOIN pgtrickle.pgt_compared AS m ON m.copy_relid = d.source_relid
LEFT JOIN pg_class AS c ON c.oid = coalesce(m.source_relid, d.source_relid)
LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pgtrickle.pgt_stream_tables AS u ON u.pgt_relid = d.source_relid;

CREATE OR REPLACE FUNCTION pgtrickle.dependency_tree()
RETURNS TABLE (tree_line text, node text, node_type text, depth integer, status text, refresh_mode text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE named AS (
        SELECT t.pgt_id, t.pgt_relid, format('%I.%I', p.pgt_schema, p.pgt_name) AS name, p.status, t.refresh_mode, c.circle_id
        FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)
        LEFT JOIN pgtrickle.pgt_circles AS c USING (pgt_id)
    ), edges AS (
        SELECT t.pgt_relid AS reader, t.circle_id, s.source_relid AS source, s.name,
               row_number() OVER (PARTITION BY t.pgt_relid ORDER BY s.name) AS place,
               row_number() OVER (PARTITION BY t.pgt_relid ORDER BY s.name DESC) = 1 AS last
        FROM named AS t
        JOIN (SELECT d.pgt_id, d.source_relid, format('%I.%I', coalesce(n.nspname::text COLLATE "default", d.source_schema),
                                                      coalesce(c.relname::text COLLATE "default", d.source_name)) AS name
              FROM pgtrickle.pgt_dependencies AS d LEFT JOIN pgtrickle.pgt_compared AS m ON m.copy_relid = d.source_relid
              LEFT JOIN pg_class AS c ON c.oid = coalesce(m.source_relid, d.source_relid)
              LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace) AS s USING (pgt_id)
    ), tree AS (
        SELECT t.pgt_relid AS relid, t.name, '' AS branch, '' AS stem,
               ARRAY[row_number() OVER (ORDER BY t.name)] AS place, ARRAY[t.pgt_relid] AS way, false AS back
        FROM named AS t
        WHERE coalesce(t.circle_id, t.pgt_id) = t.pgt_id
          AND NOT EXISTS (SELECT FROM named AS m JOIN edges AS e ON e.source = m.pgt_relid
                          WHERE (m.pgt_id = t.pgt_id OR m.circle_id = t.circle_id)
                            AND e.circle_id IS DISTINCT FROM coalesce(t.circle_id, -1))
        UNION ALL
        SELECT e.source, e.name, tree.stem || CASE WHEN e.last THEN '`-- ' ELSE '|-- ' END,
               tree.stem || CASE WHEN e.last THEN '    ' ELSE '|   ' END, tree.place || e.place, tree.way || e.source,
               e.source = ANY (tree.way)
        FROM tree JOIN edges AS e ON e.reader = tree.relid
        WHERE NOT tree.back
    )
    SELECT tree.branch || tree.name || CASE WHEN s.pgt_id IS NULL THEN ' [src]' WHEN tree.back THEN ' [circle]' ELSE '' END,
           tree.name, CASE WHEN s.pgt_id IS NULL THEN 'source_table' ELSE 'stream_table' END, cardinality(tree.way) - 1,
           s.status, s.refresh_mode
    FROM tree LEFT JOIN named AS s ON s.pgt_relid = tree.relid
    ORDER BY tree.place
$$;

-- Eligibility is that of the role that owns the catalog, under which the service runs.
CREATE OR REPLACE VIEW pgtrickle.pgt_cdc_status AS
SELECT coalesce(CASE WHEN c.oid IS NOT NULL THEN pg_catalog.format('%I.%I', n.nspname, c.relname) END,
                (SELECT pg_catalog.format('%I.%I', r.source_schema, r.source_name) FROM pgtrickle.pgt_dependencies AS r
                 WHERE r.source_relid = k.source_relid LIMIT 1), k.source_relid::text) AS source_table,
       k.cdc_mode,
       CASE WHEN k.cdc_mode <> 'TRIGGER' OR g.source_relid IS NOT NULL THEN pgtrickle.slot_name() END AS slot_name,
       CASE WHEN k.cdc_mode <> 'TRIGGER' OR g.source_relid IS NOT NULL THEN s.lag_bytes END AS slot_lag_bytes,
       t.writing = k.trigger_count AS trigger_active,
       e.code IS NULL AS eligible,
       coalesce(e.reason, k.last_error, k.note) AS reason,
       e.hint,
       k.source_relid,
       k.requested,
       k.mode_since,
       k.transition_started_at,
       k.next_try_at,
       k.failures,
       g.source_relid IS NOT NULL AS draining,
       k.source_relid IN (SELECT p.source_relid FROM pgtrickle.pgt_published AS p) AS published,
       greatest(d.confirmed_lsn, s.confirmed_flush_lsn) AS confirmed_lsn,
       coalesce(d.status, 'STOPPED') AS decoder_status,
       d.error AS decoder_error,
       ARRAY(SELECT r.pgt_id FROM pgtrickle.pgt_dependencies AS r
             WHERE r.source_relid = k.source_relid AND r.cdc_mode IS NOT NULL ORDER BY 1) AS tracked_by_pgt_ids,
       u.last_consumed_lsn
FROM pgtrickle.pgt_change_tracking AS k
JOIN pgtrickle.pgt_capture_objects AS o ON o.source_relid = k.source_relid
LEFT JOIN pgtrickle.pgt_compared AS m ON m.copy_relid = k.source_relid
LEFT JOIN pg_class AS c ON c.oid = coalesce(m.source_relid, k.source_relid)
LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pgtrickle.pgt_slot AS s ON true
LEFT JOIN pgtrickle.pgt_decoder AS d ON d.slot_name = pgtrickle.slot_name()
LEFT JOIN pgtrickle.pgt_draining AS g ON g.source_relid = k.source_relid
LEFT JOIN pgtrickle.pgt_consumed AS u ON u.source_relid = k.source_relid
CROSS JOIN LATERAL (SELECT count(*) AS writing FROM pg_trigger WHERE tgfoid = o.function_oid AND tgenabled = 'A') AS t
CROSS JOIN LATERAL pgtrickle.wal_eligibility(
    k.source_relid, k.columns, (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgtrickle'),
    pgtrickle.setting('auto_replica_identity', 'off')::boolean) AS e;

-- How old the data of a stream table is. Where writers keep it, it is not, unless a refresh is needed first.
CREATE FUNCTION pgtrickle.staleness_of(effective_mode text, needs_reinit boolean, data_timestamp timestamptz)
RETURNS interval
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN effective_mode = 'IMMEDIATE' AND NOT needs_reinit AND data_timestamp IS NOT NULL THEN interval '0'
                ELSE now() - data_timestamp END
$$;
COMMENT ON FUNCTION pgtrickle.staleness_of IS 'Internal: how old the data of a stream table is.';

CREATE OR REPLACE FUNCTION pgtrickle.staleness_of_full_name(name text) RETURNS double precision
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT extract(epoch FROM pgtrickle.staleness_of(t.effective_mode, t.needs_reinit, t.data_timestamp))::double precision
    FROM pgtrickle.pgt_stream_tables AS t WHERE t.pgt_id = pgtrickle.pgt_id_of(name)
$$;

CREATE OR REPLACE VIEW pgtrickle.stream_tables_info AS
SELECT t.pgt_id, t.pgt_relid, p.pgt_schema, p.pgt_name, t.defining_query, t.schedule, t.refresh_mode, t.effective_mode,
       t.mode_reason, p.status, t.is_populated, t.needs_reinit, t.reinit_reason, t.data_timestamp,
       pgtrickle.staleness_of(t.effective_mode, t.needs_reinit, t.data_timestamp) AS staleness, t.last_refresh_at, t.consecutive_errors, p.last_error, t.created_at,
       t.updated_at, p.owner, n.next_run, n.freshness_deadline, c.circle_id
FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)
JOIN pgtrickle.pgt_next_runs AS n USING (pgt_id)
LEFT JOIN pgtrickle.pgt_circles AS c USING (pgt_id);

CREATE OR REPLACE VIEW pgtrickle.pg_stat_stream_tables AS
SELECT t.pgt_id, p.pgt_schema, p.pgt_name, p.status, t.refresh_mode, t.effective_mode, t.is_populated,
       t.data_timestamp, pgtrickle.staleness_of(t.effective_mode, t.needs_reinit, t.data_timestamp) AS staleness, t.schedule, t.consecutive_errors, p.last_error,
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
    SELECT format('%I.%I', p.pgt_schema, p.pgt_name), p.status, t.refresh_mode, t.effective_mode, t.is_populated,
           t.consecutive_errors, t.schedule, t.data_timestamp, pgtrickle.staleness_of(t.effective_mode, t.needs_reinit, t.data_timestamp), n.next_run
    FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)
    JOIN pgtrickle.pgt_next_runs AS n USING (pgt_id)
    ORDER BY p.pgt_schema, p.pgt_name
$$;

-- What each stream table is computed from: a closure, so it ends in a circle too, and a way that is taken twice counts
-- once.
CREATE VIEW pgtrickle.pgt_lineage AS
WITH RECURSIVE reached (pgt_id, relid) AS (
    SELECT pgt_id, source_relid FROM pgtrickle.pgt_dependencies
    UNION
    SELECT r.pgt_id, d.source_relid
    FROM reached AS r JOIN pgtrickle.pgt_stream_tables AS t ON t.pgt_relid = r.relid
    JOIN pgtrickle.pgt_dependencies AS d ON d.pgt_id = t.pgt_id
)
SELECT p.pgt_schema, p.pgt_name, n.nspname::text COLLATE "default" AS source_schema,
       c.relname::text COLLATE "default" AS source_name, c.oid AS source_relid,
       pgtrickle.source_type(r.relid) AS source_type, d.source_relid IS NOT NULL AS is_direct, d.columns_used
FROM reached AS r JOIN pgtrickle.pgt_present AS p USING (pgt_id)
LEFT JOIN pgtrickle.pgt_compared AS m ON m.copy_relid = r.relid
JOIN pg_class AS c ON c.oid = coalesce(m.source_relid, r.relid) JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pgtrickle.pgt_dependencies AS d ON d.pgt_id = r.pgt_id AND d.source_relid = r.relid;

-- The tables that pause_all() and resume_all() make requests for, one for each; with the status that they will have once
-- what was asked for before is carried out.
CREATE FUNCTION pgtrickle.steerable_tables() RETURNS TABLE (name text, status text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT n.name, coalesce((SELECT r.args ->> 'status' FROM pgtrickle.pgt_requests AS r
                             WHERE r.state IN ('PENDING', 'RUNNING') AND r.kind = 'alter' AND r.args ->> 'name' = n.name
                               AND r.args ? 'status' ORDER BY r.id DESC LIMIT 1), p.status)
    FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)
    JOIN pg_class AS c ON c.oid = t.pgt_relid
    CROSS JOIN LATERAL (SELECT format('%I.%I', p.pgt_schema, p.pgt_name)) AS n(name)
    WHERE p.is_there AND (pg_has_role(c.relowner, 'USAGE') OR pgtrickle.steers(
        (SELECT r.oid FROM pg_roles AS r WHERE r.rolname = current_user), 'refresh', '{}'))
    ORDER BY t.pgt_id
$$;

CREATE FUNCTION pgtrickle.pause_all() RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT pgtrickle.pause_stream_table(s.name) FROM pgtrickle.steerable_tables() AS s
                 WHERE s.status <> 'SUSPENDED';
END
$$;

CREATE FUNCTION pgtrickle.resume_all() RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT pgtrickle.resume_stream_table(s.name) FROM pgtrickle.steerable_tables() AS s
                 WHERE s.status = ANY (ARRAY['SUSPENDED', 'ERROR']);
END
$$;

-- Names in the query mean what they mean to the caller, so this has no path of its own.
CREATE FUNCTION pgtrickle.validate_query(query text) RETURNS TABLE (check_name text, severity text, detail text)
LANGUAGE plpgsql AS $$
DECLARE
    sources pg_catalog.jsonb;
    source pg_catalog.text;
    state pg_catalog.text;
    said pg_catalog.text;
    advice pg_catalog.text;
BEGIN
    BEGIN
        sources := pgtrickle.check_query(query);
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, said = MESSAGE_TEXT, advice = PG_EXCEPTION_HINT;
        IF pg_catalog.starts_with(state, 'PT') THEN
            said := pg_catalog.concat(state, ': ', said);
        ELSIF NOT pgtrickle.is_of_the_query(state) THEN
            RAISE;
        END IF;
        RETURN QUERY SELECT 'query', 'ERROR', pg_catalog.concat(said, '. ', advice);
        RETURN;
    END;
    RETURN QUERY SELECT 'query', 'OK', 'PostgreSQL accepts it, and this role may read all that it reads';
    FOR source IN SELECT k.relid FROM pg_catalog.jsonb_object_keys(sources) AS k(relid) ORDER BY 1 LOOP
        BEGIN
            PERFORM pgtrickle.check_differential(pg_catalog.jsonb_build_object(source, '[]'::pg_catalog.jsonb));
            RETURN QUERY SELECT 'source', 'OK', pg_catalog.concat(
                source::pg_catalog.oid::pg_catalog.regclass::pg_catalog.text, ': its changes can be captured');
        EXCEPTION WHEN SQLSTATE 'PT204' OR SQLSTATE 'PT205' OR SQLSTATE 'PT206' OR SQLSTATE 'PT251' THEN
            GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, said = MESSAGE_TEXT;
            RETURN QUERY SELECT 'source', 'WARN', pg_catalog.concat(state, ': ', said, '; so it would be a FULL table');
        END;
    END LOOP;
END
$$;

-- Comments, for psql's \df+ and \d+ and for docs/reference. What begins with "Internal" is called by pgtrickle alone,
-- and may change with any version. ------------------------------------------------------------------------------------

COMMENT ON FUNCTION pgtrickle.create_stream_table IS
    'Asks the service to create a stream table of a query and to fill it; returns the id of the request.';
COMMENT ON FUNCTION pgtrickle.create_or_replace_stream_table IS
    'Like create_stream_table, but a stream table of that name is altered to be as given; returns the id of the '
    'request.';
COMMENT ON FUNCTION pgtrickle.create_stream_table_if_not_exists IS
    'Like create_stream_table, but a stream table of that name stays as it is; then there is no request, and NULL is '
    'returned.';
COMMENT ON FUNCTION pgtrickle.alter_stream_table IS
    'Asks the service to change a stream table. What is NULL stays as it is; schedule => ''calculated'' takes the '
    'schedule away; cdc_mode, diamond_consistency and diamond_schedule_policy => ''inherit'' give them back to the '
    'setting. Returns the id of the request.';
COMMENT ON FUNCTION pgtrickle.drop_stream_table IS
    'Asks the service to drop a stream table, and with cascade all that reads it; returns the id of the request.';
COMMENT ON FUNCTION pgtrickle.refresh_stream_table IS
    'Asks the service to refresh a stream table now, with "full" by computing its query from scratch; returns the id '
    'of the request.';
COMMENT ON FUNCTION pgtrickle.pause_all IS
    'Asks the service to leave all stream tables as they are that the caller owns or may steer; returns the ids of '
    'the requests.';
COMMENT ON FUNCTION pgtrickle.resume_all IS
    'Asks the service to refresh all stream tables again that the caller owns or may steer and that are paused or '
    'suspended; returns the ids of the requests.';
COMMENT ON FUNCTION pgtrickle.repair_stream_table IS
    'Asks the service to mend a stream table that was restored from a dump, or of which something was dropped by '
    'hand; returns the id of the request.';
COMMENT ON FUNCTION pgtrickle.validate_query IS
    'Says what becomes of a query as a stream table, without making one: whether PostgreSQL accepts it, and whether '
    'the changes of each source can be captured. Which of its operators are incremental, only the program can say: '
    'pgtrickle explain --query.';
COMMENT ON PROCEDURE pgtrickle.wait_for IS
    'Waits until a request is done, and raises its error if it failed. To be called on its own: it cannot end a '
    'transaction that is not its own.';
COMMENT ON FUNCTION pgtrickle.pgt_status IS
    'Every stream table: status, modes, schedule, how old its data is, when the next refresh is due.';
COMMENT ON FUNCTION pgtrickle.get_refresh_history IS 'The last refreshes of a stream table, newest first.';
COMMENT ON FUNCTION pgtrickle.get_staleness IS
    'Seconds since the snapshot that a stream table shows; zero in IMMEDIATE mode, NULL before it is filled.';
COMMENT ON FUNCTION pgtrickle.st_refresh_stats IS
    'Every stream table: how often it was refreshed, with what result, how many rows were written, how long it took.';
COMMENT ON FUNCTION pgtrickle.explain_st IS
    'What is known of a stream table, a property a row: query, modes, sources, operators, delta plan, state, size.';
COMMENT ON FUNCTION pgtrickle.dependency_tree IS 'What every stream table reads, and what that reads, drawn as a tree.';
COMMENT ON FUNCTION pgtrickle.diamond_groups IS
    'One row for each member of each diamond: tables that have a source in common and meet again further down.';
COMMENT ON FUNCTION pgtrickle.health_check IS
    'One row for each check that is passed, and one for each problem where it is not. Severity OK, WARN or ERROR.';
COMMENT ON FUNCTION pgtrickle.check_cdc_health IS
    'One row for each captured source; alert says what is wrong with its capture, NULL if nothing is.';
COMMENT ON FUNCTION pgtrickle.slot_health IS
    'The replication slot: whether it lives, who reads it, how much WAL it holds back. No row: there is none.';
COMMENT ON FUNCTION pgtrickle.pgt_id_of IS
    'The id in pgt_stream_tables of a stream table named as in a query: with or without schema, quoted where needed.';
COMMENT ON FUNCTION pgtrickle.session_settings IS
    'The settings of this session that can change the answer of a query. They are kept with a stream table that is '
    'created here.';
COMMENT ON FUNCTION pgtrickle.slot_name IS 'The name of the replication slot and of the publication in this database.';
COMMENT ON FUNCTION pgtrickle.wal_eligibility IS
    'Whether a source can be captured from the WAL by a role, with these columns used; if not, code, reason and hint '
    'say why.';
COMMENT ON FUNCTION pgtrickle.track_ddl IS
    'Creates the event triggers by which DDL on sources is noticed at once; false if this role may not. A superuser '
    'calls it after an installation without one.';
COMMENT ON FUNCTION pgtrickle.track_subscriptions IS
    'Creates the event trigger by which changes of subscriptions are noticed; false if this role may not.';

COMMENT ON FUNCTION pgtrickle.add_request IS 'Internal: adds a request and wakes the service.';
COMMENT ON FUNCTION pgtrickle.begin_waiting IS
    'Internal: until when a caller of wait_for waits; refuses in a transaction that has something to commit.';
COMMENT ON FUNCTION pgtrickle.callers_path IS 'Internal: the search_path of the caller, resolved.';
COMMENT ON FUNCTION pgtrickle.catalog_is_here IS
    'Internal: whether the catalog was made in this database, or taken over for it.';
COMMENT ON FUNCTION pgtrickle.check_capture IS
    'Internal: refuses a request whose sources cannot be captured as it asks for.';
COMMENT ON FUNCTION pgtrickle.check_choice IS 'Internal: a value of a list in the list''s own spelling, or an error.';
COMMENT ON FUNCTION pgtrickle.check_differential IS 'Internal: refuses sources whose changes cannot be captured.';
COMMENT ON FUNCTION pgtrickle.check_new_name IS
    'Internal: the full name of a stream table to be created, if the caller may create it there.';
COMMENT ON FUNCTION pgtrickle.check_new_name_in IS 'Internal: the same, with the schema that it goes to by default.';
COMMENT ON FUNCTION pgtrickle.check_options IS
    'Internal: checks the options of a request, and returns them as it holds them.';
COMMENT ON FUNCTION pgtrickle.check_own_full_name IS
    'Internal: the full name of a stream table that the caller owns; the name comes with its schema.';
COMMENT ON FUNCTION pgtrickle.check_own_name IS 'Internal: the full name of a stream table that the caller owns.';
COMMENT ON FUNCTION pgtrickle.check_query IS
    'Internal: whether PostgreSQL takes the query and lets the caller read it; returns its sources.';
COMMENT ON FUNCTION pgtrickle.check_schedule IS 'Internal: checks a schedule, and that it is not shorter than allowed.';
COMMENT ON FUNCTION pgtrickle.check_schedule_shape IS 'Internal: checks how a schedule is written.';
COMMENT ON FUNCTION pgtrickle.check_steered_name IS
    'Internal: the full name of a stream table that the caller may refresh, pause or resume.';
COMMENT ON FUNCTION pgtrickle.check_wal IS
    'Internal: refuses capture from the WAL where a source cannot be captured so.';
COMMENT ON FUNCTION pgtrickle.computes IS
    'Internal: whether a session that logged in as a role may compute a stream table.';
COMMENT ON FUNCTION pgtrickle.describe_change IS 'Internal: what DDL did to an object, in words.';
COMMENT ON FUNCTION pgtrickle.describe_object IS 'Internal: an object in words, and what a query depends on of it.';
COMMENT ON FUNCTION pgtrickle.duration_bounds IS
    'Internal: the upper bounds, in seconds, of the buckets in which refreshes are counted.';
COMMENT ON FUNCTION pgtrickle.duration_bucket IS 'Internal: the bucket of a duration.';
COMMENT ON FUNCTION pgtrickle.explain_full_name IS 'Internal: explain_st of a name that comes with its schema.';
COMMENT ON FUNCTION pgtrickle.full_name_of IS 'Internal: the full name of a stream table, by its id.';
COMMENT ON FUNCTION pgtrickle.history_of_full_name IS
    'Internal: get_refresh_history of a name that comes with its schema.';
COMMENT ON FUNCTION pgtrickle.id_of_name IS 'Internal: the id of the stream table that has the name now, along a path.';
COMMENT ON FUNCTION pgtrickle.id_of_relation IS 'Internal: the id of the stream table that is stored in a relation.';
COMMENT ON FUNCTION pgtrickle.is_done IS 'Internal: whether a request is done; raises its error if it failed.';
COMMENT ON FUNCTION pgtrickle.is_of_the_query IS
    'Internal: whether an error is about the query, not about the session or the server.';
COMMENT ON FUNCTION pgtrickle.is_served IS 'Internal: whether a running service serves a role.';
COMMENT ON FUNCTION pgtrickle.is_stream_table IS 'Internal: whether a relation is a stream table.';
COMMENT ON FUNCTION pgtrickle.is_taken IS 'Internal: whether a running service would take a request.';
COMMENT ON FUNCTION pgtrickle.is_wrong_cron IS 'Internal: whether a cron expression is wrong for sure.';
COMMENT ON FUNCTION pgtrickle.is_wrong_in_cron IS 'Internal: whether one field of a cron expression is wrong for sure.';
COMMENT ON FUNCTION pgtrickle.lease_problems IS 'Internal: the part of health_check about who leads.';
COMMENT ON FUNCTION pgtrickle.loop_problems IS 'Internal: the part of health_check about the loops of the service.';
COMMENT ON FUNCTION pgtrickle.no_commit_here IS 'Internal: what PostgreSQL says where a transaction cannot be ended.';
COMMENT ON FUNCTION pgtrickle.note_altered IS 'Internal: notes which used objects a command has changed.';
COMMENT ON FUNCTION pgtrickle.note_dropped IS 'Internal: notes which used objects a command has dropped.';
COMMENT ON FUNCTION pgtrickle.object_names IS 'Internal: what else the names of these objects may mean.';
COMMENT ON FUNCTION pgtrickle.object_shapes IS 'Internal: what objects are like, as far as an answer depends on it.';
COMMENT ON FUNCTION pgtrickle.on_source_ddl IS 'Internal: the event trigger for DDL on what stream tables use.';
COMMENT ON FUNCTION pgtrickle.on_subscription_ddl IS 'Internal: the event trigger for DDL on subscriptions.';
COMMENT ON FUNCTION pgtrickle.pause_problems IS 'Internal: the part of health_check about refreshes that are paused.';
COMMENT ON FUNCTION pgtrickle.read_by_view IS 'Internal: what a view depends on, itself and through other views.';
COMMENT ON FUNCTION pgtrickle.refuse IS 'Internal: raises an error with our code as its SQLSTATE.';
COMMENT ON FUNCTION pgtrickle.refuse_query IS 'Internal: raises PostgreSQL''s refusal of a query, with our code.';
COMMENT ON FUNCTION pgtrickle.refuse_source_ddl IS 'Internal: refuses DDL where block_source_ddl is on.';
COMMENT ON FUNCTION pgtrickle.request_progress IS 'Internal: how far a request is, for who waits for it.';
COMMENT ON FUNCTION pgtrickle.require_own_transaction IS
    'Internal: refuses to wait in a transaction that is not the procedure''s to end.';
COMMENT ON FUNCTION pgtrickle.require_query IS 'Internal: refuses an empty query.';
COMMENT ON FUNCTION pgtrickle.schedule_period IS 'Internal: the length of a duration; NULL for cron expressions.';
COMMENT ON FUNCTION pgtrickle.sees_all_writers IS
    'Internal: whether triggers of a level see all who write to a source.';
COMMENT ON FUNCTION pgtrickle.service_pid IS 'Internal: the session of a service that leads here; NULL: none does.';
COMMENT ON FUNCTION pgtrickle.serving_roles IS 'Internal: the login roles for which a service leads here.';
COMMENT ON FUNCTION pgtrickle.set_origin IS 'Internal: notes that this catalog belongs to this database.';
COMMENT ON FUNCTION pgtrickle.setting IS 'Internal: a setting of ours as SQL sees it.';
COMMENT ON FUNCTION pgtrickle.sources_of_view IS 'Internal: the tables that a view reads, with the columns of each.';
COMMENT ON FUNCTION pgtrickle.staleness_of_full_name IS 'Internal: get_staleness of a name that comes with its schema.';
COMMENT ON FUNCTION pgtrickle.steerable_tables IS 'Internal: the stream tables that the caller owns or may steer.';
COMMENT ON FUNCTION pgtrickle.takers IS 'Internal: the login roles of the running services that would take a request.';
COMMENT ON FUNCTION pgtrickle.tell_source_ddl IS 'Internal: the trigger that tells of DDL as its transaction commits.';
COMMENT ON FUNCTION pgtrickle.tell_waiting IS
    'Internal: tells the caller where no running service will take the request.';
COMMENT ON FUNCTION pgtrickle.unfilled_tables IS
    'Internal: the part of health_check about stream tables that were never filled.';
COMMENT ON FUNCTION pgtrickle.unserved_tables IS
    'Internal: the part of health_check about stream tables that no service computes.';
COMMENT ON FUNCTION pgtrickle.wal_since IS 'Internal: bytes of WAL written since a position.';
COMMENT ON FUNCTION pgtrickle.wal_verdict IS 'Internal: the rules of wal_eligibility.';
COMMENT ON FUNCTION pgtrickle.who_leads IS 'Internal: which service leads, in words.';
COMMENT ON FUNCTION pgtrickle.why_waiting IS 'Internal: why a request waits, in words.';

COMMENT ON VIEW pgtrickle.pg_stat_stream_tables IS
    'Statistics of every stream table: refreshes by their result, rows, times, the last action with its reason, '
    'capture and slot.';
COMMENT ON VIEW pgtrickle.pgt_cdc_status IS
    'How the changes of each source are captured: mode, slot and lag, decoder, whether the WAL would do, and why not.';
COMMENT ON VIEW pgtrickle.pgt_ddl_tracking IS 'How DDL on sources is noticed, and whether it is refused.';
COMMENT ON VIEW pgtrickle.pgt_leaders IS 'The services that lead, each with its heartbeat.';
COMMENT ON VIEW pgtrickle.pgt_next_runs IS
    'When each stream table is due, and until when its data is as fresh as its schedule asks for.';
COMMENT ON VIEW pgtrickle.pgt_stream_table_sources IS
    'What each stream table reads itself: sources, used columns, way of capture.';
COMMENT ON VIEW pgtrickle.stream_tables_info IS 'The definition and the state of every stream table.';
COMMENT ON VIEW pgtrickle.pgt_lineage IS
    'All that each stream table is computed from, directly or through other stream tables. Ask it by source to see '
    'what a table feeds.';
COMMENT ON VIEW pgtrickle.pgt_decoded IS 'Internal: how far the WAL is in the change buffers.';
COMMENT ON VIEW pgtrickle.pgt_draining IS
    'Internal: sources that went back to triggers while decoded changes had still to come.';
COMMENT ON VIEW pgtrickle.pgt_published IS
    'Internal: sources that have been published, with all their changes, since they were added to the publication.';
COMMENT ON VIEW pgtrickle.pgt_seen_objects IS 'Internal: used objects as the last DDL left them.';
COMMENT ON VIEW pgtrickle.pgt_slot IS
    'Internal: the replication slot as the server shows it, and whether it was moved by hand.';

COMMENT ON TABLE pgtrickle.pgt_stream_tables IS
    'The stream tables: query, schedule, modes, state. Written by pgtrickle only; stream_tables_info shows it with '
    'present names.';
COMMENT ON TABLE pgtrickle.pgt_dependencies IS
    'Which stream table reads which source, with the columns used; cdc_mode is NULL where the source is not captured '
    'for it.';
COMMENT ON TABLE pgtrickle.pgt_change_tracking IS 'The captured sources: columns, triggers, mode of capture.';
COMMENT ON TABLE pgtrickle.pgt_refresh_history IS
    'The refreshes, running and past: action, reason, rows, times, error. Old ones are removed and stay as sums.';
COMMENT ON TABLE pgtrickle.pgt_requests IS 'What was asked for from SQL: state, result, error. wait_for waits for one.';
COMMENT ON TABLE pgtrickle.pgt_cdc_history IS 'The changes of the sources'' capture modes, each with its reason.';
COMMENT ON TABLE pgtrickle.pgt_scheduler_jobs IS 'What the service refreshed together, and with what result.';
COMMENT ON TABLE pgtrickle.pgt_decoder IS 'How far the decoder of the WAL is, and whether it failed.';
COMMENT ON TABLE pgtrickle.pgt_migrations IS 'The migrations of this catalog that were applied.';
COMMENT ON TABLE pgtrickle.pgt_consumed IS
    'Internal: how far the changes of a source were applied, noted as they leave its buffer.';
COMMENT ON TABLE pgtrickle.pgt_cron_runs IS 'Internal: the next run of each stream table with a cron schedule.';
COMMENT ON TABLE pgtrickle.pgt_locks IS 'Internal: locks by name.';
COMMENT ON TABLE pgtrickle.pgt_refresh_locks IS
    'Internal: the lock of each stream table, held while it is refreshed or changed.';
COMMENT ON TABLE pgtrickle.pgt_slot_lock IS 'Internal: the lock of who makes or drops the replication slot.';

COMMENT ON SCHEMA pgtrickle IS
    'Stream tables: the functions to define and to watch them, and their catalog. Made by pgtrickle.';
COMMENT ON SCHEMA pgtrickle_changes IS
    'Change buffers of the sources of stream tables. Written and emptied by pgtrickle.';
COMMENT ON SCHEMA pgtrickle_state IS
    'What stream tables keep beside their rows, and rows on their way. Written by pgtrickle.';

-- What columns mean, where their names do not say it.
COMMENT ON COLUMN pgtrickle.pg_stat_stream_tables.staleness IS
    'Age of the snapshot that the table shows; zero where writers keep it (IMMEDIATE).';
COMMENT ON COLUMN pgtrickle.pg_stat_stream_tables.data_timestamp IS
    'The moment that the table shows: it is equal to its query as of then.';
COMMENT ON COLUMN pgtrickle.pg_stat_stream_tables.effective_mode IS
    'The mode in use; refresh_mode is the one asked for.';
COMMENT ON COLUMN pgtrickle.pg_stat_stream_tables.total_refreshes IS
    'All refreshes since the table was created, also those that have left the history.';
COMMENT ON COLUMN pgtrickle.pg_stat_stream_tables.changes_read IS 'Changes of sources that refreshes have read.';
COMMENT ON COLUMN pgtrickle.pg_stat_stream_tables.last_reason IS 'Why the last refresh did what it did.';
COMMENT ON COLUMN pgtrickle.pg_stat_stream_tables.cdc_modes IS
    'How its sources are captured; NULL: nothing is, as the table is computed in full.';
COMMENT ON COLUMN pgtrickle.pg_stat_stream_tables.slot_lag_bytes IS
    'WAL written since the position that the decoder has confirmed.';
COMMENT ON COLUMN pgtrickle.pg_stat_stream_tables.next_run IS
    'When it is due. A time that has passed: it is overdue. NULL: it has no schedule of its own, is suspended or was '
    'never filled.';
COMMENT ON COLUMN pgtrickle.pg_stat_stream_tables.freshness_deadline IS
    'Until when its data is as fresh as its schedule asks for.';
COMMENT ON COLUMN pgtrickle.stream_tables_info.defining_query IS 'The query as its owner wrote it.';
COMMENT ON COLUMN pgtrickle.stream_tables_info.effective_mode IS 'The mode in use; refresh_mode is the one asked for.';
COMMENT ON COLUMN pgtrickle.stream_tables_info.mode_reason IS 'Why the two modes differ.';
COMMENT ON COLUMN pgtrickle.stream_tables_info.needs_reinit IS
    'Whether the next refresh computes it from scratch; reinit_reason says why.';
COMMENT ON COLUMN pgtrickle.stream_tables_info.data_timestamp IS
    'The moment that the table shows: it is equal to its query as of then.';
COMMENT ON COLUMN pgtrickle.stream_tables_info.staleness IS 'Age of that moment; zero where writers keep it (IMMEDIATE).';
COMMENT ON COLUMN pgtrickle.stream_tables_info.consecutive_errors IS
    'Failures in a row; after max_consecutive_errors it is suspended.';
COMMENT ON COLUMN pgtrickle.stream_tables_info.owner IS
    'The role that owns the table. A service computes only tables of its own login.';
COMMENT ON COLUMN pgtrickle.stream_tables_info.circle_id IS
    'The circle of tables that read each other, if it is in one.';
COMMENT ON COLUMN pgtrickle.pgt_cdc_status.cdc_mode IS 'TRIGGER, TRANSITIONING or WAL: what counts now.';
COMMENT ON COLUMN pgtrickle.pgt_cdc_status.trigger_active IS 'Whether all capture triggers are there and enabled.';
COMMENT ON COLUMN pgtrickle.pgt_cdc_status.eligible IS
    'Whether the WAL could serve this source; reason and hint say why not, and what to do.';
COMMENT ON COLUMN pgtrickle.pgt_cdc_status.requested IS 'What its stream tables, or the setting, ask for.';
COMMENT ON COLUMN pgtrickle.pgt_cdc_status.mode_since IS 'Since when it is captured so.';
COMMENT ON COLUMN pgtrickle.pgt_cdc_status.next_try_at IS 'When the service tries the WAL again after a failure.';
COMMENT ON COLUMN pgtrickle.pgt_cdc_status.draining IS
    'Whether it went back to triggers while decoded changes have still to come.';
COMMENT ON COLUMN pgtrickle.pgt_cdc_status.published IS
    'Whether the publication has had all its changes since it was added.';
COMMENT ON COLUMN pgtrickle.pgt_cdc_status.confirmed_lsn IS 'How far the WAL is decoded.';
COMMENT ON COLUMN pgtrickle.pgt_cdc_status.tracked_by_pgt_ids IS 'The stream tables that read its changes.';
COMMENT ON COLUMN pgtrickle.pgt_cdc_status.last_consumed_lsn IS 'Up to where all of them have applied its changes.';
COMMENT ON COLUMN pgtrickle.pgt_stream_table_sources.columns_used IS
    'The columns that the query uses. Changes of others are not captured.';
COMMENT ON COLUMN pgtrickle.pgt_stream_table_sources.cdc_mode IS
    'How it is captured; NULL: not at all, as the table is computed in full.';
COMMENT ON COLUMN pgtrickle.pgt_stream_table_sources.source_type IS
    'TABLE, PARTITIONED_TABLE, FOREIGN_TABLE, VIEW, MATERIALIZED_VIEW or STREAM_TABLE.';
COMMENT ON COLUMN pgtrickle.pgt_lineage.source_type IS
    'TABLE, PARTITIONED_TABLE, FOREIGN_TABLE, VIEW, MATERIALIZED_VIEW or STREAM_TABLE.';
COMMENT ON COLUMN pgtrickle.pgt_lineage.is_direct IS
    'Whether its own query reads the source, and not only those of stream tables that it reads.';
COMMENT ON COLUMN pgtrickle.pgt_lineage.columns_used IS
    'The columns that its own query uses; NULL if it does not read the source itself.';
COMMENT ON COLUMN pgtrickle.pgt_requests.kind IS 'create, alter, drop, refresh or repair.';
COMMENT ON COLUMN pgtrickle.pgt_requests.args IS 'What was asked for.';
COMMENT ON COLUMN pgtrickle.pgt_requests.state IS 'PENDING, RUNNING, DONE or FAILED.';
COMMENT ON COLUMN pgtrickle.pgt_requests.result IS 'What was done, once it is DONE.';
COMMENT ON COLUMN pgtrickle.pgt_requests.hint IS 'What to do about the error.';
COMMENT ON COLUMN pgtrickle.pgt_refresh_history.action IS 'NO_DATA, FULL, DIFFERENTIAL, REINITIALIZE or SKIP.';
COMMENT ON COLUMN pgtrickle.pgt_refresh_history.initiated_by IS 'SCHEDULER, MANUAL or INITIAL.';
COMMENT ON COLUMN pgtrickle.pgt_refresh_history.reason IS 'Why it was done so.';
COMMENT ON COLUMN pgtrickle.pgt_refresh_history.changes_read IS 'Changes of sources that it read.';
COMMENT ON COLUMN pgtrickle.pgt_refresh_history.data_timestamp IS 'The moment that the table shows since then.';
COMMENT ON COLUMN pgtrickle.pgt_refresh_history.phases IS 'Milliseconds of each phase.';
