-- Health, with what earlier migrations have added: leases, whom services serve, bounded
-- schedules, tables by their present names.

-- One row for each check that is passed, and one for each problem where it is not. Severity OK, WARN or ERROR.
-- Settings are those of the database or role. A cron schedule says nothing about how old data may be.
CREATE OR REPLACE FUNCTION pgtrickle.health_check()
RETURNS TABLE (check_name text, severity text, detail text)
LANGUAGE sql STABLE AS $$
    WITH streams AS (
        SELECT pg_catalog.format('%I.%I', p.pgt_schema, p.pgt_name) AS name, p.status, p.last_error, t.schedule,
               t.consecutive_errors, t.is_populated, t.needs_reinit, t.reinit_reason, now() - t.data_timestamp AS age,
               pgtrickle.schedule_period(t.schedule) AS period
        FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)
    ), problems(check_name, severity, detail) AS (
        SELECT 'service', l.severity, l.detail FROM pgtrickle.lease_problems() AS l
        UNION ALL
        SELECT 'service', 'ERROR',
               pg_catalog.format('no running service serves the role %s, which owns %s: pgtrickle run with its login',
                                 u.owner, u.name)
        FROM pgtrickle.unserved_tables() AS u
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
        (1, 'service', coalesce(pgtrickle.who_leads(), 'there are no stream tables to serve')),
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
