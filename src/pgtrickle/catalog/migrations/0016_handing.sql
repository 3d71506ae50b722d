-- Work that is handed to the running service: by whom it would be taken, and what the one who waits for it can be told.

-- What kind of error it was, as Python calls it, and where in the query, by which the command line says what it would have
-- said itself. `error` has the place in its text as well.
ALTER TABLE pgtrickle.pgt_requests ADD COLUMN error_kind text, ADD COLUMN error_at text;

-- The login roles of the running services that would take a request of one role about a stream table of another, or about
-- a new one (NULL). The same rule as in `scheduler/requests.py`: a service must serve both, and an owner's own comes first.
CREATE FUNCTION pgtrickle.takers(requester oid, owner oid) RETURNS SETOF oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.role_oid FROM pgtrickle.serving_roles() AS s
    WHERE pgtrickle.serves(s.role_oid, requester) AND (owner IS NULL OR pgtrickle.serves(s.role_oid, owner))
      AND (s.role_oid = coalesce(owner, requester)
           OR coalesce(owner, requester) NOT IN (SELECT o.role_oid FROM pgtrickle.serving_roles() AS o))
$$;

CREATE FUNCTION pgtrickle.is_taken(requester oid, owner oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pgtrickle.takers(requester, owner))
$$;

-- How far a request is, for who waits for it: how many are before it, and how many rows of its table's refresh have been
-- written to where they wait for the commit, as far as that can be seen.
CREATE FUNCTION pgtrickle.request_progress(
    request_id bigint, OUT state text, OUT ahead bigint, OUT waits text, OUT is_served boolean, OUT refreshing boolean,
    OUT rows_so_far bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.state,
           (SELECT count(*) FROM pgtrickle.pgt_requests AS e WHERE e.id < r.id AND e.state IN ('PENDING', 'RUNNING')),
           pgtrickle.why_waiting(r.id),
           o.oid IS NULL OR pgtrickle.is_taken(o.oid, c.relowner),
           EXISTS (SELECT FROM pgtrickle.pgt_refresh_history AS h WHERE h.pgt_id = p.pgt_id AND h.status = 'RUNNING'),
           (SELECT sum(k.tuples_processed)::bigint FROM pg_stat_progress_copy AS k JOIN pg_class AS s ON s.oid = k.relid
            WHERE k.datname = current_database() AND s.relnamespace = to_regnamespace('pgtrickle_state')
              AND starts_with(s.relname, format('stage_%s_', p.pgt_id)))
    FROM pgtrickle.pgt_requests AS r
    LEFT JOIN pg_roles AS o ON o.rolname = r.requested_by
    LEFT JOIN pgtrickle.pgt_present AS p ON format('%I.%I', p.pgt_schema, p.pgt_name) = r.args ->> 'name'
    LEFT JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)
    LEFT JOIN pg_class AS c ON c.oid = t.pgt_relid AND r.kind <> 'create'
    WHERE r.id = request_id
$$;

-- Tables that were made without rows are filled by the service when they are first due.
ALTER TABLE pgtrickle.pgt_stream_tables ADD COLUMN fill_when_due boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.fill_when_due IS
    'Made with initialize => false: the service fills it when it is first due. Otherwise its maker does.';
UPDATE pgtrickle.pgt_stream_tables SET fill_when_due = true WHERE NOT is_populated;

-- Stream tables that were never filled, with what will become of each; not those that are being filled now.
CREATE FUNCTION pgtrickle.unfilled_tables() RETURNS TABLE (pgt_id bigint, name text, severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT t.pgt_id, format('%I.%I', p.pgt_schema, p.pgt_name), 'WARN',
           format('%I.%I was never filled: ', p.pgt_schema, p.pgt_name)
           || CASE WHEN t.status = 'SUSPENDED' THEN 'it is suspended'
                   WHEN NOT t.fill_when_due THEN 'whoever created it has not ended, or was stopped'
                   WHEN t.schedule IS NULL THEN 'it has no schedule, and is filled when a table that reads it is due'
                   ELSE format('the service fills it when it is first due (%s)', t.schedule) END
           || format('; pgtrickle.refresh_stream_table(%L, full => true) does now',
                     format('%I.%I', p.pgt_schema, p.pgt_name))
    FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)
    WHERE NOT t.is_populated AND p.is_there AND NOT EXISTS (
        SELECT FROM pgtrickle.pgt_refresh_history AS h WHERE h.pgt_id = t.pgt_id AND h.status = 'RUNNING')
