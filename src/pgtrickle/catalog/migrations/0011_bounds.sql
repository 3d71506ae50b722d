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
