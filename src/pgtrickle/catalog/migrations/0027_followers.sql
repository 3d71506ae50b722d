-- Followers: readers outside of the database that keep up with a stream table by its changes, such as a stream of Spark.

CREATE TABLE pgtrickle.pgt_followers (
    follower_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name           text NOT NULL UNIQUE,
    pgt_id         bigint NOT NULL REFERENCES pgtrickle.pgt_stream_tables ON DELETE CASCADE,
    columns        text[] NOT NULL,
    has_applied    pg_snapshot NOT NULL DEFAULT pg_current_snapshot(),
    registered_by  name NOT NULL DEFAULT session_user,
    registered_at  timestamptz NOT NULL DEFAULT now(),
    seen_at        timestamptz NOT NULL DEFAULT now(),
    expires_after  interval NOT NULL CHECK (expires_after > interval '0'),
    expired_at     timestamptz
);
CREATE INDEX ON pgtrickle.pgt_followers (pgt_id);
COMMENT ON TABLE pgtrickle.pgt_followers IS
    'Readers outside of the database that follow a stream table by its changes. Buffers keep what they still need.';
COMMENT ON COLUMN pgtrickle.pgt_followers.follower_id IS 'Another one if it is dropped and registered again, so that an old checkpoint finds out.';
COMMENT ON COLUMN pgtrickle.pgt_followers.columns IS 'Those whose changes it reads.';
COMMENT ON COLUMN pgtrickle.pgt_followers.has_applied IS 'Changes visible in this snapshot are done; all others are kept.';
COMMENT ON COLUMN pgtrickle.pgt_followers.seen_at IS 'When it last asked for changes, to a minute.';
COMMENT ON COLUMN pgtrickle.pgt_followers.expires_after IS 'So long it may stay away; then changes are no longer kept for it.';
COMMENT ON COLUMN pgtrickle.pgt_followers.expired_at IS 'When it had stayed away for too long. It has to begin from the start.';

-- Whoever takes changes away must ask for this first, so that one that comes back finds out.
CREATE FUNCTION pgtrickle_internal.expire_followers() RETURNS bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    WITH gone AS (
        UPDATE pgtrickle.pgt_followers SET expired_at = now()
        WHERE expired_at IS NULL AND seen_at < now() - expires_after RETURNING 1
    ) SELECT count(*) FROM gone
$$;
COMMENT ON FUNCTION pgtrickle_internal.expire_followers IS
    'Internal: marks followers that have stayed away for too long; returns how many.';

CREATE VIEW pgtrickle.pgt_follower_status AS
SELECT f.name, p.pgt_schema, p.pgt_name,
       CASE WHEN f.expired_at IS NOT NULL THEN 'EXPIRED' ELSE 'FOLLOWING' END AS status,
       f.registered_by, f.registered_at, f.seen_at, f.seen_at + f.expires_after AS expires_at,
       pg_relation_size(o.buffer_relid) AS buffer_bytes
FROM pgtrickle.pgt_followers AS f
JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id) JOIN pgtrickle.pgt_present AS p USING (pgt_id)
LEFT JOIN pgtrickle.pgt_capture_objects AS o ON o.source_relid = t.pgt_relid;
-- health_check() reads it, for whoever may call that: who has USAGE on this schema.
GRANT SELECT ON pgtrickle.pgt_follower_status TO PUBLIC;
COMMENT ON VIEW pgtrickle.pgt_follower_status IS
    'Each follower: what it follows, when it was last seen, until when changes are kept for it, and how many bytes that takes.';

