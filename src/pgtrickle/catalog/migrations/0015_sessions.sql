-- Sessions: functions of ours see pg_catalog only, whatever path their caller has; what else can change an answer is
-- stored with each stream table, and with each request for one.

-- The settings of this session that can change an answer (`answers.py` has the same names).
CREATE FUNCTION pgtrickle.session_settings() RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_object_agg(name, current_setting(name)) FROM unnest(ARRAY[
        'DateStyle', 'TimeZone', 'timezone_abbreviations', 'default_text_search_config', 'lc_monetary', 'lc_numeric',
        'lc_time', 'array_nulls', 'transform_null_equals', 'standard_conforming_strings', 'backslash_quote',
        'IntervalStyle', 'extra_float_digits', 'bytea_output', 'xmlbinary', 'xmloption', 'quote_all_identifiers',
        'gin_fuzzy_search_limit']) AS name
$$;

ALTER TABLE pgtrickle.pgt_stream_tables ADD COLUMN settings jsonb NOT NULL DEFAULT pgtrickle.session_settings();
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.settings IS
    'Settings of the session that defined it: the query is evaluated under those that can change its rows. Of tables'
    ' defined before there was this column, those of the session that added it.';
ALTER TABLE pgtrickle.pgt_requests ADD COLUMN settings jsonb NOT NULL DEFAULT pgtrickle.session_settings();
COMMENT ON COLUMN pgtrickle.pgt_requests.settings IS
    'The settings of the session that asked, by which its query is read.';

-- Small functions that others are inlined by: what they mean is settled here, as that of a view is.
CREATE OR REPLACE FUNCTION pgtrickle.slot_name() RETURNS text LANGUAGE sql STABLE
RETURN (SELECT 'pgtrickle_' || d.oid::text FROM pg_database AS d WHERE d.datname = current_database());

CREATE OR REPLACE FUNCTION pgtrickle.wal_since(place pg_lsn) RETURNS bigint LANGUAGE sql VOLATILE
RETURN CASE WHEN NOT pg_is_in_recovery() THEN greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), place), 0)::bigint END;

CREATE OR REPLACE FUNCTION pgtrickle.setting(name text, fallback text) RETURNS text LANGUAGE sql STABLE
RETURN coalesce(nullif(current_setting('pg_trickle.' || name, true), ''), fallback);

-- Those that are left with the caller's path (below) are to find what the caller names, or to record the path itself;
-- they call others by their full names, and use no operator.
ALTER FUNCTION pgtrickle.explain_st(text) RENAME TO explain_full_name;
ALTER FUNCTION pgtrickle.get_refresh_history(text, integer) RENAME TO history_of_full_name;
ALTER FUNCTION pgtrickle.get_staleness(text) RENAME TO staleness_of_full_name;
ALTER FUNCTION pgtrickle.check_own_name(text) RENAME TO check_own_full_name;

-- The id of the stream table that is stored there; `name` is what it was asked for by.
CREATE FUNCTION pgtrickle.id_of_relation(relation oid, name text) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_id bigint;
BEGIN
    SELECT t.pgt_id INTO found_id FROM pgtrickle.pgt_stream_tables AS t WHERE t.pgt_relid = relation;
    IF found_id IS NULL THEN
        RAISE EXCEPTION 'there is no stream table %', name
            USING ERRCODE = 'undefined_table', HINT = 'SELECT * FROM pgtrickle.pgt_status() lists all stream tables.';
    END IF;
    RETURN found_id;
END
$$;

