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
        SELECT 'service', l.severity, l.detail FROM pgtrickle_internal.lease_problems() AS l
        UNION ALL
        SELECT 'service', 'ERROR',
               format('no running service serves the role %s, which owns %s: pgtrickle run with its login', u.owner, u.name)
        FROM pgtrickle_internal.unserved_tables() AS u
        UNION ALL
        SELECT 'service', p.severity, p.detail FROM pgtrickle_internal.pause_problems() AS p
        UNION ALL
        SELECT 'loops', l.severity, l.detail FROM pgtrickle_internal.loop_problems() AS l
        UNION ALL
        SELECT 'stream_tables', CASE WHEN s.last_error IS NULL THEN 'WARN' ELSE 'ERROR' END,
               format('%s is in state %s', s.name, s.status) || coalesce(': ' || s.last_error, '')
        FROM streams AS s WHERE s.status IN ('ERROR', 'SUSPENDED') OR s.consecutive_errors > 0
        UNION ALL
        SELECT 'stream_tables', u.severity, u.detail FROM pgtrickle_internal.unfilled_tables() AS u
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
        WHERE b.waiting > pgtrickle_internal.setting('buffer_growth_warning_rows', '1000000')::bigint
        UNION ALL
        SELECT 'followers', f.severity, f.detail FROM pgtrickle_internal.follower_problems() AS f
    )
    SELECT c.name, coalesce(p.severity, 'OK'), coalesce(p.detail, c.passed)
    FROM (VALUES
        (1, 'service', coalesce(pgtrickle_internal.who_leads(), 'there are no stream tables to serve')),
        (2, 'loops', coalesce((SELECT string_agg(format('%s: %s, since %s', o.loop, o.busy_with,
                                                        date_trunc('second', o.busy_since)), '; ' ORDER BY o.loop)
                               FROM pgtrickle.pgt_service_loops AS o WHERE o.busy_with IS NOT NULL),
                              'no loop of a service is stuck')),
        (3, 'stream_tables', 'none has failed'),
        (4, 'staleness', 'all are as fresh as their schedules ask for'),
        (5, 'reinitialization', 'none has to be computed anew'),
        (6, 'capture', 'all sources are captured'),
        (7, 'slot', 'no replication slot is held for nothing'),
        (8, 'buffers', 'none is full of changes'),
        (9, 'followers', 'none has stayed away')
    ) AS c(place, name, passed)
    LEFT JOIN problems AS p ON p.check_name = c.name
    ORDER BY c.place, p.detail
$$;