-- What health_check says of them.
CREATE FUNCTION pgtrickle_internal.follower_problems() RETURNS TABLE (severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'WARN', format(CASE WHEN f.status = 'EXPIRED'
               THEN 'the follower %s of %I.%I has expired: SELECT pgtrickle.drop_follower(%L), or let it begin from the start'
               ELSE 'the follower %s of %I.%I was not seen for %s: changes are kept for it (%s) until %s' END,
           f.name, f.pgt_schema, f.pgt_name,
           CASE WHEN f.status = 'EXPIRED' THEN f.name ELSE date_trunc('second', now() - f.seen_at)::text END,
           pg_size_pretty(f.buffer_bytes), date_trunc('second', f.expires_at))
    FROM pgtrickle.pgt_follower_status AS f
    WHERE f.status = 'EXPIRED' OR now() > f.seen_at + (f.expires_at - f.seen_at) / 4
$$;
COMMENT ON FUNCTION pgtrickle_internal.follower_problems IS 'Internal: the part of health_check about followers.';

-- Its changes are no longer kept; the capture of the stream table ends with the last reader, at the next look.
CREATE FUNCTION pgtrickle.drop_follower(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM pgtrickle.pgt_followers AS f WHERE f.name = drop_follower.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no follower %', name
            USING ERRCODE = 'undefined_object', HINT = 'SELECT * FROM pgtrickle.pgt_follower_status lists all.';
    END IF;
END
$$;
COMMENT ON FUNCTION pgtrickle.drop_follower IS
    'Forgets a reader outside of the database that follows a stream table: its changes are no longer kept for it.';

-- As in 0002, and a source that was dropped is told as such.
CREATE OR REPLACE FUNCTION pgtrickle.check_cdc_health()
RETURNS TABLE (source_relid oid, source_table text, cdc_mode text, slot_name text, lag_bytes bigint,
               confirmed_lsn pg_lsn, decoder_status text, alert text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.source_relid, c.source_table, c.cdc_mode, c.slot_name, c.slot_lag_bytes, c.confirmed_lsn, c.decoder_status,
           CASE WHEN NOT EXISTS (SELECT FROM pg_class AS k WHERE k.oid = c.source_relid) THEN 'source_dropped'
                WHEN c.cdc_mode = 'TRIGGER' AND NOT c.trigger_active THEN 'trigger_missing'
                WHEN c.slot_name IS NULL THEN NULL
                WHEN h.slot_name IS NULL THEN 'slot_missing'
                WHEN h.alert = 'slot_lost' THEN h.alert
                WHEN c.cdc_mode <> 'TRIGGER' AND NOT c.published THEN 'not_published'
                WHEN c.cdc_mode <> 'TRIGGER' AND NOT c.eligible THEN 'not_eligible'
                ELSE h.alert END
    FROM pgtrickle.pgt_cdc_status AS c LEFT JOIN pgtrickle.slot_health() AS h ON true
    ORDER BY c.source_table
$$;

-- What to do about an alert of check_cdc_health().
CREATE FUNCTION pgtrickle_internal.capture_cure(alert text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN alert = 'source_dropped' THEN 'Alter the stream tables that read it (pgt_lineage names them), or drop them.'
        WHEN alert = 'trigger_missing'
            THEN 'The next refresh makes the triggers again and computes from scratch. If it stays: `pgtrickle repair`.'
        WHEN alert = 'decoder_not_connected'
            THEN 'Start the service: `pgtrickle run`. Until then refreshes are skipped, and the slot holds back WAL.'
        WHEN alert IN ('slot_missing', 'slot_lost', 'not_published', 'not_eligible')
            THEN 'The service goes back to triggers, and computes what reads the source from scratch.'
        WHEN alert IN ('slot_lag_warning', 'slot_lag_critical')
            THEN 'The decoder is behind, and the slot holds back WAL: see `pgtrickle cdc` and the disk of the server.'
        ELSE '`pgtrickle cdc` and the log of the service say more.' END
$$;
COMMENT ON FUNCTION pgtrickle_internal.capture_cure IS 'Internal: the hint of health_check for an alert about capture.';

-- One row for each check that is passed, and one for each problem where it is not. Severity OK, WARN or ERROR.
-- Settings are those of the database or role. A cron schedule says nothing about how old data may be.
DROP FUNCTION pgtrickle.health_check();
CREATE FUNCTION pgtrickle.health_check()
RETURNS TABLE (check_name text, severity text, detail text, hint text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
    WITH streams AS (
        SELECT t.pgt_id, format('%I.%I', p.pgt_schema, p.pgt_name) AS name, p.status, p.last_error, t.schedule,
               t.consecutive_errors, t.is_populated, t.needs_reinit, t.reinit_reason,
               pgtrickle_internal.staleness_of(t.effective_mode, t.needs_reinit, t.data_timestamp) AS age,
               t.schedule_period AS period
        FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)
    ), problems(check_name, severity, detail, hint) AS (
        SELECT 'service', l.severity, l.detail, NULL FROM pgtrickle_internal.lease_problems() AS l
        UNION ALL
        SELECT 'service', 'ERROR',
               format('no running service serves the role %s, which owns %s: pgtrickle run with its login', u.owner, u.name),
               NULL
        FROM pgtrickle_internal.unserved_tables() AS u
        UNION ALL
        SELECT 'service', p.severity, p.detail, NULL FROM pgtrickle_internal.pause_problems() AS p
        UNION ALL
        SELECT 'loops', l.severity, l.detail,
               'The service restarts what hangs where it can. If it stays, its log says where; restart the service.'
        FROM pgtrickle_internal.loop_problems() AS l
        UNION ALL
        SELECT 'stream_tables', CASE WHEN s.last_error IS NULL THEN 'WARN' ELSE 'ERROR' END,
               format('%s is in state %s', s.name, s.status) || coalesce(': ' || s.last_error, ''),
               concat_ws(' ', f.hint,
                         CASE WHEN s.status = 'SUSPENDED' AND s.last_error IS NOT NULL
                              THEN format('It is suspended until `pgtrickle resume %s`.', s.name)
                              WHEN s.status = 'SUSPENDED' THEN format('Resume it: `pgtrickle resume %s`.', s.name) END)
        FROM streams AS s
        LEFT JOIN LATERAL (
            SELECT upper(left(h.hint, 1)) || substr(rtrim(h.hint, '.'), 2) || '.' AS hint
            FROM pgtrickle.pgt_refresh_history AS h
            WHERE h.pgt_id = s.pgt_id AND h.status = 'FAILED' AND strpos(s.last_error, h.error) > 0
            ORDER BY h.refresh_id DESC LIMIT 1
        ) AS f ON true
        WHERE s.status IN ('ERROR', 'SUSPENDED') OR s.consecutive_errors > 0
        UNION ALL
        SELECT 'stream_tables', u.severity, u.detail, NULL
        FROM pgtrickle_internal.unfilled_tables() AS u JOIN streams AS s USING (pgt_id) WHERE s.status <> 'ERROR'
        UNION ALL
        SELECT 'staleness', 'ERROR', format('%s is %s old, and should be refreshed every %s', s.name,
                                            date_trunc('second', s.age), s.schedule),
               format('`pgtrickle history %s` says how long refreshes take and why. ', s.name)
               || 'A longer schedule may help, or the indexes that `pgtrickle doctor` names.'
        FROM streams AS s
        WHERE s.is_populated AND s.status NOT IN ('SUSPENDED', 'ERROR') AND s.age > 2 * s.period + interval '10 s'
        UNION ALL
        SELECT 'reinitialization', 'WARN', format('%s will be computed again: %s', s.name, s.reinit_reason),
               'Nothing: the next refresh does it.'
        FROM streams AS s WHERE s.needs_reinit AND s.status <> 'ERROR'
        UNION ALL
        SELECT 'capture', CASE WHEN h.alert = 'slot_lag_warning' THEN 'WARN' ELSE 'ERROR' END,
               format('%s (%s): %s', h.source_table, h.cdc_mode, h.alert), pgtrickle_internal.capture_cure(h.alert)
        FROM pgtrickle.check_cdc_health() AS h
        WHERE h.alert IS NOT NULL AND NOT (h.alert = 'source_dropped' AND NOT EXISTS (
            SELECT FROM pgtrickle.pgt_dependencies AS d JOIN streams AS s USING (pgt_id)
            WHERE d.source_relid = h.source_relid AND s.status <> 'ERROR'))
        UNION ALL
        SELECT 'slot', 'WARN', format('%s holds back %s of WAL, and no source counts on it: a service drops it',
                                      h.slot_name, pg_size_pretty(h.retained_wal_bytes)), NULL
        FROM pgtrickle.slot_health() AS h WHERE h.sources = 0
        UNION ALL
        SELECT 'buffers', 'WARN', format('about %s changes of %s wait to be applied', b.waiting, b.source),
               'A reader that is suspended or fails keeps them: resume it, mend it, or drop it.'
        FROM (
            SELECT pg_stat_get_live_tuples(o.buffer_relid) AS waiting, o.source_relid::regclass AS source
            FROM pgtrickle.pgt_capture_objects AS o
        ) AS b
        WHERE b.waiting > pgtrickle_internal.setting('buffer_growth_warning_rows', '1000000')::bigint
        UNION ALL
        SELECT 'followers', f.severity, f.detail, NULL FROM pgtrickle_internal.follower_problems() AS f
    )
    SELECT c.name, coalesce(p.severity, 'OK'), coalesce(p.detail, c.passed), nullif(p.hint, '')
    FROM (VALUES
        (1, 'service', coalesce(pgtrickle_internal.who_leads(), 'there are no stream tables to serve')),
        (2, 'loops', coalesce((SELECT string_agg(format('%s: %s, since %s', o.loop, o.busy_with,
                                                        date_trunc('second', o.busy_since)), '; ' ORDER BY o.loop)
                               FROM pgtrickle.pgt_service_loops AS o WHERE o.busy_with IS NOT NULL),
                              'no loop of a service is stuck')),
        (3, 'stream_tables', 'none has failed'),
        (4, 'staleness', 'all are as fresh as their schedules ask for'),
        (5, 'reinitialization', 'none has to be computed again'),
        (6, 'capture', 'all sources are captured'),
        (7, 'slot', 'no replication slot is held for nothing'),
        (8, 'buffers', 'none is full of changes'),
        (9, 'followers', 'none has stayed away')
    ) AS c(place, name, passed)
    LEFT JOIN problems AS p ON p.check_name = c.name
    ORDER BY c.place, p.severity, p.detail
$$;
COMMENT ON FUNCTION pgtrickle.health_check IS
    'One row for each check that is passed, and one for each problem where it is not. Severity OK, WARN or ERROR; hint '
    'says what to do.';
