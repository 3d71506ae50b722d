-- Waiting inside a transaction, and what a stream table costs and how its changes are computed, told by SQL.

-- Waiting ------------------------------------------------------------------------------------------------------------

ALTER TABLE pgtrickle.pgt_requests ADD COLUMN requested_in xid8 NOT NULL DEFAULT pg_current_xact_id();
COMMENT ON COLUMN pgtrickle.pgt_requests.requested_in IS 'The transaction that made the request.';

-- Whether a session of pgtrickle waits for a lock that this one has. The names of sessions are there for everybody to see.
CREATE FUNCTION pgtrickle_internal.is_in_the_way() RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pg_stat_activity AS a
                   WHERE a.datname = current_database() AND a.application_name LIKE 'pgtrickle%'
                     AND pg_backend_pid() = ANY (pg_blocking_pids(a.pid)))
$$;
COMMENT ON FUNCTION pgtrickle_internal.is_in_the_way IS
    'Internal: whether a session of pgtrickle waits for a lock that this session has.';

-- Refuses at once to wait for what this transaction can never see done.
CREATE FUNCTION pgtrickle_internal.require_visible_end(request_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    request pgtrickle.pgt_requests;
BEGIN
    SELECT * INTO request FROM pgtrickle.pgt_requests WHERE id = request_id;
    IF request.state IN ('DONE', 'FAILED') THEN
        RETURN;
    ELSIF request.requested_in = pg_current_xact_id_if_assigned() THEN
        PERFORM pgtrickle_internal.refuse(
            'PT380',
            format('request %s was made in this transaction, and no service can see it before it is committed', request_id),
            'Commit first, then wait.');
    ELSIF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        PERFORM pgtrickle_internal.refuse(
            'PT457',
            format('this transaction is %s: it sees request %s as it was when it began, and never that it is done',
                   upper(current_setting('transaction_isolation')), request_id),
            'Wait before the transaction, or in one that is READ COMMITTED.');
    END IF;
END
$$;
COMMENT ON FUNCTION pgtrickle_internal.require_visible_end IS
    'Internal: refuses to wait for a request that this transaction can never see done.';

CREATE FUNCTION pgtrickle.wait_for_request(request_id bigint, timeout interval DEFAULT '1 minute') RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    patience timestamptz := clock_timestamp() + timeout;
    has_told boolean := false;
BEGIN
    IF request_id IS NULL THEN  -- of a function that had nothing to ask for
        RETURN NULL;
    END IF;
    PERFORM pgtrickle_internal.require_visible_end(request_id);
    WHILE NOT pgtrickle_internal.is_done(request_id, patience) LOOP
        PERFORM pg_sleep(0.1);
        PERFORM pg_stat_clear_snapshot();  -- or sessions would stay as this transaction saw them first
        IF NOT has_told AND pgtrickle_internal.is_in_the_way() THEN
            RAISE NOTICE 'a session of pgtrickle waits for a lock that this transaction has'
                USING HINT = 'If the request needs that lock, it cannot be done before this transaction ends.';
            has_told := true;
        END IF;
    END LOOP;
    RETURN (SELECT r.result FROM pgtrickle.pgt_requests AS r WHERE r.id = request_id);
END
$$;
COMMENT ON FUNCTION pgtrickle.wait_for_request IS
    'Waits until a request is done, and returns its result, or raises its error. Unlike wait_for, it may be called '
    'inside a transaction and in functions. It can wait for requests that were committed before: one that this '
    'transaction made itself (PT380), or any in a transaction that is REPEATABLE READ or SERIALIZABLE (PT457), is '
    'refused at once. The transaction keeps its locks meanwhile, and the request may need them.';

-- The same words where the transaction is the caller's, and what may be in the way.
CREATE OR REPLACE FUNCTION pgtrickle_internal.is_done(request_id bigint, patience timestamptz) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    request pgtrickle.pgt_requests;
BEGIN
    SELECT * INTO request FROM pgtrickle.pgt_requests WHERE id = request_id;
    IF request.id IS NULL THEN
        PERFORM pgtrickle_internal.refuse('PT381', format('there is no request %s', request_id),
                                          'pgtrickle.pgt_requests has all; one that was rolled back never was.');
    ELSIF request.state = 'DONE' THEN
        RETURN true;
    ELSIF request.state = 'FAILED' THEN
        PERFORM pgtrickle_internal.refuse(coalesce(request.error_code, 'PT000'), request.error, request.hint);
    ELSIF clock_timestamp() >= patience THEN
        PERFORM pg_stat_clear_snapshot();
        PERFORM pgtrickle_internal.refuse(
            'PT382',
            concat(format('request %s is still %s', request_id, request.state), ': ' || coalesce(
                pgtrickle.why_waiting(request_id),
                CASE WHEN pgtrickle_internal.is_in_the_way()
                     THEN 'a session of pgtrickle waits for a lock that this transaction has' END)),
            'Wait longer; if it stays PENDING, start a service with the login of the owner: pgtrickle run.');
    END IF;
    RETURN false;
END
$$;

-- Explaining ---------------------------------------------------------------------------------------------------------

ALTER TABLE pgtrickle.pgt_stream_tables ADD COLUMN delta_plans jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.delta_plans IS
    'How the result changes when one source alone does, by the oid of the source; "clock": when only the time has moved.';

CREATE FUNCTION pgtrickle.explain_delta(name text) RETURNS TABLE (changed text, delta_plan text)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    stream_id pg_catalog.int8 := pgtrickle.pgt_id_of(name);
BEGIN
    RETURN QUERY SELECT d.changed, d.delta_plan FROM pgtrickle_internal.delta_plans_of(stream_id) AS d;
END
$$;
COMMENT ON FUNCTION pgtrickle.explain_delta IS
    'How a stream table follows: one row for each source, with what is computed when only that source changed. The '
    'rules are those of the table''s definition. pgtrickle explain shows the reads, too, for what waits now.';

CREATE FUNCTION pgtrickle_internal.delta_plans_of(stream_id bigint) RETURNS TABLE (changed text, delta_plan text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE d.key WHEN 'clock' THEN 'the clock'
                      ELSE coalesce((SELECT format('%I.%I', s.source_schema, s.source_name)
                                     FROM pgtrickle.pgt_stream_table_sources AS s
                                     JOIN pgtrickle.pgt_present AS p
                                          ON (p.pgt_schema, p.pgt_name) = (s.pgt_schema, s.pgt_name)
                                     WHERE p.pgt_id = t.pgt_id AND s.source_relid::text = d.key), d.key) END,
           d.value
    FROM pgtrickle.pgt_stream_tables AS t CROSS JOIN jsonb_each_text(t.delta_plans) AS d
    WHERE t.pgt_id = stream_id AND t.effective_mode <> 'FULL'
    UNION ALL
    SELECT 'all of it',
           CASE WHEN t.effective_mode = 'FULL' THEN concat('computed in full: ', t.mode_reason)
                ELSE 'not recorded: the table was defined by an older version; `pgtrickle explain` shows it' END
    FROM pgtrickle.pgt_stream_tables AS t
    WHERE t.pgt_id = stream_id AND (t.effective_mode = 'FULL' OR t.delta_plans = '{}')
    ORDER BY 1
$$;
COMMENT ON FUNCTION pgtrickle_internal.delta_plans_of IS 'Internal: explain_delta of a stream table by its id.';

-- What refreshes have cost so far, in words.
CREATE FUNCTION pgtrickle_internal.costs_of(stream_id bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT string_agg(
               format('%s: %s refreshes, %s ms each', c.action, c.refreshes, round((1000 * c.seconds / c.refreshes)::numeric, 1))
               || CASE WHEN c.changes_read > 0
                       THEN format(', %s changes read, %s rows written', c.changes_read, c.rows) ELSE '' END,
               E'\n' ORDER BY c.action)
    FROM (SELECT r.action, sum(r.refreshes) AS refreshes, sum(r.seconds) AS seconds, sum(r.changes_read) AS changes_read,
                 sum(r.rows_inserted + r.rows_deleted) AS rows
          FROM pgtrickle.pgt_refresh_counts AS r
          WHERE r.pgt_id = stream_id AND r.status = 'COMPLETED' AND r.action <> '' GROUP BY r.action) AS c
$$;
COMMENT ON FUNCTION pgtrickle_internal.costs_of IS 'Internal: what the refreshes of a stream table have cost, in words.';

CREATE FUNCTION pgtrickle_internal.last_refresh_of(stream_id bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('%s, %s in %s ms at %s: %s', h.action, h.status, round(h.duration_ms::numeric, 1), h.started_at,
                  coalesce(h.error, h.reason))
           || coalesce(E'\nof that ' || (SELECT string_agg(format('%s %s ms', p.name, p.ms), ', ' ORDER BY p.name)
                                         FROM (SELECT replace(key, 'spark', 'evaluate'), value
                                               FROM jsonb_each_text(h.phases)) AS p (name, ms)), '')
    FROM pgtrickle.pgt_refresh_history AS h
    WHERE h.pgt_id = stream_id AND h.status <> 'RUNNING' ORDER BY h.refresh_id DESC LIMIT 1
$$;
COMMENT ON FUNCTION pgtrickle_internal.last_refresh_of IS 'Internal: the last refresh of a stream table, in words.';

CREATE OR REPLACE FUNCTION pgtrickle.explain_st(name text) RETURNS TABLE (property text, value text)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    stream_id pg_catalog.int8 := pgtrickle.pgt_id_of(name);
BEGIN
    RETURN QUERY SELECT e.property, e.value
                 FROM pgtrickle_internal.explain_full_name(pgtrickle_internal.full_name_of(stream_id)) AS e;
    RETURN QUERY SELECT c.property, c.value
                 FROM (VALUES ('costs so far', pgtrickle_internal.costs_of(stream_id)),
                              ('last refresh', pgtrickle_internal.last_refresh_of(stream_id))) AS c (property, value)
                 WHERE c.value IS NOT NULL;
END
$$;
COMMENT ON FUNCTION pgtrickle.explain_st IS
    'What is known of a stream table, a property a row: query, modes, sources, operator tree, delta plan, changes that '
    'wait, state, size, what its refreshes have cost, and the last one.';
