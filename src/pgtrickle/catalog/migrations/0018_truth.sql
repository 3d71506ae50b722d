-- What can be read tells the truth, and tells it to all who may ask: nothing here looks up a name in a schema that only
-- the owner of the catalog may use, and derived facts are views, which cannot disagree with what they are derived from.

-- Who may read, and who may steer --------------------------------------------------------------------------------------

-- Whether a role may ask for this on a table that is not its own: members of pgtrickle_admin may have a table refreshed,
-- suspended, resumed or given another schedule. All of that is done by a service of the table's owner, and runs no code
-- that it would not run anyway. Queries, modes and drops stay with the owner.
CREATE FUNCTION pgtrickle.steers(role oid, kind text, args jsonb) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pg_roles AS g WHERE g.rolname = 'pgtrickle_admin' AND pg_has_role(role, g.oid, 'USAGE'))
       AND CASE kind WHEN 'refresh' THEN args - ARRAY['name', 'full'] = '{}'
                     WHEN 'alter' THEN args - ARRAY['name', 'status', 'schedule'] = '{}'
                     ELSE false END
$$;
COMMENT ON FUNCTION pgtrickle.steers(oid, text, jsonb) IS
    'Whether a role may make this request about a stream table of somebody else.';

-- The id of the stream table that has the name now, along `path` where it comes without a schema. By the system catalogs:
-- who may ask about a stream table need not be allowed to use the schema that it is in.
CREATE FUNCTION pgtrickle.id_of_name(name text, path name[]) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[];
    relation oid;
BEGIN
    BEGIN
        parts := parse_ident(name);
    EXCEPTION WHEN invalid_parameter_value THEN
        parts := NULL;
    END;
    SELECT c.oid INTO relation
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relname = parts[cardinality(parts)]
      AND CASE cardinality(parts) WHEN 1 THEN n.nspname = ANY (path) ELSE n.nspname = parts[cardinality(parts) - 1] END
    ORDER BY array_position(path, n.nspname) LIMIT 1;
    RETURN pgtrickle.id_of_relation(relation, name);
END
$$;

