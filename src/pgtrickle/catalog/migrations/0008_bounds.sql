-- Bounds: what a schedule may be, the same here and in the program; and no row of one table keeps others from being
-- looked at.

-- The length of a duration, if it is one within the bounds; NULL for all else: cron expressions, none, nonsense.
CREATE FUNCTION pgtrickle.schedule_period(schedule text) RETURNS interval
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given text := lower(btrim(schedule));
    parts text[];
    length numeric;
BEGIN
    IF given IS NULL OR given = '' OR octet_length(given) > 100 THEN
        RETURN NULL;
    END IF;
    parts := regexp_match(given, '^(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?$');
    length := coalesce(parts[1]::numeric, 0) * 86400 + coalesce(parts[2]::numeric, 0) * 3600
              + coalesce(parts[3]::numeric, 0) * 60 + coalesce(parts[4]::numeric, 0);
    RETURN CASE WHEN parts IS NOT NULL AND length <= 315360000 THEN make_interval(secs => length::double precision) END;
END
$$;

-- The shape of a schedule; the service knows which cron expressions have times that come.
CREATE OR REPLACE FUNCTION pgtrickle.check_schedule(schedule text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given text := lower(btrim(schedule));
    period interval := pgtrickle.schedule_period(schedule);
    least numeric := pgtrickle.setting('min_schedule_seconds', '1')::numeric;
BEGIN
    IF given IS NULL OR given = 'calculated' THEN
        RETURN;
    ELSIF period IS NOT NULL THEN
        IF extract(epoch FROM period) < least THEN
            PERFORM pgtrickle.refuse('PT011', format('the schedule ''%s'' is shorter than %s s', schedule, least),
                                     'Choose a longer one, or lower pg_trickle.min_schedule_seconds.');
        END IF;
    ELSIF given <> '' AND octet_length(given) <= 100 AND given ~ '^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$' THEN
        PERFORM pgtrickle.refuse('PT016', format('the schedule ''%s'' is longer than ten years', schedule),
                                 'Choose a shorter one; calculated leaves the table to those that read it.');
    ELSIF given ~ '^@' OR given ~ '^\S+(\s+\S+){4,5}$' THEN
        IF octet_length(given) > 100 OR given !~ '^@(hourly|daily|midnight|weekly|monthly|yearly|annually)$'
           AND given !~ '^[0-9*/,\-#?a-z]+(\s+[0-9*/,\-#?a-z]+){4,5}$' THEN
            PERFORM pgtrickle.refuse('PT012', format('''%s'' is not a cron expression', schedule),
                                     'Five or six fields, as in ''*/5 * * * *''.');
        END IF;
    ELSE
        PERFORM pgtrickle.refuse('PT010', format('''%s'' is not a schedule', schedule),
                                 'Write a duration (5s, 1h30m, 2d) or a cron expression.');
    END IF;
END
$$;

-- Times that neither Python nor a difference of times can hold would end every look at the whole catalog.
ALTER TABLE pgtrickle.pgt_stream_tables
    ADD CHECK (data_timestamp BETWEEN '1970-01-01 UTC' AND '9000-01-01 UTC') NOT VALID,
    ADD CHECK (last_refresh_at BETWEEN '1970-01-01 UTC' AND '9000-01-01 UTC') NOT VALID,
    ADD CHECK (created_at BETWEEN '1970-01-01 UTC' AND '9000-01-01 UTC') NOT VALID,
    ADD CHECK (updated_at BETWEEN '1970-01-01 UTC' AND '9000-01-01 UTC') NOT VALID;


-- One row for each check that is passed, and one for each problem where it is not. Severity OK, WARN or ERROR.
-- Settings are those of the database or role. A cron schedule says nothing about how old data may be.
CREATE OR REPLACE FUNCTION pgtrickle.health_check()
RETURNS TABLE (check_name text, severity text, detail text)
LANGUAGE sql STABLE AS $$
    WITH streams AS (
        SELECT t.*, pg_catalog.format('%I.%I', t.pgt_schema, t.pgt_name) AS name, now() - t.data_timestamp AS age,
               pgtrickle.schedule_period(t.schedule) AS period
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

-- Whether triggers of that level see all who write to a source. The apply worker of a subscription fires row triggers
-- only: a table that became its target after capture began is captured by triggers that miss its rows.
CREATE FUNCTION pgtrickle.sees_all_writers(source_relid oid, trigger_level text) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT trigger_level = 'ROW' OR NOT EXISTS (
        SELECT FROM pg_catalog.pg_subscription_rel AS s
        WHERE s.srrelid = source_relid
           OR EXISTS (SELECT FROM pg_catalog.pg_partition_ancestors(s.srrelid) AS a WHERE a.relid = source_relid))
$$;

-- A subscription that comes and goes between two refreshes leaves rows that no one saw. So before one is changed or
-- dropped, the sources that it wrote to unseen are marked. A user's command never fails by an error of ours.
CREATE FUNCTION pgtrickle.on_subscription_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    captured record;
BEGIN
    FOR captured IN
        SELECT k.source_relid, k.buffer_name FROM pgtrickle.pgt_change_tracking AS k
        WHERE k.cdc_mode <> 'WAL' AND NOT pgtrickle.sees_all_writers(k.source_relid, k.trigger_level)
    LOOP
        EXECUTE format('INSERT INTO %s (xid, lsn, action) VALUES (pg_current_xact_id(), pg_current_wal_insert_lsn(), %L)',
                       to_regclass(captured.buffer_name), 'T');
    END LOOP;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'pgtrickle could not mark the targets of a subscription: %', SQLERRM
        USING HINT = 'Refresh the stream tables that read them in full.';
END
$$;
REVOKE ALL ON FUNCTION pgtrickle.on_subscription_ddl() FROM PUBLIC;

-- Creates that event trigger; false if this role may not.
CREATE FUNCTION pgtrickle.track_subscriptions() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_event_trigger WHERE evtname = 'pgtrickle_subscription') THEN
        CREATE EVENT TRIGGER pgtrickle_subscription ON ddl_command_start
            WHEN TAG IN ('ALTER SUBSCRIPTION', 'DROP SUBSCRIPTION')
            EXECUTE FUNCTION pgtrickle.on_subscription_ddl();
    END IF;
    RETURN true;
EXCEPTION WHEN insufficient_privilege THEN
    RETURN false;
END
$$;
