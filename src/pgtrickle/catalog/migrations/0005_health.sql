-- Health as a whole: one function that says what is wrong, for people, monitors and `pgtrickle health`.

-- The session of the service that leads in this database: the one with its advisory lock. NULL: no service runs.
CREATE FUNCTION pgtrickle.service_pid() RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT l.pid FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND d.datname = current_database()
      AND (l.classid::bigint << 32) | l.objid::bigint = pg_catalog.hashtextextended('pgtrickle service', 0)
    LIMIT 1
$$;

-- One row for each check that is passed, and one for each problem where it is not. Severity OK, WARN or ERROR.
-- Settings are those of the database or role. A cron schedule says nothing about how old data may be.
CREATE FUNCTION pgtrickle.health_check()
RETURNS TABLE (check_name text, severity text, detail text)
LANGUAGE sql STABLE AS $$
    WITH streams AS (
        SELECT t.*, pg_catalog.format('%I.%I', t.pgt_schema, t.pgt_name) AS name, now() - t.data_timestamp AS age,
               CASE WHEN lower(t.schedule) ~ '^(\d+d)?(\d+h)?(\d+m)?(\d+s)?$' THEN lower(t.schedule)::interval END
               AS period
        FROM pgtrickle.pgt_stream_tables AS t
    ), problems(check_name, severity, detail) AS (
        SELECT 'service', 'ERROR', 'no service runs in this database: pgtrickle run'
        WHERE pgtrickle.service_pid() IS NULL AND EXISTS (SELECT FROM streams)
        UNION ALL
        SELECT 'service', 'WARN', 'refreshes are paused: pg_trickle.enabled is off'
        WHERE lower(pgtrickle.setting('enabled', 'on')) IN ('false', 'off', 'no', '0', 'f', 'n')
        UNION ALL
        SELECT 'stream_tables', CASE WHEN s.last_error IS NULL THEN 'WARN' ELSE 'ERROR' END,
               pg_catalog.format('%s is in state %s', s.name, s.status) || coalesce(': ' || s.last_error, '')
        FROM streams AS s WHERE s.status IN ('ERROR', 'SUSPENDED') OR s.consecutive_errors > 0
        UNION ALL
        SELECT 'staleness', 'ERROR', pg_catalog.format('%s is %s old, and should be refreshed every %s', s.name,
                                            date_trunc('second', s.age), s.schedule)
        FROM streams AS s
        WHERE s.is_populated AND s.status <> 'SUSPENDED' AND s.age > 2 * s.period + interval '10 s'
        UNION ALL
        SELECT 'reinitialization', 'WARN', pg_catalog.format('%s will be computed anew: %s', s.name, s.reinit_reason)
        FROM streams AS s WHERE s.needs_reinit
        UNION ALL
        SELECT 'capture', CASE WHEN h.alert = 'slot_lag_warning' THEN 'WARN' ELSE 'ERROR' END,
               pg_catalog.format('%s (%s): %s', h.source_table, h.cdc_mode, h.alert)
        FROM pgtrickle.check_cdc_health() AS h WHERE h.alert IS NOT NULL
        UNION ALL
        SELECT 'slot', 'WARN', pg_catalog.format('%s holds back %s of WAL, and no source counts on it: a service drops it',
                                      h.slot_name, pg_size_pretty(h.retained_wal_bytes))
        FROM pgtrickle.slot_health() AS h WHERE h.sources = 0
        UNION ALL
        SELECT 'buffers', 'WARN', format('about %s changes of %s wait to be applied', b.waiting, b.source)
        FROM (
            SELECT pg_stat_get_live_tuples(to_regclass(k.buffer_name)) AS waiting, k.source_relid::regclass AS source
            FROM pgtrickle.pgt_change_tracking AS k
        ) AS b
        WHERE b.waiting > pgtrickle.setting('buffer_growth_warning_rows', '1000000')::bigint
    )
    SELECT c.name, coalesce(p.severity, 'OK'), coalesce(p.detail, c.passed)
    FROM (VALUES
        (1, 'service', coalesce('a service leads, in session ' || pgtrickle.service_pid(),
                                'there are no stream tables to serve')),
        (2, 'stream_tables', 'none has failed'),
        (3, 'staleness', 'all are as fresh as their schedules ask for'),
        (4, 'reinitialization', 'none has to be computed anew'),
        (5, 'capture', 'all sources are captured'),
        (6, 'slot', 'no replication slot is held for nothing'),
        (7, 'buffers', 'none is full of changes')
    ) AS c(place, name, passed)
    LEFT JOIN problems AS p ON p.check_name = c.name
    ORDER BY c.place, p.detail
$$;
