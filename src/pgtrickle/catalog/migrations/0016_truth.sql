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

-- The full name of a stream table that the caller may have refreshed, suspended or resumed; `path` is where it is looked
-- for without a schema. The caller need not be allowed to use the schema that it is in.
CREATE FUNCTION pgtrickle.check_steered_name(name text, path name[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[] := parse_ident(name);
    found record;
BEGIN
    SELECT c.oid, c.relowner, format('%I.%I', n.nspname, c.relname) AS full_name INTO found
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relname = parts[cardinality(parts)]
      AND CASE cardinality(parts) WHEN 1 THEN n.nspname = ANY (path) ELSE n.nspname = parts[1] END
    ORDER BY array_position(path, n.nspname) LIMIT 1;
    PERFORM pgtrickle.id_of_relation(found.oid, name);
    IF NOT pg_has_role(found.relowner, 'USAGE')
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

CREATE OR REPLACE FUNCTION pgtrickle.why_waiting(request_id bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN r.state <> 'PENDING' THEN NULL
        WHEN NOT EXISTS (SELECT FROM pgtrickle.serving_roles()) THEN 'no service runs in this database'
        WHEN o.oid IS NOT NULL AND NOT pgtrickle.is_served(o.oid)
             AND NOT (c.oid IS NOT NULL AND pgtrickle.steers(o.oid, r.kind, r.args))
            THEN format('no running service serves the role %s', r.requested_by)
        WHEN c.relowner IS NOT NULL AND NOT pgtrickle.is_served(c.relowner)
            THEN format('no running service serves the role %s, which owns the table', pg_get_userbyid(c.relowner)) END
    FROM pgtrickle.pgt_requests AS r
    LEFT JOIN pg_roles AS o ON o.rolname = r.requested_by
    LEFT JOIN pgtrickle.pgt_present AS p ON r.kind <> 'create' AND format('%I.%I', p.pgt_schema, p.pgt_name) = r.args ->> 'name'
    LEFT JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)
    LEFT JOIN pg_class AS c ON c.oid = t.pgt_relid
    WHERE r.id = request_id
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
       d.error AS decoder_error
FROM pgtrickle.pgt_change_tracking AS k
JOIN pgtrickle.pgt_capture_objects AS o ON o.source_relid = k.source_relid
LEFT JOIN pg_class AS c ON c.oid = k.source_relid
LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pgtrickle.pgt_slot AS s ON true
LEFT JOIN pgtrickle.pgt_decoder AS d ON d.slot_name = pgtrickle.slot_name()
LEFT JOIN pgtrickle.pgt_draining AS g ON g.source_relid = k.source_relid
CROSS JOIN LATERAL (SELECT count(*) AS writing FROM pg_trigger WHERE tgfoid = o.function_oid AND tgenabled = 'A') AS t
CROSS JOIN LATERAL pgtrickle.wal_eligibility(
    k.source_relid, k.columns, (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgtrickle'),
    pgtrickle.setting('auto_replica_identity', 'off')::boolean) AS e;

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

-- Health --------------------------------------------------------------------------------------------------------------

-- One row for each check that is passed, and one for each problem where it is not. Severity OK, WARN or ERROR.
-- Settings are those of the database or role. A cron schedule says nothing about how old data may be.
CREATE OR REPLACE FUNCTION pgtrickle.health_check()
RETURNS TABLE (check_name text, severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
    WITH streams AS (
        SELECT format('%I.%I', p.pgt_schema, p.pgt_name) AS name, p.status, p.last_error, t.schedule,
               t.consecutive_errors, t.is_populated, t.needs_reinit, t.reinit_reason, now() - t.data_timestamp AS age,
               pgtrickle.schedule_period(t.schedule) AS period
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
        (2, 'loops', coalesce((SELECT string_agg(format('%s is %s since %s', o.loop, o.busy_with,
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
