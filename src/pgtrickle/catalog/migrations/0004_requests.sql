-- Requests from SQL: checked here at once as far as can be, carried out by the running service. Diamonds, and functions
-- that show what depends on what.
--
-- Whose rights count. All functions run with the caller's rights, so what the caller may not read or create is refused
-- here, and nothing is done yet. A request is a row; who made it is a default that no one can write, so it cannot be
-- forged. The service acts as that role when it checks the request again, and then hands the table over to it: for
-- both it must be a member of the role (or a superuser), and says so where it is not; for a caller that has all rights
-- of the service it may act as itself. Only a table's owner may alter, drop or refresh it. Who may make requests at all
-- is whoever has USAGE on this schema: the members of pgtrickle_user.

ALTER TABLE pgtrickle.pgt_stream_tables
    ADD COLUMN diamond_consistency text CHECK (diamond_consistency IN ('atomic', 'none')),
    ADD COLUMN diamond_schedule_policy text CHECK (diamond_schedule_policy IN ('fastest', 'slowest'));
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.diamond_consistency IS
    'Whether the tables of the diamond that ends here commit together; NULL leaves it to the setting.';

CREATE TABLE pgtrickle.pgt_diamonds (
    group_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    members      bigint[] NOT NULL,
    convergence  bigint[] NOT NULL,
    consistency  text NOT NULL CHECK (consistency IN ('atomic', 'none')),
    policy       text NOT NULL CHECK (policy IN ('fastest', 'slowest')),
    epoch        bigint NOT NULL DEFAULT 0,
    UNIQUE (members, consistency)
);
COMMENT ON TABLE pgtrickle.pgt_diamonds IS
    'The groups as the service found them, by the ids of stream tables; epoch counts the commits of an atomic group.';

CREATE TABLE pgtrickle.pgt_requests (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind          text NOT NULL CHECK (kind IN ('create', 'alter', 'drop', 'refresh')),
    args          jsonb NOT NULL CHECK (jsonb_typeof(args) = 'object' AND args ->> 'name' IS NOT NULL),
    requested_by  text NOT NULL DEFAULT current_user,
    search_path   text NOT NULL DEFAULT current_setting('search_path'),
    state         text NOT NULL DEFAULT 'PENDING' CHECK (state IN ('PENDING', 'RUNNING', 'DONE', 'FAILED')),
    attempts      integer NOT NULL DEFAULT 0,
    result        jsonb,
    error_code    text,
    error         text,
    hint          text,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at    timestamptz,
    finished_at   timestamptz,
    CHECK ((state IN ('DONE', 'FAILED')) = (finished_at IS NOT NULL)),
    CHECK ((state = 'FAILED') = (error IS NOT NULL))
);
CREATE INDEX ON pgtrickle.pgt_requests (id) WHERE state IN ('PENDING', 'RUNNING');
GRANT INSERT (kind, args) ON pgtrickle.pgt_requests TO PUBLIC;

-- The checks: each raises an error with our code as its SQLSTATE, or returns.

