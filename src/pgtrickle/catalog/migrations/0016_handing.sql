-- Work that is handed to the running service: by whom it would be taken, and what the one who waits for it can be told.

-- Where in the query the error is, as in `at` of an error in Python. `error` has it in its text as well.
ALTER TABLE pgtrickle.pgt_requests ADD COLUMN error_at text;

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

-- Why a request waits, for people; NULL if it does not, or a service is about to take it.
CREATE OR REPLACE FUNCTION pgtrickle.why_waiting(request_id bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN r.state <> 'PENDING' THEN NULL
        WHEN NOT EXISTS (SELECT FROM pgtrickle.serving_roles()) THEN 'no service runs in this database'
        WHEN o.oid IS NOT NULL AND NOT pgtrickle.is_served(o.oid)
            THEN format('no running service serves the role %s', r.requested_by)
        WHEN c.relowner IS NOT NULL AND NOT pgtrickle.is_served(c.relowner)
            THEN format('no running service serves the role %s, which owns the table', pg_get_userbyid(c.relowner))
        WHEN o.oid IS NOT NULL AND NOT pgtrickle.is_taken(o.oid, c.relowner)
            THEN format('no running service serves both the role %s and the role %s, which owns the table',
                        r.requested_by, pg_get_userbyid(c.relowner)) END
    FROM pgtrickle.pgt_requests AS r
    LEFT JOIN pg_roles AS o ON o.rolname = r.requested_by
    LEFT JOIN pgtrickle.pgt_present AS p ON r.kind <> 'create' AND format('%I.%I', p.pgt_schema, p.pgt_name) = r.args ->> 'name'
    LEFT JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)
    LEFT JOIN pg_class AS c ON c.oid = t.pgt_relid
    WHERE r.id = request_id
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

-- With `full` it is computed from scratch: also one that was never filled.
DROP FUNCTION pgtrickle.refresh_stream_table(text);
CREATE FUNCTION pgtrickle.refresh_stream_table(name text, "full" boolean DEFAULT false)
RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN pgtrickle.add_request('refresh', pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object(
        'name', pgtrickle.check_own_name(name), 'full', CASE WHEN "full" THEN true END)));
END
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
