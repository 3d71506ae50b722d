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
