-- A primary key and protection against writes by hand, as options of a stream table. The table itself has them.

-- Ours are sessions that have said so in their transaction, and the functions of IMMEDIATE mode, which write in the
-- writer's own: the stack of calls tells. Nothing is called here, since a writer need not have rights on our schemas.
-- A restore of data and replication are not refused: the trigger is made after the one, and does not fire for the other.
CREATE FUNCTION pgtrickle_internal.refuse_write_by_hand() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    stack text;
BEGIN
    IF TG_RELID::text = ANY (string_to_array(current_setting('pg_trickle.writing', true), ' ')) THEN
        RETURN NULL;
    END IF;
    GET DIAGNOSTICS stack = PG_CONTEXT;
    IF stack ~ '(?n)^[^"\n]*\mpgtrickle_state\."?i_[0-9]+_[^\n]*\(\) ' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'PT318',
        MESSAGE = format('PT318: %I.%I is a protected stream table: only refreshes write to it', TG_TABLE_SCHEMA, TG_TABLE_NAME),
        HINT = 'Change its sources. Its owner can allow writes with alter_stream_table(name, protect => false).';
END
$$;
COMMENT ON FUNCTION pgtrickle_internal.refuse_write_by_hand IS
    'Internal: the trigger of protected stream tables, which refuses what is not a refresh.';

DROP FUNCTION pgtrickle.create_stream_table(text, text, text, text, boolean, text, text, text);
CREATE FUNCTION pgtrickle.create_stream_table(
    name text, query text, schedule text DEFAULT '1m', refresh_mode text DEFAULT 'AUTO',
    initialize boolean DEFAULT true, diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL, cdc_mode text DEFAULT NULL, primary_key text DEFAULT NULL,
    protect boolean DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    full_name pg_catalog.text := pgtrickle_internal.check_new_name(name);
    options pg_catalog.jsonb := pgtrickle_internal.check_options(
        coalesce(schedule, 'calculated'), coalesce(refresh_mode, 'AUTO'), diamond_consistency,
        diamond_schedule_policy, cdc_mode);
BEGIN
    PERFORM pgtrickle_internal.check_capture(NULL, options, pgtrickle_internal.check_query(query));
    RETURN pgtrickle_internal.add_request('create', pg_catalog.jsonb_concat(options, pg_catalog.jsonb_strip_nulls(
        pg_catalog.jsonb_build_object('name', full_name, 'query', query, 'initialize', coalesce(initialize, true),
                                      'primary_key', primary_key, 'protect', protect))));
END
$$;
COMMENT ON FUNCTION pgtrickle.create_stream_table IS
    'Asks the service to create a stream table of a query and to fill it; returns the id of the request. primary_key '
    'names columns, as in ''region, day'': a refresh that would give two rows the same key, or a NULL, fails. protect '
    'has writes by others than refreshes refused.';

DROP FUNCTION pgtrickle.alter_stream_table(text, text, text, text, text, text, text, text);
CREATE FUNCTION pgtrickle.alter_stream_table(
    name text, query text DEFAULT NULL, schedule text DEFAULT NULL, refresh_mode text DEFAULT NULL,
    status text DEFAULT NULL, diamond_consistency text DEFAULT NULL, diamond_schedule_policy text DEFAULT NULL,
    cdc_mode text DEFAULT NULL, primary_key text DEFAULT NULL, protect boolean DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    full_name pg_catalog.text := pgtrickle_internal.check_own_name(name);
    options pg_catalog.jsonb := pgtrickle_internal.check_options(
        schedule, refresh_mode, diamond_consistency, diamond_schedule_policy, cdc_mode);
    new_status pg_catalog.text := pgtrickle_internal.check_choice(
        'status to set', status, 'PT008', 'ACTIVE', 'SUSPENDED');
    sources pg_catalog.jsonb;
BEGIN
    IF coalesce(query, schedule, refresh_mode, status, diamond_consistency, diamond_schedule_policy, cdc_mode,
                primary_key, protect::pg_catalog.text) IS NULL THEN
        PERFORM pgtrickle_internal.refuse(
            'PT031', 'there is nothing to alter',
            'Give query, schedule, refresh_mode, status, cdc_mode, primary_key, protect or one of the diamond options.');
    END IF;
    IF query IS NOT NULL THEN
        sources := pgtrickle_internal.check_query(query);
    END IF;
    PERFORM pgtrickle_internal.check_capture(pgtrickle.pgt_id_of(name), options, sources);
    RETURN pgtrickle_internal.add_request('alter', pg_catalog.jsonb_concat(options, pg_catalog.jsonb_strip_nulls(
        pg_catalog.jsonb_build_object('name', full_name, 'query', query, 'status', new_status,
                                      'primary_key', primary_key, 'protect', protect))));
END
$$;
COMMENT ON FUNCTION pgtrickle.alter_stream_table IS
    'Asks the service to change a stream table. What is NULL stays as it is; schedule => ''calculated'' takes the '
    'schedule away; primary_key => ''none'' the primary key; cdc_mode, diamond_consistency and '
    'diamond_schedule_policy => ''inherit'' give them back to the setting. Returns the id of the request.';

DROP FUNCTION pgtrickle.create_stream_table_if_not_exists(text, text, text, text, boolean, text, text, text);
CREATE FUNCTION pgtrickle.create_stream_table_if_not_exists(
    name text, query text, schedule text DEFAULT '1m', refresh_mode text DEFAULT 'AUTO',
    initialize boolean DEFAULT true, diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL, cdc_mode text DEFAULT NULL, primary_key text DEFAULT NULL,
    protect boolean DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF pgtrickle_internal.is_stream_table(pg_catalog.to_regclass(name)::pg_catalog.oid) THEN
        RAISE NOTICE 'the stream table % exists already, and stays as it is', name;
        RETURN NULL;
    END IF;
    RETURN pgtrickle.create_stream_table(name, query, schedule, refresh_mode, initialize, diamond_consistency,
                                         diamond_schedule_policy, cdc_mode, primary_key, protect);
END
$$;
COMMENT ON FUNCTION pgtrickle.create_stream_table_if_not_exists IS
    'Like create_stream_table, but a stream table of that name stays as it is; then there is no request, and NULL is '
    'returned.';

DROP FUNCTION pgtrickle.create_or_replace_stream_table(text, text, text, text, boolean, text, text, text);
CREATE FUNCTION pgtrickle.create_or_replace_stream_table(
    name text, query text, schedule text DEFAULT '1m', refresh_mode text DEFAULT 'AUTO',
    initialize boolean DEFAULT true, diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL, cdc_mode text DEFAULT NULL, primary_key text DEFAULT NULL,
    protect boolean DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF pgtrickle_internal.is_stream_table(pg_catalog.to_regclass(name)::pg_catalog.oid) THEN
        RETURN pgtrickle.alter_stream_table(
            name, coalesce(query, ''), coalesce(schedule, 'calculated'), coalesce(refresh_mode, 'AUTO'), NULL,
            diamond_consistency, diamond_schedule_policy, cdc_mode, primary_key, protect);
    END IF;
    RETURN pgtrickle.create_stream_table(name, query, schedule, refresh_mode, initialize, diamond_consistency,
                                         diamond_schedule_policy, cdc_mode, primary_key, protect);
END
$$;
COMMENT ON FUNCTION pgtrickle.create_or_replace_stream_table IS
    'Like create_stream_table, but a stream table of that name is altered to be as given; returns the id of the '
    'request.';
