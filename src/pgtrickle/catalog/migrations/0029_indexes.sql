-- Indexes as an option of a stream table. They are on record here, so that they are made once the table has its rows, and
-- again if the table itself is made again; which of them are there, PostgreSQL knows.

ALTER TABLE pgtrickle.pgt_stream_tables ADD COLUMN indexes text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.indexes IS
    'The indexes that were asked for with it, each as what follows the name of the table in CREATE INDEX.';

DROP FUNCTION pgtrickle.create_stream_table(text, text, text, text, boolean, text, text, text, text, boolean);
CREATE FUNCTION pgtrickle.create_stream_table(
    name text, query text, schedule text DEFAULT '1m', refresh_mode text DEFAULT 'AUTO',
    initialize boolean DEFAULT true, diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL, cdc_mode text DEFAULT NULL, primary_key text DEFAULT NULL,
    protect boolean DEFAULT NULL, indexes text[] DEFAULT NULL)
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
                                      'primary_key', primary_key, 'protect', protect, 'indexes', indexes))));
END
$$;
COMMENT ON FUNCTION pgtrickle.create_stream_table IS
    'Asks the service to create a stream table of a query and to fill it; returns the id of the request. primary_key '
    'names columns, as in ''region, day'': a refresh that would give two rows the same key, or a NULL, fails. protect '
    'has writes by others than refreshes refused. indexes are over columns, as in ARRAY[''(region, day)'', ''UNIQUE (id)'', '
    '''USING gin (tags)''], and are made once the table is filled.';

DROP FUNCTION pgtrickle.alter_stream_table(text, text, text, text, text, text, text, text, text, boolean);
CREATE FUNCTION pgtrickle.alter_stream_table(
    name text, query text DEFAULT NULL, schedule text DEFAULT NULL, refresh_mode text DEFAULT NULL,
    status text DEFAULT NULL, diamond_consistency text DEFAULT NULL, diamond_schedule_policy text DEFAULT NULL,
    cdc_mode text DEFAULT NULL, primary_key text DEFAULT NULL, protect boolean DEFAULT NULL,
    indexes text[] DEFAULT NULL)
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
                primary_key, protect::pg_catalog.text, indexes::pg_catalog.text) IS NULL THEN
        PERFORM pgtrickle_internal.refuse(
            'PT031', 'there is nothing to alter',
            'Give query, schedule, refresh_mode, status, cdc_mode, primary_key, indexes, protect or one of the diamond options.');
    END IF;
    IF query IS NOT NULL THEN
        sources := pgtrickle_internal.check_query(query);
    END IF;
    PERFORM pgtrickle_internal.check_capture(pgtrickle.pgt_id_of(name), options, sources);
    RETURN pgtrickle_internal.add_request('alter', pg_catalog.jsonb_concat(options, pg_catalog.jsonb_strip_nulls(
        pg_catalog.jsonb_build_object('name', full_name, 'query', query, 'status', new_status,
                                      'primary_key', primary_key, 'protect', protect, 'indexes', indexes))));
END
$$;
COMMENT ON FUNCTION pgtrickle.alter_stream_table IS
    'Asks the service to change a stream table. What is NULL stays as it is; schedule => ''calculated'' takes the '
    'schedule away; primary_key => ''none'' the primary key; indexes are all that are wanted, ''{}'' none; cdc_mode, diamond_consistency and '
    'diamond_schedule_policy => ''inherit'' give them back to the setting. Returns the id of the request.';

DROP FUNCTION pgtrickle.create_stream_table_if_not_exists(text, text, text, text, boolean, text, text, text, text, boolean);
CREATE FUNCTION pgtrickle.create_stream_table_if_not_exists(
    name text, query text, schedule text DEFAULT '1m', refresh_mode text DEFAULT 'AUTO',
    initialize boolean DEFAULT true, diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL, cdc_mode text DEFAULT NULL, primary_key text DEFAULT NULL,
    protect boolean DEFAULT NULL, indexes text[] DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF pgtrickle_internal.is_stream_table(pg_catalog.to_regclass(name)::pg_catalog.oid) THEN
        RAISE NOTICE 'the stream table % exists already, and stays as it is', name;
        RETURN NULL;
    END IF;
    RETURN pgtrickle.create_stream_table(name, query, schedule, refresh_mode, initialize, diamond_consistency,
                                         diamond_schedule_policy, cdc_mode, primary_key, protect, indexes);
END
$$;
COMMENT ON FUNCTION pgtrickle.create_stream_table_if_not_exists IS
    'Like create_stream_table, but a stream table of that name stays as it is; then there is no request, and NULL is '
    'returned.';

DROP FUNCTION pgtrickle.create_or_replace_stream_table(text, text, text, text, boolean, text, text, text, text, boolean);
CREATE FUNCTION pgtrickle.create_or_replace_stream_table(
    name text, query text, schedule text DEFAULT '1m', refresh_mode text DEFAULT 'AUTO',
    initialize boolean DEFAULT true, diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL, cdc_mode text DEFAULT NULL, primary_key text DEFAULT NULL,
    protect boolean DEFAULT NULL, indexes text[] DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF pgtrickle_internal.is_stream_table(pg_catalog.to_regclass(name)::pg_catalog.oid) THEN
        RETURN pgtrickle.alter_stream_table(
            name, coalesce(query, ''), coalesce(schedule, 'calculated'), coalesce(refresh_mode, 'AUTO'), NULL,
            diamond_consistency, diamond_schedule_policy, cdc_mode, primary_key, protect, indexes);
    END IF;
    RETURN pgtrickle.create_stream_table(name, query, schedule, refresh_mode, initialize, diamond_consistency,
                                         diamond_schedule_policy, cdc_mode, primary_key, protect, indexes);
END
$$;
COMMENT ON FUNCTION pgtrickle.create_or_replace_stream_table IS
    'Like create_stream_table, but a stream table of that name is altered to be as given; returns the id of the '
    'request.';