CREATE OR REPLACE FUNCTION pgtrickle.pgt_id_of(name text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN pgtrickle.id_of_relation(pg_catalog.to_regclass(name)::pg_catalog.oid, name);
END
$$;

CREATE FUNCTION pgtrickle.full_name_of(pgt_id bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('%I.%I', p.pgt_schema, p.pgt_name) FROM pgtrickle.pgt_present AS p WHERE p.pgt_id = $1
$$;

CREATE FUNCTION pgtrickle.explain_st(name text) RETURNS TABLE (property text, value text)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT e.property, e.value
                 FROM pgtrickle.explain_full_name(pgtrickle.full_name_of(pgtrickle.pgt_id_of(name))) AS e;
END
$$;

CREATE FUNCTION pgtrickle.get_refresh_history(name text, max_rows integer DEFAULT 20)
RETURNS SETOF pgtrickle.pgt_refresh_history LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT h.* FROM pgtrickle.history_of_full_name(
        pgtrickle.full_name_of(pgtrickle.pgt_id_of(name)), max_rows) AS h;
END
$$;

CREATE FUNCTION pgtrickle.get_staleness(name text) RETURNS double precision LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN pgtrickle.staleness_of_full_name(pgtrickle.full_name_of(pgtrickle.pgt_id_of(name)));
END
$$;

CREATE FUNCTION pgtrickle.check_own_name(name text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN pgtrickle.check_own_full_name(pgtrickle.full_name_of(pgtrickle.pgt_id_of(name)));
END
$$;

CREATE FUNCTION pgtrickle.require_query(query text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF btrim(coalesce(query, ''), E' \t\r\n') = '' THEN
        PERFORM pgtrickle.refuse('PT100', 'the defining query is empty', 'Give one SELECT statement.');
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION pgtrickle.check_query(query text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgtrickle.require_query(query);
    EXECUTE pg_catalog.concat('CREATE TEMPORARY VIEW pgtrickle_requested AS', pg_catalog.chr(10), query);
    EXECUTE 'EXPLAIN SELECT * FROM pg_temp.pgtrickle_requested';
    RAISE EXCEPTION USING ERRCODE = 'PTOK0';
EXCEPTION
    WHEN SQLSTATE 'PTOK0' THEN
        RETURN;
END
$$;

-- The full name of a stream table to be created, if the caller may create it there; `place` is where it goes without
-- a schema in its name.
CREATE FUNCTION pgtrickle.check_new_name_in(name text, place text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[];
    full_name text;
BEGIN
    BEGIN
        parts := parse_ident(name);
    EXCEPTION WHEN invalid_parameter_value THEN
        parts := NULL;
    END;
    IF parts IS NULL OR cardinality(parts) > 2
       OR EXISTS (SELECT FROM unnest(parts) AS part WHERE octet_length(part) > 63) THEN
        PERFORM pgtrickle.refuse('PT004', format('''%s'' is not a table''s name', name),
                                 'Write name, schema.name, or "Quoted"."Name".');
    END IF;
    place := CASE cardinality(parts) WHEN 2 THEN parts[1] ELSE place END;
    IF place IN ('pgtrickle', 'pgtrickle_changes', 'pgtrickle_state', 'information_schema')
       OR starts_with(place, 'pg_') THEN
        PERFORM pgtrickle.refuse('PT314', format('there can be no stream table in the schema %s', place),
                                 'Choose a schema of your own.');
    END IF;
    IF place IS NULL OR to_regnamespace(quote_ident(place)) IS NULL THEN
        PERFORM pgtrickle.refuse('PT005', coalesce('there is no schema ' || place, 'no schema to create it in'),
                                 'Write schema.name, with a schema that exists.');
    END IF;
    full_name := format('%I.%I', place, parts[cardinality(parts)]);
    IF NOT has_schema_privilege(to_regnamespace(quote_ident(place))::oid, 'CREATE') THEN
        PERFORM pgtrickle.refuse('PT402', format('this role may not create tables in schema %s', place),
                                 format('GRANT CREATE ON SCHEMA %I to it.', place));
    END IF;
    IF to_regclass(full_name) IS NOT NULL THEN
        PERFORM pgtrickle.refuse('PT302', format('%s exists already', full_name), 'Choose another name.');
    END IF;
    RETURN full_name;
END
$$;

CREATE OR REPLACE FUNCTION pgtrickle.check_new_name(name text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN pgtrickle.check_new_name_in(name, pg_catalog.current_schema()::pg_catalog.text);
END
$$;

-- Tells the caller at once where no service that runs will take the request.
CREATE FUNCTION pgtrickle.tell_waiting(request_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    reason text := pgtrickle.why_waiting(request_id);
BEGIN
    IF reason IS NOT NULL THEN
        RAISE NOTICE USING MESSAGE = format('request %s waits: %s', request_id, reason),
            HINT = 'Run one with the login of the owner: pgtrickle run. pgtrickle.pgt_requests shows its state.';
    END IF;
END
$$;

-- The request, and a call to the service, both of which count when the caller commits. It is taken by a service that
-- serves the caller.
CREATE OR REPLACE FUNCTION pgtrickle.add_request(kind text, args jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    request_id bigint;
BEGIN
    INSERT INTO pgtrickle.pgt_requests (kind, args) VALUES ($1, $2) RETURNING id INTO request_id;
    PERFORM pg_catalog.pg_notify('pg_trickle_wake', pg_catalog.concat('request ', request_id));
    PERFORM pgtrickle.tell_waiting(request_id);
    RETURN request_id;
END
$$;

CREATE OR REPLACE FUNCTION pgtrickle.create_stream_table(
    name text, query text, schedule text DEFAULT '1m', refresh_mode text DEFAULT 'AUTO',
    initialize boolean DEFAULT true, diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL, cdc_mode text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    full_name pg_catalog.text := pgtrickle.check_new_name(name);
    options pg_catalog.jsonb := pgtrickle.check_options(
        coalesce(schedule, 'calculated'), coalesce(refresh_mode, 'AUTO'), diamond_consistency,
        diamond_schedule_policy, cdc_mode);
BEGIN
    PERFORM pgtrickle.check_query(query);
    RETURN pgtrickle.add_request('create', pg_catalog.jsonb_concat(options, pg_catalog.jsonb_build_object(
        'name', full_name, 'query', query, 'initialize', coalesce(initialize, true))));
END
$$;

CREATE OR REPLACE FUNCTION pgtrickle.alter_stream_table(
    name text, query text DEFAULT NULL, schedule text DEFAULT NULL, refresh_mode text DEFAULT NULL,
    status text DEFAULT NULL, diamond_consistency text DEFAULT NULL, diamond_schedule_policy text DEFAULT NULL,
    cdc_mode text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    full_name pg_catalog.text := pgtrickle.check_own_name(name);
    options pg_catalog.jsonb := pgtrickle.check_options(
        schedule, refresh_mode, diamond_consistency, diamond_schedule_policy, cdc_mode);
BEGIN
    IF query IS NOT NULL THEN
        PERFORM pgtrickle.check_query(query);
    END IF;
    RETURN pgtrickle.add_request('alter', pg_catalog.jsonb_concat(options, pg_catalog.jsonb_strip_nulls(
        pg_catalog.jsonb_build_object('name', full_name, 'query', query, 'status',
            pgtrickle.check_choice('status to set', status, 'PT008', 'ACTIVE', 'SUSPENDED')))));
END
$$;

CREATE OR REPLACE FUNCTION pgtrickle.drop_stream_table(name text, cascade boolean DEFAULT false)
RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN pgtrickle.add_request('drop', pg_catalog.jsonb_build_object(
        'name', pgtrickle.check_own_name(name), 'cascade', coalesce(cascade, false)));
END
$$;

CREATE OR REPLACE FUNCTION pgtrickle.refresh_stream_table(name text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN pgtrickle.add_request('refresh', pg_catalog.jsonb_build_object('name', pgtrickle.check_own_name(name)));
END
$$;

-- Whether a request is done; raises its error if it failed, and one if it is past `patience`. Waits a moment if not.
CREATE FUNCTION pgtrickle.is_done(request_id bigint, patience timestamptz) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    request pgtrickle.pgt_requests;
BEGIN
    SELECT * INTO request FROM pgtrickle.pgt_requests WHERE id = request_id;
    IF request.id IS NULL THEN
        PERFORM pgtrickle.refuse('PT381', format('there is no request %s', request_id),
                                 'pgtrickle.pgt_requests has all; one that was rolled back never was.');
    ELSIF request.state = 'DONE' THEN
        RETURN true;
    ELSIF request.state = 'FAILED' THEN
        PERFORM pgtrickle.refuse(coalesce(request.error_code, 'PT000'), request.error, request.hint);
    ELSIF clock_timestamp() >= patience THEN
        PERFORM pgtrickle.refuse('PT382', concat(format('request %s is still %s', request_id, request.state),
                                                 ': ' || pgtrickle.why_waiting(request_id)),
                                 'Wait longer; if it stays PENDING, start a service with the login of the owner:'
                                 ' pgtrickle run.');
    END IF;
    RETURN false;
END
$$;

-- The end of the caller's patience; refuses in a transaction that has something to commit.
CREATE FUNCTION pgtrickle.begin_waiting(timeout interval) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM pgtrickle.refuse('PT380', 'this transaction has not been committed',
                                 'Commit first: a request counts from then on.');
    END IF;
    RETURN clock_timestamp() + timeout;
END
$$;

-- A procedure that commits may have no settings of its own: all that it does is done by functions that have.
CREATE OR REPLACE PROCEDURE pgtrickle.wait_for(request_id bigint, timeout interval DEFAULT '1 minute')
LANGUAGE plpgsql AS $$
DECLARE
    patience pg_catalog.timestamptz := pgtrickle.begin_waiting(timeout);
BEGIN
    WHILE NOT pgtrickle.is_done(request_id, patience) LOOP
        COMMIT;
        PERFORM pg_catalog.pg_sleep(0.1);
    END LOOP;
END
$$;

-- All others see pg_catalog only. Where texts in them hold backslashes, or names that are compared, that too must not
-- depend on the caller's session.
DO $$
DECLARE
    each regprocedure;
BEGIN
    FOR each IN
        SELECT p.oid FROM pg_proc AS p
        WHERE p.pronamespace = 'pgtrickle'::regnamespace AND p.prokind = 'f' AND p.prosqlbody IS NULL
          AND coalesce(array_to_string(p.proconfig, ','), '') NOT LIKE '%search\_path=%'
          AND p.proname <> ALL (ARRAY[
              'callers_path', 'pgt_id_of', 'explain_st', 'get_refresh_history', 'get_staleness', 'check_own_name', 'check_query',
              'check_new_name', 'add_request', 'create_stream_table', 'alter_stream_table', 'drop_stream_table',
              'refresh_stream_table'])
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', each);
    END LOOP;
END
$$;
ALTER FUNCTION pgtrickle.check_schedule(text) SET standard_conforming_strings = on;
ALTER FUNCTION pgtrickle.health_check() SET standard_conforming_strings = on;
ALTER FUNCTION pgtrickle.describe_object(oid, oid, integer) SET quote_all_identifiers = off;