CREATE FUNCTION pgtrickle.refuse(code text, message text, hint text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF hint IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = code, MESSAGE = message;
    END IF;
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = message, HINT = hint;
END
$$;

-- A value of a list, in the list's own spelling; NULL if none is given.
CREATE FUNCTION pgtrickle.check_choice(what text, value text, code text, VARIADIC choices text[]) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    chosen text;
BEGIN
    SELECT c INTO chosen FROM unnest(choices) AS c WHERE lower(c) = lower(btrim(value));
    IF chosen IS NULL AND value IS NOT NULL THEN
        PERFORM pgtrickle.refuse(code, format('there is no %s ''%s''', what, value),
                                 'Use ' || array_to_string(choices, ', ') || '.');
    END IF;
    RETURN chosen;
END
$$;

-- The shape of a schedule; the service knows which cron expressions have times that come.
CREATE FUNCTION pgtrickle.check_schedule(schedule text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given text := lower(btrim(schedule));
    parts text[];
    length numeric;
    least numeric := pgtrickle.setting('min_schedule_seconds', '1')::numeric;
BEGIN
    parts := regexp_match(given, '^(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$');
    IF given IS NULL OR given = 'calculated' THEN
        RETURN;
    ELSIF given <> '' AND parts IS NOT NULL THEN
        length := coalesce(parts[1]::numeric, 0) * 86400 + coalesce(parts[2]::numeric, 0) * 3600
                  + coalesce(parts[3]::numeric, 0) * 60 + coalesce(parts[4]::numeric, 0);
        IF length < least THEN
            PERFORM pgtrickle.refuse('PT011', format('the schedule ''%s'' is shorter than %s s', schedule, least),
                                     'Choose a longer one, or lower pg_trickle.min_schedule_seconds.');
        END IF;
    ELSIF given ~ '^@' OR given ~ '^\S+(\s+\S+){4,5}$' THEN
        IF given !~ '^@(hourly|daily|midnight|weekly|monthly|yearly|annually)$'
           AND given !~ '^[\d*/,\-#?a-z]+(\s+[\d*/,\-#?a-z]+){4,5}$' THEN
            PERFORM pgtrickle.refuse('PT012', format('''%s'' is not a cron expression', schedule),
                                     'Five or six fields, as in ''*/5 * * * *''.');
        END IF;
    ELSE
        PERFORM pgtrickle.refuse('PT010', format('''%s'' is not a schedule', schedule),
                                 'Write a duration (5s, 1h30m, 2d) or a cron expression.');
    END IF;
END
$$;

-- Whether PostgreSQL takes the query as that of a view, and lets the caller read it. In PostgreSQL's own words if not.
-- The block ends by an error of its own, so all that was done in it is undone, whatever the text holds.
CREATE FUNCTION pgtrickle.check_query(query text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF btrim(coalesce(query, ''), E' \t\r\n') = '' THEN
        PERFORM pgtrickle.refuse('PT100', 'the defining query is empty', 'Give one SELECT statement.');
    END IF;
    EXECUTE E'CREATE TEMPORARY VIEW pgtrickle_requested AS\n' || query;
    EXECUTE 'EXPLAIN SELECT * FROM pg_temp.pgtrickle_requested';
    RAISE EXCEPTION USING ERRCODE = 'PTOK0';
EXCEPTION
    WHEN SQLSTATE 'PTOK0' THEN
        RETURN;
END
$$;

-- The full name of a stream table to be created, if the caller may create it there.
CREATE FUNCTION pgtrickle.check_new_name(name text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    parts text[];
    place text;
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
    place := CASE cardinality(parts) WHEN 2 THEN parts[1] ELSE current_schema() END;
    IF place IS NULL OR to_regnamespace(quote_ident(place)) IS NULL THEN
        PERFORM pgtrickle.refuse('PT005', coalesce('there is no schema ' || place, 'no schema to create it in'),
                                 'Write schema.name, with a schema that exists.');
    END IF;
    full_name := pg_catalog.format('%I.%I', place, parts[cardinality(parts)]);
    IF NOT has_schema_privilege(to_regnamespace(quote_ident(place))::oid, 'CREATE') THEN
        PERFORM pgtrickle.refuse('PT402', format('this role may not create tables in schema %s', place),
                                 format('GRANT CREATE ON SCHEMA %I to it.', place));
    END IF;
    IF to_regclass(full_name) IS NOT NULL THEN
        PERFORM pgtrickle.refuse('PT302', pg_catalog.format('%s exists already', full_name), 'Choose another name.');
    END IF;
    RETURN full_name;
END
$$;

-- The full name of a stream table that the caller may change.
CREATE FUNCTION pgtrickle.check_own_name(name text) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    full_name text;
    owner oid;
BEGIN
    SELECT pg_catalog.format('%I.%I', t.pgt_schema, t.pgt_name), c.relowner INTO full_name, owner
    FROM pgtrickle.pgt_stream_tables AS t LEFT JOIN pg_class AS c ON c.oid = t.pgt_relid
    WHERE t.pgt_id = pgtrickle.pgt_id_of(name);
    IF owner IS NULL OR NOT pg_has_role(owner, 'USAGE') THEN
        PERFORM pgtrickle.refuse('PT402', format('this role does not own %s', full_name),
                                 'Only the owner of a stream table may alter, drop or refresh it.');
    END IF;
    RETURN full_name;
END
$$;

CREATE FUNCTION pgtrickle.check_options(
    schedule text, refresh_mode text, diamond_consistency text, diamond_schedule_policy text, cdc_mode text)
RETURNS jsonb LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle.check_schedule(schedule);
    IF upper(refresh_mode) = 'IMMEDIATE' AND lower(cdc_mode) = 'wal' THEN
        PERFORM pgtrickle.refuse('PT009', 'IMMEDIATE refresh does not go with capture from the WAL',
                                 'Leave cdc_mode out: IMMEDIATE has triggers of its own.');
    END IF;
    RETURN jsonb_strip_nulls(jsonb_build_object(
        'schedule', btrim(schedule),
        'refresh_mode', pgtrickle.check_choice(
            'refresh mode', refresh_mode, 'PT006', 'AUTO', 'FULL', 'DIFFERENTIAL', 'IMMEDIATE'),
        'diamond_consistency', pgtrickle.check_choice(
            'diamond consistency', diamond_consistency, 'PT013', 'atomic', 'none'),
        'diamond_schedule_policy', pgtrickle.check_choice(
            'diamond schedule policy', diamond_schedule_policy, 'PT014', 'fastest', 'slowest'),
        'cdc_mode', pgtrickle.check_choice('capture mode', cdc_mode, 'PT007', 'auto', 'trigger', 'wal')));
END
$$;

-- The request, and a call to the service, both of which count when the caller commits. The service is taken to run as
-- the owner of this schema; should it not, it refuses later what it may not do.
CREATE FUNCTION pgtrickle.add_request(kind text, args jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    request_id bigint;
    service name := (SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'pgtrickle');
BEGIN
    IF NOT pg_has_role(service, current_user, 'USAGE') AND NOT pg_has_role(service, 'USAGE') THEN
        PERFORM pgtrickle.refuse('PT402',
                                 format('the service runs as %s, which may not act as %s', service, current_user),
                                 format('GRANT %I TO %I, with INHERIT and SET.', current_user, service));
    END IF;
    INSERT INTO pgtrickle.pgt_requests (kind, args) VALUES ($1, $2) RETURNING id INTO request_id;
    PERFORM pg_notify('pg_trickle_wake', 'request ' || request_id);
    RETURN request_id;
END
$$;

CREATE FUNCTION pgtrickle.create_stream_table(
    name text, query text, schedule text DEFAULT '1m', refresh_mode text DEFAULT 'AUTO',
    initialize boolean DEFAULT true, diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL, cdc_mode text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    full_name text := pgtrickle.check_new_name(name);
    options jsonb := pgtrickle.check_options(
        coalesce(schedule, 'calculated'), coalesce(refresh_mode, 'AUTO'), diamond_consistency,
        diamond_schedule_policy, cdc_mode);
BEGIN
    PERFORM pgtrickle.check_query(query);
    RETURN pgtrickle.add_request('create', options || jsonb_build_object(
        'name', full_name, 'query', query, 'initialize', coalesce(initialize, true)));
END
$$;

-- What is not given stays as it is; schedule => 'calculated' takes the schedule away.
CREATE FUNCTION pgtrickle.alter_stream_table(
    name text, query text DEFAULT NULL, schedule text DEFAULT NULL, refresh_mode text DEFAULT NULL,
    status text DEFAULT NULL, diamond_consistency text DEFAULT NULL, diamond_schedule_policy text DEFAULT NULL,
    cdc_mode text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    full_name text := pgtrickle.check_own_name(name);
    options jsonb := pgtrickle.check_options(
        schedule, refresh_mode, diamond_consistency, diamond_schedule_policy, cdc_mode);
BEGIN
    IF query IS NOT NULL THEN
        PERFORM pgtrickle.check_query(query);
    END IF;
    RETURN pgtrickle.add_request('alter', options || jsonb_strip_nulls(jsonb_build_object(
        'name', full_name, 'query', query,
        'status', pgtrickle.check_choice('status to set', status, 'PT008', 'ACTIVE', 'SUSPENDED'))));
END
$$;

CREATE FUNCTION pgtrickle.drop_stream_table(name text, cascade boolean DEFAULT false)
RETURNS bigint LANGUAGE sql AS $$
    SELECT pgtrickle.add_request('drop', jsonb_build_object(
        'name', pgtrickle.check_own_name($1), 'cascade', coalesce($2, false)))
$$;

CREATE FUNCTION pgtrickle.refresh_stream_table(name text) RETURNS bigint LANGUAGE sql AS $$
    SELECT pgtrickle.add_request('refresh', jsonb_build_object('name', pgtrickle.check_own_name($1)))
$$;

-- Waits until a request is done; raises its error if it failed. By CALL on its own, not in a transaction: it commits
-- again and again, to see what others have done and to hold nothing back.
CREATE PROCEDURE pgtrickle.wait_for(request_id bigint, timeout interval DEFAULT '1 minute') LANGUAGE plpgsql AS $$
DECLARE
    request pgtrickle.pgt_requests;
    patience timestamptz := clock_timestamp() + timeout;
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM pgtrickle.refuse('PT380', 'this transaction has not been committed',
                                 'Commit first: a request counts from then on.');
    END IF;
    LOOP
        SELECT * INTO request FROM pgtrickle.pgt_requests WHERE id = request_id;
        IF request.id IS NULL THEN
            PERFORM pgtrickle.refuse('PT381', format('there is no request %s', request_id),
                                     'pgtrickle.pgt_requests has all; one that was rolled back never was.');
        ELSIF request.state = 'DONE' THEN
            RETURN;
        ELSIF request.state = 'FAILED' THEN
            PERFORM pgtrickle.refuse(coalesce(request.error_code, 'PT000'), request.error, request.hint);
        ELSIF clock_timestamp() >= patience THEN
            PERFORM pgtrickle.refuse('PT382', format('request %s is still %s', request_id, request.state),
                                     'Wait longer; if it stays PENDING, start the service: pgtrickle run.');
        END IF;
        COMMIT;
        PERFORM pg_sleep(least(0.1, greatest(extract(epoch FROM patience - clock_timestamp()), 0)));
    END LOOP;
END
$$;

-- One row a member of each diamond, as the service last found them.
CREATE FUNCTION pgtrickle.diamond_groups()
RETURNS TABLE (group_id bigint, member_name text, member_schema text, is_convergence boolean, epoch bigint,
               schedule_policy text, consistency text)
LANGUAGE sql STABLE AS $$
    SELECT g.group_id, t.pgt_name, t.pgt_schema, t.pgt_id = ANY (g.convergence), g.epoch, g.policy, g.consistency
    FROM pgtrickle.pgt_diamonds AS g JOIN pgtrickle.pgt_stream_tables AS t ON t.pgt_id = ANY (g.members)
    ORDER BY g.group_id, t.pgt_id = ANY (g.convergence), t.pgt_schema, t.pgt_name
$$;

-- Every stream table that no other reads, with what it reads below it, and what that reads, and so on.
CREATE FUNCTION pgtrickle.dependency_tree()
RETURNS TABLE (tree_line text, node text, node_type text, depth integer, status text, refresh_mode text)
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE edges AS (
        SELECT t.pgt_relid AS reader, d.source_relid AS source,
               pg_catalog.format('%I.%I', d.source_schema, d.source_name) AS name,
               row_number() OVER (PARTITION BY d.pgt_id ORDER BY d.source_schema, d.source_name) AS place,
               row_number() OVER (PARTITION BY d.pgt_id ORDER BY d.source_schema DESC, d.source_name DESC) = 1 AS last
        FROM pgtrickle.pgt_dependencies AS d JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)
    ), tree AS (
        SELECT t.pgt_relid AS relid, pg_catalog.format('%I.%I', t.pgt_schema, t.pgt_name) AS name, '' AS branch, '' AS stem,
               ARRAY[row_number() OVER (ORDER BY t.pgt_schema, t.pgt_name)] AS place, ARRAY[t.pgt_relid] AS way
        FROM pgtrickle.pgt_stream_tables AS t
        WHERE NOT EXISTS (SELECT FROM edges AS e WHERE e.source = t.pgt_relid AND e.reader <> t.pgt_relid)
        UNION ALL
        SELECT e.source, e.name, tree.stem || CASE WHEN e.last THEN '`-- ' ELSE '|-- ' END,
               tree.stem || CASE WHEN e.last THEN '    ' ELSE '|   ' END, tree.place || e.place, tree.way || e.source
        FROM tree JOIN edges AS e ON e.reader = tree.relid
        WHERE e.source <> ALL (tree.way)
    )
    SELECT tree.branch || tree.name || CASE WHEN s.pgt_id IS NULL THEN ' [src]' ELSE '' END, tree.name,
           CASE WHEN s.pgt_id IS NULL THEN 'source_table' ELSE 'stream_table' END, cardinality(tree.way) - 1,
           s.status, s.refresh_mode
    FROM tree LEFT JOIN pgtrickle.pgt_stream_tables AS s ON s.pgt_relid = tree.relid
    ORDER BY tree.place
$$;

CREATE FUNCTION pgtrickle.st_refresh_stats()
RETURNS TABLE (pgt_name text, pgt_schema text, status text, refresh_mode text, is_populated boolean,
               total_refreshes bigint, successful_refreshes bigint, failed_refreshes bigint,
               total_rows_inserted numeric, total_rows_deleted numeric, avg_duration_ms double precision,
               last_refresh_action text, last_refresh_status text, last_refresh_at timestamptz,
               staleness_secs double precision)
LANGUAGE sql STABLE AS $$
    SELECT s.pgt_name, s.pgt_schema, s.status, s.refresh_mode, s.is_populated, s.total_refreshes,
           s.successful_refreshes, s.failed_refreshes, s.rows_inserted, s.rows_deleted, s.avg_duration_ms,
           s.last_action, s.last_status, t.last_refresh_at, extract(epoch FROM s.staleness)::double precision
    FROM pgtrickle.pg_stat_stream_tables AS s JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)
    ORDER BY s.pgt_schema, s.pgt_name
$$;

-- What the catalog knows of a stream table, a property a row. How a refresh computes it is worked out by the program:
-- `pgtrickle explain` shows that.
CREATE FUNCTION pgtrickle.explain_st(name text) RETURNS TABLE (property text, value text) LANGUAGE sql STABLE AS $$
    SELECT p.property, p.value
    FROM pgtrickle.pgt_stream_tables AS t
    CROSS JOIN LATERAL (
        SELECT string_agg(pg_catalog.format('%I.%I (%s) by %s', d.source_schema, d.source_name,
                                 array_to_string(d.columns_used, ', '), d.cdc_mode),
                          E'\n' ORDER BY d.source_schema, d.source_name) AS sources
        FROM pgtrickle.pgt_dependencies AS d WHERE d.pgt_id = t.pgt_id
    ) AS d
    CROSS JOIN LATERAL (
        SELECT string_agg(pg_catalog.format('%I.%I', u.pgt_schema, u.pgt_name), ', ' ORDER BY u.pgt_schema, u.pgt_name) AS readers
        FROM pgtrickle.pgt_dependencies AS r JOIN pgtrickle.pgt_stream_tables AS u USING (pgt_id)
        WHERE r.source_relid = t.pgt_relid
    ) AS r
    CROSS JOIN LATERAL (VALUES
        (1, 'name', pg_catalog.format('%I.%I', t.pgt_schema, t.pgt_name)),
        (2, 'defining query', t.defining_query),
        (3, 'as PostgreSQL reads it', t.normalized_query),
        (4, 'refresh mode', t.refresh_mode),
        (5, 'effective mode', t.effective_mode || coalesce(': ' || t.mode_reason, '')),
        (6, 'schedule', coalesce(t.schedule, 'calculated')),
        (7, 'status', t.status || coalesce(': ' || t.last_error, '')),
        (8, 'sources', d.sources),
        (9, 'read by', r.readers),
        (10, 'data of', coalesce(t.data_timestamp::text, 'not populated')),
        (11, 'will be computed anew', CASE WHEN t.needs_reinit THEN coalesce(t.reinit_reason, 'yes') END),
        (12, 'diamond group', (SELECT string_agg(g.group_id::text, ', ') FROM pgtrickle.pgt_diamonds AS g
                               WHERE t.pgt_id = ANY (g.members)))
    ) AS p(place, property, value)
    WHERE t.pgt_id = pgtrickle.pgt_id_of($1) AND p.value IS NOT NULL
    ORDER BY p.place
$$;