CREATE OR REPLACE FUNCTION pgtrickle.pgt_id_of(name text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN pgtrickle.id_of_name(name, pg_catalog.current_schemas(true));
END
$$;

-- The full name of a stream table that the caller may have refreshed, suspended or resumed; `path` is where it is looked
-- for without a schema. The caller need not be allowed to use the schema that it is in.
CREATE FUNCTION pgtrickle.check_steered_name(name text, path name[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found record;
BEGIN
    SELECT c.relowner, format('%I.%I', p.pgt_schema, p.pgt_name) AS full_name INTO found
    FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)
    LEFT JOIN pg_class AS c ON c.oid = t.pgt_relid
    WHERE t.pgt_id = pgtrickle.id_of_name(name, path);
    IF NOT coalesce(pg_has_role(found.relowner, 'USAGE'), false)
       AND NOT pgtrickle.steers((SELECT r.oid FROM pg_roles AS r WHERE r.rolname = current_user), 'refresh', '{}') THEN
        PERFORM pgtrickle.refuse('PT402', format('this role does not own %s', found.full_name),
                                 'Only its owner, or a member of pgtrickle_admin, may pause or resume a stream table.');
    END IF;
    RETURN found.full_name;
END
$$;

CREATE FUNCTION pgtrickle.pause_stream_table(name text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN pgtrickle.add_request('alter', pg_catalog.jsonb_build_object(
        'name', pgtrickle.check_steered_name(name, pg_catalog.current_schemas(true)), 'status', 'SUSPENDED'));
END
$$;
COMMENT ON FUNCTION pgtrickle.pause_stream_table(text) IS
    'Asks the service to leave a stream table as it is until it is resumed; returns the id of the request.';

CREATE FUNCTION pgtrickle.resume_stream_table(name text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN pgtrickle.add_request('alter', pg_catalog.jsonb_build_object(
        'name', pgtrickle.check_steered_name(name, pg_catalog.current_schemas(true)), 'status', 'ACTIVE'));
END
$$;
COMMENT ON FUNCTION pgtrickle.resume_stream_table(text) IS
    'Asks the service to refresh a stream table again that was paused, or suspended after failures; returns the id of the'
    ' request.';

-- With `full` it is computed from scratch: also one that was never filled.
DROP FUNCTION pgtrickle.refresh_stream_table(text);
CREATE FUNCTION pgtrickle.refresh_stream_table(name text, "full" boolean DEFAULT false)
RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN pgtrickle.add_request('refresh', pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object(
        'name', pgtrickle.check_steered_name(name, pg_catalog.current_schemas(true)),
        'full', CASE WHEN "full" THEN true END)));
END
$$;

-- Why a request waits, for people; NULL if it does not, or a service is about to take it.
CREATE OR REPLACE FUNCTION pgtrickle.why_waiting(request_id bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN r.state <> 'PENDING' THEN NULL
        WHEN NOT EXISTS (SELECT FROM pgtrickle.serving_roles()) THEN 'no service runs in this database'
        WHEN o.oid IS NOT NULL AND NOT pgtrickle.is_served(o.oid)
             AND NOT (c.oid IS NOT NULL AND pgtrickle.steers(o.oid, r.kind, r.args))
            THEN format('no running service serves the role %s', r.requested_by)
        WHEN c.relowner IS NOT NULL AND NOT pgtrickle.is_served(c.relowner)
            THEN format('no running service serves the role %s, which owns the table', pg_get_userbyid(c.relowner))
        WHEN o.oid IS NOT NULL AND NOT pgtrickle.is_taken(o.oid, c.relowner)
             AND NOT (c.oid IS NOT NULL AND pgtrickle.steers(o.oid, r.kind, r.args))
            THEN format('no running service serves both the role %s and the role %s, which owns the table',
                        r.requested_by, pg_get_userbyid(c.relowner)) END
    FROM pgtrickle.pgt_requests AS r
    LEFT JOIN pg_roles AS o ON o.rolname = r.requested_by
    LEFT JOIN pgtrickle.pgt_present AS p ON r.kind <> 'create' AND format('%I.%I', p.pgt_schema, p.pgt_name) = r.args ->> 'name'
    LEFT JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)
    LEFT JOIN pg_class AS c ON c.oid = t.pgt_relid
    WHERE r.id = request_id
$$;

-- The options of a stream table: `inherit` gives one back to the setting.
CREATE OR REPLACE FUNCTION pgtrickle.check_options(
    schedule text, refresh_mode text, diamond_consistency text, diamond_schedule_policy text, cdc_mode text)
RETURNS jsonb LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle.check_schedule(schedule);
    IF upper(btrim(refresh_mode)) = 'IMMEDIATE' AND lower(btrim(cdc_mode)) = 'wal' THEN
        PERFORM pgtrickle.refuse('PT009', 'IMMEDIATE refresh does not go with capture from the WAL',
                                 'Leave cdc_mode out: IMMEDIATE has triggers of its own.');
    ELSIF upper(btrim(refresh_mode)) = 'IMMEDIATE' THEN
        PERFORM pgtrickle.refuse('PT290', 'IMMEDIATE refresh is not available yet', 'Use DIFFERENTIAL.');
    END IF;
    RETURN jsonb_strip_nulls(jsonb_build_object(
        'schedule', btrim(schedule),
        'refresh_mode', pgtrickle.check_choice(
            'refresh mode', refresh_mode, 'PT006', 'AUTO', 'FULL', 'DIFFERENTIAL', 'IMMEDIATE'),
        'diamond_consistency', pgtrickle.check_choice(
            'diamond consistency', diamond_consistency, 'PT013', 'atomic', 'none', 'inherit'),
        'diamond_schedule_policy', pgtrickle.check_choice(
            'diamond schedule policy', diamond_schedule_policy, 'PT014', 'fastest', 'slowest', 'inherit'),
        'cdc_mode', pgtrickle.check_choice('capture mode', cdc_mode, 'PT007', 'auto', 'trigger', 'wal', 'inherit')));
END
$$;

-- The loops of a service ------------------------------------------------------------------------------------------------

ALTER TABLE pgtrickle.pgt_leases ADD COLUMN loops jsonb NOT NULL DEFAULT '[]';
COMMENT ON COLUMN pgtrickle.pgt_leases.loops IS
    'What each loop of the service was at as of the heartbeat; pgt_service_loops reads it.';

CREATE VIEW pgtrickle.pgt_service_loops AS
SELECT l.role_name, l.instance, l.heartbeat_at, e.loop,
       l.heartbeat_at - e.woken_s * interval '1 s' AS last_wake,
       e.woken_s AS asleep_s, e.interval_s, e.busy_with,
       l.heartbeat_at - e.busy_s * interval '1 s' AS busy_since,
       e.busy_s, e.backend_pids, e.paused
FROM pgtrickle.pgt_leases AS l
CROSS JOIN LATERAL jsonb_to_recordset(l.loops) AS e(
    loop text, woken_s double precision, interval_s double precision, busy_with text, busy_s double precision,
    backend_pids integer[], paused boolean)
WHERE l.purpose = 'service' AND l.heartbeat_at IS NOT NULL;
COMMENT ON VIEW pgtrickle.pgt_service_loops IS
    'The loops of each service that leads: when each last woke, and what keeps it busy, as of the last heartbeat.';

CREATE OR REPLACE VIEW pgtrickle.pgt_leaders AS
SELECT l.role_name, l.purpose, l.epoch, l.instance, l.backend_pid, l.taken_at, l.obstacle,
       clock_timestamp() - l.heartbeat_at AS heartbeat_age,
       l.heartbeat_at IS NOT NULL AND EXISTS (
           SELECT FROM pg_catalog.pg_stat_activity AS a
           WHERE a.pid = l.backend_pid AND coalesce(a.backend_start = l.backend_start, true)
       ) AS connected,
       coalesce(l.heartbeat_at > clock_timestamp()
           - pgtrickle.setting('lease_timeout_ms', '15000')::double precision * interval '1 ms', false) AS beats,
       (SELECT o.last_wake FROM pgtrickle.pgt_service_loops AS o
        WHERE o.role_name = l.role_name AND l.purpose = 'service' AND o.loop = 'refreshes') AS last_scheduler_wake
FROM pgtrickle.pgt_leases AS l;

-- What is wrong with the loops of a service that leads. One that has not woken for 30 of its intervals, and at least half
-- a minute, and does not say what it is at, is stuck. One that says so may be at something long: that is told after five
-- minutes, and sooner where one of its sessions waits for a lock.
CREATE FUNCTION pgtrickle.loop_problems() RETURNS TABLE (severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN o.asleep_s > greatest(120 * o.interval_s, 120) THEN 'ERROR' ELSE 'WARN' END,
           format('the loop %s of the service of %s is stuck: it last woke at %s, and should each %s s: look at its log,'
                  ' and start it again', o.loop, o.role_name, date_trunc('second', o.last_wake),
                  round(o.interval_s::numeric, 1))
    FROM pgtrickle.pgt_service_loops AS o JOIN pgtrickle.pgt_leaders AS l USING (role_name)
    WHERE l.purpose = 'service' AND l.connected AND l.beats
      AND o.busy_with IS NULL AND o.asleep_s > greatest(30 * o.interval_s, 30)
    UNION ALL
    SELECT 'WARN',
           format('the loop %s of the service of %s is at this since %s: %s%s', o.loop, o.role_name,
                  date_trunc('second', o.busy_since), o.busy_with,
                  CASE WHEN w.waits THEN '; it waits for a lock, see pg_stat_activity'
                       ELSE '; it may take long, or hang, see pg_stat_activity' END)
    FROM pgtrickle.pgt_service_loops AS o JOIN pgtrickle.pgt_leaders AS l USING (role_name)
    CROSS JOIN LATERAL (SELECT EXISTS (
        SELECT FROM pg_stat_activity AS a WHERE a.pid = ANY (o.backend_pids) AND a.wait_event_type = 'Lock') AS waits) AS w
    WHERE l.purpose = 'service' AND l.connected AND l.beats
      AND o.busy_with IS NOT NULL AND o.busy_s > CASE WHEN w.waits THEN 30 ELSE 300 END
$$;

-- Whether refreshes are paused, as the service does and as the setting says: it reads its settings when it starts and on
-- SIGHUP, and what was under way by then goes on to its end.
CREATE FUNCTION pgtrickle.pause_problems() RETURNS TABLE (severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH asked AS (
        SELECT lower(pgtrickle.setting('enabled', 'on')) IN ('false', 'off', 'no', '0', 'f', 'n') AS off
    ), leaders AS (
        SELECT o.role_name, o.paused, o.busy_with, o.busy_since
        FROM pgtrickle.pgt_service_loops AS o JOIN pgtrickle.pgt_leaders AS l USING (role_name)
        WHERE l.purpose = 'service' AND l.connected AND l.beats AND o.loop = 'refreshes'
    )
    SELECT 'WARN', CASE
        WHEN g.role_name IS NULL THEN 'refreshes will be paused when a service starts: pg_trickle.enabled is off'
        WHEN g.paused THEN format('refreshes are paused in the service of %s: it read that enabled is off', g.role_name)
        WHEN g.busy_with IS NOT NULL THEN
            format('pg_trickle.enabled is off, and the service of %s still is %s, since %s', g.role_name, g.busy_with,
                   date_trunc('second', g.busy_since))
        ELSE format('pg_trickle.enabled is off, and the service of %s has not read it yet: send it SIGHUP', g.role_name) END
    FROM asked AS a LEFT JOIN leaders AS g ON true WHERE a.off OR g.paused
$$;

-- The buffer of a source, and the function that its triggers call, by the system catalogs: to look a name up in a schema
-- one needs the right to use it, which only the owner of the catalog has.
CREATE VIEW pgtrickle.pgt_capture_objects AS
SELECT k.source_relid,
       (SELECT c.oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = 'pgtrickle_changes' AND c.relname = 'changes_' || k.source_relid::text) AS buffer_relid,
       (SELECT p.oid FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = 'pgtrickle_changes' AND p.proname = 'capture_' || k.source_relid::text) AS function_oid
FROM pgtrickle.pgt_change_tracking AS k;
COMMENT ON VIEW pgtrickle.pgt_capture_objects IS
    'The change buffer and the trigger function of each captured source, by oid; NULL where one is missing.';

-- What the catalog lacked ------------------------------------------------------------------------------------------------

-- Nothing is captured for a table that is computed in full each time.
ALTER TABLE pgtrickle.pgt_dependencies ALTER COLUMN cdc_mode DROP NOT NULL;
COMMENT ON COLUMN pgtrickle.pgt_dependencies.cdc_mode IS
    'How changes of the source come to this stream table; NULL: they do not, since it is computed in full each time.';
UPDATE pgtrickle.pgt_dependencies AS d
SET cdc_mode = NULL, slot_name = NULL, decoder_confirmed_lsn = NULL, transition_started_at = NULL
FROM pgtrickle.pgt_stream_tables AS t WHERE t.pgt_id = d.pgt_id AND t.effective_mode = 'FULL';

CREATE FUNCTION pgtrickle.source_type(source_relid oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN EXISTS (SELECT FROM pgtrickle.pgt_stream_tables AS t WHERE t.pgt_relid = c.oid) THEN 'STREAM_TABLE'
                ELSE CASE c.relkind WHEN 'r' THEN 'TABLE' WHEN 'p' THEN 'PARTITIONED_TABLE' WHEN 'f' THEN 'FOREIGN_TABLE'
                                    WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED_VIEW' ELSE 'OTHER' END END
    FROM pg_class AS c WHERE c.oid = source_relid
$$;
COMMENT ON FUNCTION pgtrickle.source_type(oid) IS
    'What a source is: TABLE, PARTITIONED_TABLE, FOREIGN_TABLE, VIEW, MATERIALIZED_VIEW or STREAM_TABLE; NULL: it is gone.';

-- How a stream table is maintained, in words; noted by the program as it defines the table.
ALTER TABLE pgtrickle.pgt_stream_tables ADD COLUMN operator_tree text, ADD COLUMN delta_plan text;
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.operator_tree IS
    'The operators that the query was read as; NULL for FULL tables, and for those defined before there was this column.';
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.delta_plan IS
    'How the change of the result follows from changes of every source.';

-- Circles of stream tables that read each other: each is known by the least id in it.
CREATE VIEW pgtrickle.pgt_circles AS
WITH RECURSIVE reads AS (
    SELECT d.pgt_id AS reader, t.pgt_id AS source
    FROM pgtrickle.pgt_dependencies AS d JOIN pgtrickle.pgt_stream_tables AS t ON t.pgt_relid = d.source_relid
), reached AS (
    SELECT r.reader, r.source FROM reads AS r
    UNION
    SELECT a.reader, r.source FROM reached AS a JOIN reads AS r ON r.reader = a.source
)
SELECT a.reader AS pgt_id, min(a.source) AS circle_id
FROM reached AS a JOIN reached AS b ON b.reader = a.source AND b.source = a.reader
GROUP BY a.reader;
COMMENT ON VIEW pgtrickle.pgt_circles IS 'The stream tables that read themselves, directly or through others.';

-- When the next run of a table with a cron schedule is: the service works it out, PostgreSQL cannot.
CREATE TABLE pgtrickle.pgt_cron_runs (
    pgt_id    bigint PRIMARY KEY REFERENCES pgtrickle.pgt_stream_tables ON DELETE CASCADE,
    schedule  text NOT NULL,
    next_run  timestamptz NOT NULL
);

-- The length of a schedule, kept: it is asked for of all tables in each round of the service.
ALTER TABLE pgtrickle.pgt_stream_tables
    ADD COLUMN schedule_period interval GENERATED ALWAYS AS (pgtrickle.schedule_period(schedule)) STORED;
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.schedule_period IS 'The length of its schedule; NULL: it is no duration.';

-- When a stream table is due, and until when its data is as fresh as its schedule asks for. A time that has passed: it is
-- overdue. NULL: it has no schedule of its own, is suspended, or was never filled; of a cron schedule only the first. The
-- slots that time is cut into are those of scheduler/due.py: up to 48 s as given, else 48 s times a power of two.
CREATE VIEW pgtrickle.pgt_next_runs AS
SELECT t.pgt_id,
       CASE WHEN t.status = 'SUSPENDED' OR NOT t.is_populated THEN NULL
            WHEN t.schedule_period IS NOT NULL THEN date_bin(p.slot, t.data_timestamp, '1970-01-01 00:00:00+00') + p.slot
            ELSE c.next_run END AS next_run,
       t.data_timestamp + t.schedule_period AS freshness_deadline
FROM pgtrickle.pgt_stream_tables AS t
CROSS JOIN (SELECT pgtrickle.setting('min_schedule_seconds', '1')::double precision AS least) AS m
CROSS JOIN LATERAL (SELECT greatest(extract(epoch FROM t.schedule_period)::double precision, m.least) AS secs) AS s
CROSS JOIN LATERAL (
    SELECT make_interval(secs => CASE WHEN s.secs < 48 THEN s.secs ELSE
               48 * 2 ^ (length(ltrim(floor(s.secs / 48)::integer::bit(32)::text, '0')) - 1) END) AS slot
) AS p
LEFT JOIN pgtrickle.pgt_cron_runs AS c ON c.pgt_id = t.pgt_id AND c.schedule = t.schedule;

ALTER TABLE pgtrickle.pgt_refresh_history ADD COLUMN freshness_deadline timestamptz;
COMMENT ON COLUMN pgtrickle.pgt_refresh_history.freshness_deadline IS
    'Until when the data from before this refresh was as fresh as the schedule asks for; NULL: it has no duration, or none was there.';

-- How far the changes of a source were consumed, noted as they leave its buffer.
CREATE TABLE pgtrickle.pgt_consumed (
    source_relid       oid PRIMARY KEY,
    last_consumed_lsn  pg_lsn NOT NULL
);
COMMENT ON COLUMN pgtrickle.pgt_consumed.last_consumed_lsn IS
    'The position in the WAL of the last change that every stream table has applied.';

CREATE OR REPLACE VIEW pgtrickle.stream_tables_info AS
SELECT t.pgt_id, t.pgt_relid, p.pgt_schema, p.pgt_name, t.defining_query, t.schedule, t.refresh_mode, t.effective_mode,
       t.mode_reason, p.status, t.is_populated, t.needs_reinit, t.reinit_reason, t.data_timestamp,
       now() - t.data_timestamp AS staleness, t.last_refresh_at, t.consecutive_errors, p.last_error, t.created_at,
       t.updated_at, p.owner, n.next_run, n.freshness_deadline, c.circle_id
FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)
JOIN pgtrickle.pgt_next_runs AS n USING (pgt_id)
LEFT JOIN pgtrickle.pgt_circles AS c USING (pgt_id);

CREATE OR REPLACE VIEW pgtrickle.pgt_stream_table_sources AS
SELECT p.pgt_schema, p.pgt_name, coalesce(n.nspname::text COLLATE "default", d.source_schema) AS source_schema,
       coalesce(c.relname::text COLLATE "default", d.source_name) AS source_name, d.source_relid, d.columns_used, d.cdc_mode,
       u.pgt_id IS NOT NULL AS source_is_stream_table, pgtrickle.source_type(d.source_relid) AS source_type
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

DROP FUNCTION pgtrickle.pgt_status();
CREATE FUNCTION pgtrickle.pgt_status()
RETURNS TABLE (name text, status text, refresh_mode text, effective_mode text, is_populated boolean,
               consecutive_errors integer, schedule text, data_timestamp timestamptz, staleness interval,
               next_run timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('%I.%I', p.pgt_schema, p.pgt_name), p.status, t.refresh_mode, t.effective_mode, t.is_populated,
           t.consecutive_errors, t.schedule, t.data_timestamp, now() - t.data_timestamp, n.next_run
    FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)
    JOIN pgtrickle.pgt_next_runs AS n USING (pgt_id)
    ORDER BY p.pgt_schema, p.pgt_name
$$;

-- Every stream table that no other reads, with what it reads below it, and what that reads, and so on. Of a circle that no
-- table outside it reads, the first one; where the way comes back to a table on it, that is told, and it ends.
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
              FROM pgtrickle.pgt_dependencies AS d LEFT JOIN pg_class AS c ON c.oid = d.source_relid
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

-- What the catalog and PostgreSQL know of a stream table, a property a row. What a refresh would read of the changes that
-- wait is worked out by the program: `pgtrickle explain` shows that too.
CREATE OR REPLACE FUNCTION pgtrickle.explain_full_name(name text) RETURNS TABLE (property text, value text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT p.property, p.value
    FROM pgtrickle.pgt_stream_tables AS t
    JOIN pgtrickle.pgt_present AS h USING (pgt_id)
    JOIN pgtrickle.pgt_next_runs AS n USING (pgt_id)
    LEFT JOIN pgtrickle.pgt_circles AS c USING (pgt_id)
    LEFT JOIN pg_class AS k ON h.is_there AND k.oid = t.pgt_relid
    CROSS JOIN LATERAL (
        SELECT string_agg(format('%I.%I (%s) %s', s.source_schema, s.source_name, array_to_string(s.columns_used, ', '),
                                 coalesce('by ' || s.cdc_mode, 'read in full')),
                          E'\n' ORDER BY s.source_schema, s.source_name) AS sources,
               string_agg(format('%I.%I about %s', s.source_schema, s.source_name,
                                 pg_stat_get_live_tuples(o.buffer_relid)),
                          E'\n' ORDER BY s.source_schema, s.source_name)
                   FILTER (WHERE s.cdc_mode IS NOT NULL AND o.buffer_relid IS NOT NULL) AS waiting
        FROM pgtrickle.pgt_dependencies AS d
        JOIN pgtrickle.pgt_stream_table_sources AS s
             ON s.source_relid = d.source_relid AND (s.pgt_schema, s.pgt_name) = (h.pgt_schema, h.pgt_name)
        LEFT JOIN pgtrickle.pgt_capture_objects AS o ON o.source_relid = d.source_relid
        WHERE d.pgt_id = t.pgt_id
    ) AS d
    CROSS JOIN LATERAL (
        SELECT string_agg(format('%I.%I', u.pgt_schema, u.pgt_name), ', ' ORDER BY u.pgt_schema, u.pgt_name) AS readers
        FROM pgtrickle.pgt_dependencies AS r JOIN pgtrickle.pgt_present AS u USING (pgt_id)
        WHERE r.source_relid = t.pgt_relid
    ) AS r
    CROSS JOIN LATERAL (
        SELECT string_agg(format('%I.%I, %s', s.nspname, s.relname, pg_size_pretty(pg_total_relation_size(s.oid))),
                          E'\n' ORDER BY s.relname) AS kept
        FROM (SELECT i.oid, m.nspname, i.relname FROM pg_class AS i JOIN pg_namespace AS m ON m.oid = i.relnamespace
              WHERE m.nspname = 'pgtrickle_state' AND i.relkind = 'r' AND starts_with(i.relname, format('s_%s_', t.pgt_id))) AS s
    ) AS s
    CROSS JOIN LATERAL (VALUES
        (1, 'name', format('%I.%I', h.pgt_schema, h.pgt_name)),
        (2, 'defining query', t.defining_query),
        (3, 'as PostgreSQL reads it', t.normalized_query),
        (4, 'refresh mode', t.refresh_mode),
        (5, 'effective mode', t.effective_mode || coalesce(': ' || t.mode_reason, '')),
        (6, 'schedule', coalesce(t.schedule, 'calculated')),
        (7, 'status', h.status || coalesce(': ' || h.last_error, '')),
        (8, 'sources', d.sources),
        (9, 'read by', r.readers),
        (10, 'data of', coalesce(t.data_timestamp::text, 'not populated')),
        (11, 'next run', n.next_run::text),
        (12, 'will be computed anew', CASE WHEN t.needs_reinit THEN coalesce(t.reinit_reason, 'yes') END),
        (13, 'diamond group', (SELECT string_agg(g.group_id::text, ', ') FROM pgtrickle.pgt_diamonds AS g
                               WHERE t.pgt_id = ANY (g.members))),
        (14, 'circle', (SELECT string_agg(pgtrickle.full_name_of(o.pgt_id), ', ' ORDER BY o.pgt_id)
                        FROM pgtrickle.pgt_circles AS o WHERE o.circle_id = c.circle_id)),
        (15, 'operators', CASE WHEN t.effective_mode <> 'FULL' THEN coalesce(t.operator_tree,
                'not recorded: the table was defined by an older version; `pgtrickle explain` shows them') END),
        (16, 'delta plan', t.delta_plan),
        (17, 'changes waiting', d.waiting),
        (18, 'state', s.kept),
        (19, 'table', format('owned by %s, about %s rows, %s', h.owner, greatest(k.reltuples, 0)::bigint,
                             pg_size_pretty(pg_total_relation_size(k.oid))))
    ) AS p(place, property, value)
    WHERE t.pgt_id = pgtrickle.id_of_name($1, '{}') AND p.value IS NOT NULL
    ORDER BY p.place
$$;

-- Eligibility is that of the role that owns the catalog, under which the service runs.
CREATE OR REPLACE VIEW pgtrickle.pgt_cdc_status AS
SELECT CASE WHEN c.oid IS NULL THEN k.source_relid::text ELSE pg_catalog.format('%I.%I', n.nspname, c.relname) END AS source_table,
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
LEFT JOIN pg_class AS c ON c.oid = k.source_relid
LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pgtrickle.pgt_slot AS s ON true
LEFT JOIN pgtrickle.pgt_decoder AS d ON d.slot_name = pgtrickle.slot_name()
LEFT JOIN pgtrickle.pgt_draining AS g ON g.source_relid = k.source_relid
LEFT JOIN pgtrickle.pgt_consumed AS u ON u.source_relid = k.source_relid
CROSS JOIN LATERAL (SELECT count(*) AS writing FROM pg_trigger WHERE tgfoid = o.function_oid AND tgenabled = 'A') AS t
CROSS JOIN LATERAL pgtrickle.wal_eligibility(
    k.source_relid, k.columns, (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgtrickle'),
    pgtrickle.setting('auto_replica_identity', 'off')::boolean) AS e;

-- Health --------------------------------------------------------------------------------------------------------------

-- One row for each check that is passed, and one for each problem where it is not. Severity OK, WARN or ERROR.
-- Settings are those of the database or role. A cron schedule says nothing about how old data may be.
CREATE OR REPLACE FUNCTION pgtrickle.health_check()
RETURNS TABLE (check_name text, severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
    WITH streams AS (
        SELECT format('%I.%I', p.pgt_schema, p.pgt_name) AS name, p.status, p.last_error, t.schedule,
               t.consecutive_errors, t.is_populated, t.needs_reinit, t.reinit_reason, now() - t.data_timestamp AS age,
               t.schedule_period AS period
        FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)
    ), problems(check_name, severity, detail) AS (
        SELECT 'service', l.severity, l.detail FROM pgtrickle.lease_problems() AS l
        UNION ALL
        SELECT 'service', 'ERROR',
               format('no running service serves the role %s, which owns %s: pgtrickle run with its login', u.owner, u.name)
        FROM pgtrickle.unserved_tables() AS u
        UNION ALL
        SELECT 'service', p.severity, p.detail FROM pgtrickle.pause_problems() AS p
        UNION ALL
        SELECT 'loops', l.severity, l.detail FROM pgtrickle.loop_problems() AS l
        UNION ALL
        SELECT 'stream_tables', CASE WHEN s.last_error IS NULL THEN 'WARN' ELSE 'ERROR' END,
               format('%s is in state %s', s.name, s.status) || coalesce(': ' || s.last_error, '')
        FROM streams AS s WHERE s.status IN ('ERROR', 'SUSPENDED') OR s.consecutive_errors > 0
        UNION ALL
        SELECT 'stream_tables', u.severity, u.detail FROM pgtrickle.unfilled_tables() AS u
        UNION ALL
        SELECT 'staleness', 'ERROR', format('%s is %s old, and should be refreshed every %s', s.name,
                                            date_trunc('second', s.age), s.schedule)
        FROM streams AS s
        WHERE s.is_populated AND s.status <> 'SUSPENDED' AND s.age > 2 * s.period + interval '10 s'
        UNION ALL
        SELECT 'reinitialization', 'WARN', format('%s will be computed anew: %s', s.name, s.reinit_reason)
        FROM streams AS s WHERE s.needs_reinit
        UNION ALL
        SELECT 'capture', CASE WHEN h.alert = 'slot_lag_warning' THEN 'WARN' ELSE 'ERROR' END,
               format('%s (%s): %s', h.source_table, h.cdc_mode, h.alert)
        FROM pgtrickle.check_cdc_health() AS h WHERE h.alert IS NOT NULL
        UNION ALL
        SELECT 'slot', 'WARN', format('%s holds back %s of WAL, and no source counts on it: a service drops it',
                                      h.slot_name, pg_size_pretty(h.retained_wal_bytes))
        FROM pgtrickle.slot_health() AS h WHERE h.sources = 0
        UNION ALL
        SELECT 'buffers', 'WARN', format('about %s changes of %s wait to be applied', b.waiting, b.source)
        FROM (
            SELECT pg_stat_get_live_tuples(o.buffer_relid) AS waiting, o.source_relid::regclass AS source
            FROM pgtrickle.pgt_capture_objects AS o
        ) AS b
        WHERE b.waiting > pgtrickle.setting('buffer_growth_warning_rows', '1000000')::bigint
    )
    SELECT c.name, coalesce(p.severity, 'OK'), coalesce(p.detail, c.passed)
    FROM (VALUES
        (1, 'service', coalesce(pgtrickle.who_leads(), 'there are no stream tables to serve')),
        (2, 'loops', coalesce((SELECT string_agg(format('%s: %s, since %s', o.loop, o.busy_with,
                                                        date_trunc('second', o.busy_since)), '; ' ORDER BY o.loop)
                               FROM pgtrickle.pgt_service_loops AS o WHERE o.busy_with IS NOT NULL),
                              'no loop of a service is stuck')),
        (3, 'stream_tables', 'none has failed'),
        (4, 'staleness', 'all are as fresh as their schedules ask for'),
        (5, 'reinitialization', 'none has to be computed anew'),
        (6, 'capture', 'all sources are captured'),
        (7, 'slot', 'no replication slot is held for nothing'),
        (8, 'buffers', 'none is full of changes')
    ) AS c(place, name, passed)
    LEFT JOIN problems AS p ON p.check_name = c.name
    ORDER BY c.place, p.detail
$$;