$$;

-- What is already known to fail is refused in the caller's session, with our code in the message.

CREATE OR REPLACE FUNCTION pgtrickle.refuse(code text, message text, hint text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF hint IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = code, MESSAGE = concat(code, ': ', message);
    END IF;
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = concat(code, ': ', message), HINT = hint;
END
$$;

-- Raises PostgreSQL's refusal of a query: with its SQLSTATE and words, and our code (as in `query/analyze.py`). `parsed`
-- says that the text is a statement, and is refused as the query of a view.
CREATE FUNCTION pgtrickle.refuse_query(state text, said text, told text, hint text, parsed boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    code text := CASE
        WHEN state = '42P11' AND said LIKE '%multi-query%' THEN 'PT101'
        WHEN state IN ('42P11', '0A000') OR state = '42601' AND parsed THEN 'PT102'
        WHEN state IN ('42P02', '42P18') THEN 'PT103'
        WHEN state = '42701' THEN 'PT104'
        WHEN state = '42P16' THEN 'PT105'
        WHEN state IN ('42P01', '42703', '42883', '3F000', '42704') THEN 'PT106'
        WHEN state = '42501' AND said LIKE '%temporary%' THEN 'PT407'
        WHEN state = '42501' THEN 'PT107'
        WHEN starts_with(state, '54') THEN 'PT110'
        ELSE 'PT100' END;
    message text := CASE code
        WHEN 'PT101' THEN 'more than one statement given'
        WHEN 'PT102' THEN 'not a query a view could have: ' || said
        WHEN 'PT103' THEN 'a defining query cannot have parameters'
        WHEN 'PT110' THEN 'too much for PostgreSQL: ' || said
        ELSE said END;
    advice text := coalesce(nullif(hint, ''), CASE code
        WHEN 'PT101' THEN 'Give one SELECT statement.'
        WHEN 'PT102' THEN 'The defining query is one SELECT (or WITH ... SELECT) that changes nothing.'
        WHEN 'PT103' THEN 'Write the value itself.'
        WHEN 'PT104' THEN 'Give each output column its own name with AS.'
        WHEN 'PT105' THEN 'Select at least one column, each of a type that a table can have.'
        WHEN 'PT106' THEN 'Check the name and search_path.'
        WHEN 'PT107' THEN 'GRANT SELECT on it to this role.'
        WHEN 'PT110' THEN 'Make it smaller: fewer levels of nesting, columns or tables.'
        WHEN 'PT407' THEN 'GRANT TEMPORARY on the database to this role.'
        ELSE 'Correct the query until PostgreSQL accepts it.' END);
BEGIN
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = concat(code, ': ', message), DETAIL = told, HINT = advice;
END
$$;

-- What the rule of a view depends on, itself and through other views: objects and columns.
CREATE FUNCTION pgtrickle.read_by_view(view oid) RETURNS TABLE (classid oid, objid oid, attnum integer)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE reads AS (
        SELECT d.refclassid AS classid, d.refobjid AS objid, d.refobjsubid AS attnum
        FROM pg_depend AS d JOIN pg_rewrite AS r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
        WHERE r.ev_class = view AND d.refobjid <> view
        UNION
        SELECT d.refclassid, d.refobjid, d.refobjsubid
        FROM reads JOIN pg_class AS c ON reads.classid = 'pg_class'::regclass AND c.oid = reads.objid AND c.relkind = 'v'
        JOIN pg_rewrite AS r ON r.ev_class = c.oid AND r.rulename = '_RETURN'
        JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refobjid <> c.oid
    ) SELECT reads.classid, reads.objid, reads.attnum FROM reads
$$;

-- The tables that a view reads, itself and through other views, with the columns of each: {"oid": [...]}. Refuses what no
-- stream table can read.
CREATE FUNCTION pgtrickle.sources_of_view(view oid) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wrong text;
    found jsonb;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = view AND attnum > 0) THEN
        PERFORM pgtrickle.refuse('PT112', 'the query has no columns', 'Select at least one.');
    ELSIF (SELECT count(*) FROM pg_attribute WHERE attrelid = view AND attnum > 0) > 1590 THEN
        PERFORM pgtrickle.refuse('PT113', 'the query has more columns than the 1590 that a stream table can have',
                                 'Select fewer, or make two stream tables of it.');
    END IF;
    SELECT format('%s.%s', n.nspname, o.name) INTO wrong
    FROM pgtrickle.read_by_view(view) AS r
    JOIN (SELECT 'pg_class'::regclass AS classid, oid, relnamespace AS namespace, relname AS name FROM pg_class
          UNION ALL SELECT 'pg_proc'::regclass, oid, pronamespace, proname FROM pg_proc) AS o
        ON o.classid = r.classid AND o.oid = r.objid
    JOIN pg_namespace AS n ON n.oid = o.namespace
    WHERE n.nspname IN ('pgtrickle', 'pgtrickle_changes', 'pgtrickle_state') LIMIT 1;
    IF wrong IS NOT NULL THEN
        PERFORM pgtrickle.refuse('PT315', format('%s belongs to pgtrickle itself: a stream table cannot read it', wrong),
                                 'Ask the catalog directly, or make a plain view of it.');
    END IF;
    SELECT c.relname INTO wrong FROM pgtrickle.read_by_view(view) AS r JOIN pg_class AS c ON c.oid = r.objid
    WHERE r.classid = 'pg_class'::regclass AND c.relpersistence = 't' LIMIT 1;
    IF wrong IS NOT NULL THEN
        PERFORM pgtrickle.refuse('PT108', format('%s is temporary: other sessions cannot read it', wrong),
                                 'Use a permanent table.');
    END IF;
    SELECT jsonb_object_agg(s.oid, s.columns) INTO found FROM (
        SELECT c.oid, coalesce(jsonb_agg(DISTINCT a.attname) FILTER (WHERE a.attname IS NOT NULL), '[]') AS columns
        FROM pgtrickle.read_by_view(view) AS r JOIN pg_class AS c ON c.oid = r.objid AND c.relkind <> 'v'
        LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = r.attnum AND r.attnum > 0
        WHERE r.classid = 'pg_class'::regclass GROUP BY c.oid
    ) AS s;
    RETURN coalesce(found, '{}');
END
$$;

-- Whether PostgreSQL takes the query as that of a view, and lets the caller read it; if so, what it reads. A cursor is
-- opened and never read: PostgreSQL analyses and plans the text, refuses more than one statement, and runs nothing. The
-- block ends by an error of its own, so that the view is gone.
DROP FUNCTION pgtrickle.check_query(text);
CREATE FUNCTION pgtrickle.check_query(query text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    probe pg_catalog.refcursor;
    parsed pg_catalog.bool := false;
    found pg_catalog.jsonb;
    state pg_catalog.text;
    said pg_catalog.text;
    told pg_catalog.text;
    advice pg_catalog.text;
BEGIN
    PERFORM pgtrickle.require_query(query);
    OPEN probe FOR EXECUTE query;
    CLOSE probe;
    parsed := true;
    EXECUTE pg_catalog.concat('CREATE TEMPORARY VIEW pgtrickle_requested AS', pg_catalog.chr(10), query);
    found := pgtrickle.sources_of_view(pg_catalog.to_regclass('pg_temp.pgtrickle_requested')::pg_catalog.oid);
    RAISE EXCEPTION USING ERRCODE = 'PTOK0';
EXCEPTION
    WHEN SQLSTATE 'PTOK0' THEN
        RETURN found;
    WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, said = MESSAGE_TEXT, told = PG_EXCEPTION_DETAIL,
            advice = PG_EXCEPTION_HINT;
        IF pgtrickle.is_of_the_query(state) THEN
            PERFORM pgtrickle.refuse_query(state, said, told, advice, parsed);
        END IF;
        RAISE;
END
$$;

-- Whether an error is PostgreSQL's word on a query: not ours, nor one of the session or the server.
CREATE FUNCTION pgtrickle.is_of_the_query(state text) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT left(state, 2) IN ('42', '0A', '22', '3F', '54', '2B', 'XX')
$$;

-- Whether one field of a cron expression has a number, word or step that it cannot have. (croniter takes a day 0.)
CREATE FUNCTION pgtrickle.is_wrong_in_cron(field text, first integer, last integer, VARIADIC words text[] DEFAULT ARRAY[]::text[])
RETURNS boolean LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
    SELECT field ~ '/0+($|[^0-9])' OR field ~ '(^|,)(,|$)' OR EXISTS (
        SELECT FROM regexp_matches(regexp_replace(field, '/[0-9]+', '', 'g'), '[0-9]+|[a-z]+|[?#]', 'g') AS part
        WHERE CASE WHEN part[1] ~ '^[0-9]+$' THEN part[1]::numeric NOT BETWEEN first AND last
                   ELSE part[1] <> ALL (words) END)
$$;

-- Whether a cron expression of the right shape is wrong for sure; the service knows which have times that come.
CREATE FUNCTION pgtrickle.is_wrong_cron(given text) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
    SELECT pgtrickle.is_wrong_in_cron(f[1], 0, 59) OR pgtrickle.is_wrong_in_cron(f[2], 0, 59)
        OR pgtrickle.is_wrong_in_cron(f[3], 0, 23) OR pgtrickle.is_wrong_in_cron(f[4], 0, 31, 'l', '?')
        OR pgtrickle.is_wrong_in_cron(f[5], 1, 12, 'jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct',
                                      'nov', 'dec')
        OR pgtrickle.is_wrong_in_cron(f[6], 0, 7, 'sun', 'mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'l', '?', '#')
    FROM (SELECT CASE cardinality(s) WHEN 5 THEN ARRAY['0'] || s ELSE s END AS f
          FROM regexp_split_to_array(btrim(given), '\s+') AS s) AS fields
$$;

ALTER FUNCTION pgtrickle.check_schedule(text) RENAME TO check_schedule_shape;
CREATE FUNCTION pgtrickle.check_schedule(schedule text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET standard_conforming_strings = on AS $$
DECLARE
    given text := lower(btrim(schedule));
BEGIN
    PERFORM pgtrickle.check_schedule_shape(schedule);
    IF given ~ '^\S+(\s+\S+){4,5}$' AND pgtrickle.is_wrong_cron(given) THEN
        PERFORM pgtrickle.refuse('PT012', format('''%s'' is not a cron expression', schedule),
                                 'Five or six fields, as in ''*/5 * * * *''.');
    END IF;
END
$$;

-- Refuses capture from the WAL that a table asks for by name, where a source cannot be: as seen by the service that would
-- take the request, or, if none runs, by the owner of the catalog. Stream tables stay on triggers, unless there is
-- nothing else. `sources` is as sources_of_view() has it.
CREATE FUNCTION pgtrickle.check_wal(sources jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    service oid := coalesce(
        (SELECT min(t::text::bigint)::oid FROM pgtrickle.takers(current_user::regrole, NULL) AS t),
        (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgtrickle'));
    refused record;
BEGIN
    WITH wanted AS (
        SELECT s.key::oid AS relid, ARRAY(SELECT jsonb_array_elements_text(s.value)) AS columns,
               EXISTS (SELECT FROM pgtrickle.pgt_stream_tables AS t WHERE t.pgt_relid = s.key::oid) AS is_stream
        FROM jsonb_each(sources) AS s
    ) SELECT w.relid::regclass AS source, e.code, e.reason, e.hint INTO refused
    FROM wanted AS w CROSS JOIN LATERAL pgtrickle.wal_eligibility(
        w.relid, w.columns, service, pgtrickle.setting('auto_replica_identity', 'off')::boolean) AS e
    WHERE e.code IS NOT NULL AND (NOT w.is_stream OR (SELECT bool_and(o.is_stream) FROM wanted AS o))
    ORDER BY w.relid LIMIT 1;
    IF refused.code IS NOT NULL THEN
        PERFORM pgtrickle.refuse(
            refused.code, format('changes of %s cannot be captured from the WAL: %s', refused.source, refused.reason),
            refused.hint);
    END IF;
END
$$;

-- Refuses sources whose changes can surely not be captured, for a table that is to be DIFFERENTIAL. What the caller does
-- not own, no service owns that serves her. (On PostgreSQL's own tables no dependency is recorded: the service refuses.)
CREATE FUNCTION pgtrickle.check_differential(sources jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    refused record;
BEGIN
    SELECT w.code, w.what, w.hint INTO refused
    FROM jsonb_object_keys(sources) AS s(relid) JOIN pg_class AS c ON c.oid = s.relid::oid
    CROSS JOIN LATERAL (VALUES
        (1, c.relkind = 'm', 'PT204', format('%s is a materialized view: its changes cannot be captured', c.oid::regclass),
         'Make it a stream table, query its sources, or use refresh_mode => ''FULL''.'),
        (2, c.relkind = 'f', 'PT205', format('%s is a foreign table: it cannot be read at a snapshot', c.oid::regclass),
         'Use refresh_mode => ''FULL''.'),
        (3, c.relkind = 'S', 'PT206',
         format('%s is a system relation: its changes cannot be captured', c.oid::regclass),
         'Use refresh_mode => ''FULL''.'),
        (4, NOT pg_has_role(c.relowner, 'USAGE'), 'PT251',
         format('changes of %s cannot be captured: this role does not own it, so it cannot add triggers', c.oid::regclass),
         'Ask as the owner of the table, or use refresh_mode => ''FULL''.')
    ) AS w(place, holds, code, what, hint)
    WHERE w.holds ORDER BY c.oid, w.place LIMIT 1;
    IF refused.code IS NOT NULL THEN
        PERFORM pgtrickle.refuse(refused.code, refused.what, refused.hint);
    END IF;
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
    PERFORM pgtrickle.check_capture(NULL, options, pgtrickle.check_query(query));
    RETURN pgtrickle.add_request('create', pg_catalog.jsonb_concat(options, pg_catalog.jsonb_build_object(
        'name', full_name, 'query', query, 'initialize', coalesce(initialize, true))));
END
$$;

-- Whether what is asked of a new stream table (NULL) or of one that there is, can be captured as it asks for.
-- `sources` are those of its new query, NULL if it stays as it is.
CREATE FUNCTION pgtrickle.check_capture(pgt_id bigint, options jsonb, sources jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    stream pgtrickle.pgt_stream_tables;
    reads jsonb := coalesce(sources, (SELECT jsonb_object_agg(d.source_relid::oid, to_jsonb(d.columns_used))
                                      FROM pgtrickle.pgt_dependencies AS d WHERE d.pgt_id = $1), '{}');
BEGIN
    SELECT t.* INTO stream FROM pgtrickle.pgt_stream_tables AS t WHERE t.pgt_id = $1;
    IF options ->> 'refresh_mode' = 'DIFFERENTIAL'
       OR options -> 'refresh_mode' IS NULL AND sources IS NOT NULL AND stream.refresh_mode = 'DIFFERENTIAL' THEN
        PERFORM pgtrickle.check_differential(reads);
    END IF;
    IF coalesce(options ->> 'cdc_mode', CASE WHEN sources IS NOT NULL THEN stream.requested_cdc_mode END) = 'wal'
       AND coalesce(options ->> 'refresh_mode', CASE WHEN sources IS NULL THEN stream.effective_mode END,
                    stream.refresh_mode, 'AUTO') <> 'FULL' THEN
        PERFORM pgtrickle.check_wal(reads);
    END IF;
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
    new_status pg_catalog.text := pgtrickle.check_choice('status to set', status, 'PT008', 'ACTIVE', 'SUSPENDED');
    sources pg_catalog.jsonb;
BEGIN
    IF coalesce(query, schedule, refresh_mode, status, diamond_consistency, diamond_schedule_policy, cdc_mode) IS NULL THEN
        PERFORM pgtrickle.refuse('PT031', 'there is nothing to alter',
                                 'Give query, schedule, refresh_mode, status, cdc_mode or one of the diamond options.');
    END IF;
    IF query IS NOT NULL THEN
        sources := pgtrickle.check_query(query);
    END IF;
    PERFORM pgtrickle.check_capture(pgtrickle.pgt_id_of(name), options, sources);
    RETURN pgtrickle.add_request('alter', pg_catalog.jsonb_concat(options, pg_catalog.jsonb_strip_nulls(
        pg_catalog.jsonb_build_object('name', full_name, 'query', query, 'status', new_status))));
END
$$;

-- Whether a relation is a stream table.
CREATE FUNCTION pgtrickle.is_stream_table(relation oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)
                   WHERE p.is_there AND t.pgt_relid = relation)
$$;

-- A stream table of that name stays as it is, and there is no request (NULL).
CREATE FUNCTION pgtrickle.create_stream_table_if_not_exists(
    name text, query text, schedule text DEFAULT '1m', refresh_mode text DEFAULT 'AUTO',
    initialize boolean DEFAULT true, diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL, cdc_mode text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF pgtrickle.is_stream_table(pg_catalog.to_regclass(name)::pg_catalog.oid) THEN
        RAISE NOTICE 'the stream table % exists already, and stays as it is', name;
        RETURN NULL;
    END IF;
    RETURN pgtrickle.create_stream_table(name, query, schedule, refresh_mode, initialize, diamond_consistency,
                                         diamond_schedule_policy, cdc_mode);
END
$$;

-- A stream table of that name is altered to be as given.
CREATE FUNCTION pgtrickle.create_or_replace_stream_table(
    name text, query text, schedule text DEFAULT '1m', refresh_mode text DEFAULT 'AUTO',
    initialize boolean DEFAULT true, diamond_consistency text DEFAULT NULL,
    diamond_schedule_policy text DEFAULT NULL, cdc_mode text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF pgtrickle.is_stream_table(pg_catalog.to_regclass(name)::pg_catalog.oid) THEN
        RETURN pgtrickle.alter_stream_table(
            name, coalesce(query, ''), coalesce(schedule, 'calculated'), coalesce(refresh_mode, 'AUTO'), NULL,
            diamond_consistency, diamond_schedule_policy, cdc_mode);
    END IF;
    RETURN pgtrickle.create_stream_table(name, query, schedule, refresh_mode, initialize, diamond_consistency,
                                         diamond_schedule_policy, cdc_mode);
END
$$;

-- Waiting. The service sees a request once it is committed, and a procedure that waits must be able to end its own
-- transaction, or it would keep what it has locked.

DROP FUNCTION pgtrickle.begin_waiting(interval);
CREATE FUNCTION pgtrickle.begin_waiting(request_id bigint, timeout interval) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM pgtrickle.refuse(
            'PT380',
            CASE WHEN EXISTS (SELECT FROM pgtrickle.pgt_requests AS r WHERE r.id = request_id
                              AND r.xmin = pg_current_xact_id_if_assigned()::xid)
                 THEN format('request %s was made in this transaction, and no service can see it before it is committed',
                             request_id)
                 ELSE 'this transaction has not been committed' END,
            format('Commit first, then CALL pgtrickle.wait_for(%s) by itself.', request_id));
    END IF;
    RETURN clock_timestamp() + timeout;
END
$$;

-- What PostgreSQL says, in the language of this session, where a transaction cannot be ended.
CREATE FUNCTION pgtrickle.no_commit_here() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    COMMIT;
    RETURN NULL;
EXCEPTION WHEN invalid_transaction_termination THEN
    RETURN SQLERRM;
END
$$;

-- Refuses to wait where `said`, the answer to a COMMIT in a block that can never commit, is that of a transaction which
-- is not the procedure's to end. (Elsewhere the answer is another one, by that very block.)
CREATE FUNCTION pgtrickle.require_own_transaction(request_id bigint, said text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF said = pgtrickle.no_commit_here() THEN
        PERFORM pgtrickle.refuse('PT454', 'wait_for cannot wait inside a transaction block or a function',
                                 format('End the transaction, then CALL pgtrickle.wait_for(%s) by itself, with'
                                        ' autocommit on; or look at pgtrickle.pgt_requests.', request_id));
    END IF;
END
$$;

CREATE OR REPLACE PROCEDURE pgtrickle.wait_for(request_id bigint, timeout interval DEFAULT '1 minute')
LANGUAGE plpgsql AS $$
DECLARE
    patience pg_catalog.timestamptz;
BEGIN
    IF request_id IS NULL THEN  -- of a function that had nothing to ask for
        RETURN;
    END IF;
    patience := pgtrickle.begin_waiting(request_id, timeout);
    IF pgtrickle.is_done(request_id, patience) THEN
        RETURN;
    END IF;
    BEGIN
        COMMIT;
    EXCEPTION WHEN invalid_transaction_termination THEN
        PERFORM pgtrickle.require_own_transaction(request_id, SQLERRM);
    END;
    WHILE NOT pgtrickle.is_done(request_id, patience) LOOP
        COMMIT;
        PERFORM pg_catalog.pg_sleep(0.1);
    END LOOP;
END
$$;
