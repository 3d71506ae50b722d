-- A refresh that failed says what to do about it, too, and one who waits is told how many rows there will be about.

ALTER TABLE pgtrickle.pgt_refresh_history ADD COLUMN hint text;
COMMENT ON COLUMN pgtrickle.pgt_refresh_history.hint IS 'What to do about the error.';

-- Rows that tasks have written to where they wait for the commit of a refresh: those of the copies that are done, as far
-- as they are counted yet, and of those under way. NULL: none wait.
CREATE FUNCTION pgtrickle_internal.rows_staged(pgt_id bigint) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT sum(pg_stat_get_live_tuples(s.oid) + coalesce(
               (SELECT sum(k.tuples_processed) FROM pg_stat_progress_copy AS k
                WHERE k.datname = current_database() AND k.relid = s.oid), 0))::bigint
    FROM pg_class AS s
    WHERE s.relnamespace = to_regnamespace('pgtrickle_state') AND s.relkind = 'r'
      AND starts_with(s.relname, format('stage_%s_', $1))
$$;
COMMENT ON FUNCTION pgtrickle_internal.rows_staged IS
    'Internal: the rows of a refresh under way that wait for its commit, as far as they are counted.';

DROP FUNCTION pgtrickle_internal.request_progress(bigint);
CREATE FUNCTION pgtrickle_internal.request_progress(
    request_id bigint, OUT state text, OUT ahead bigint, OUT waits text, OUT is_served boolean, OUT refreshing boolean,
    OUT rows_so_far bigint, OUT rows_expected bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.state,
           (SELECT count(*) FROM pgtrickle.pgt_requests AS e WHERE e.id < r.id AND e.state IN ('PENDING', 'RUNNING')),
           pgtrickle.why_waiting(r.id),
           o.oid IS NULL OR pgtrickle_internal.is_taken(o.oid, c.relowner),
           EXISTS (SELECT FROM pgtrickle.pgt_refresh_history AS h WHERE h.pgt_id = p.pgt_id AND h.status = 'RUNNING'),
           pgtrickle_internal.rows_staged(p.pgt_id),
           CASE WHEN t.is_populated AND k.reltuples > 0 THEN k.reltuples::bigint END
    FROM pgtrickle.pgt_requests AS r
    LEFT JOIN pg_roles AS o ON o.rolname = r.requested_by
    LEFT JOIN pgtrickle.pgt_present AS p ON format('%I.%I', p.pgt_schema, p.pgt_name) = r.args ->> 'name'
    LEFT JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)
    LEFT JOIN pg_class AS c ON c.oid = t.pgt_relid AND r.kind <> 'create'
    LEFT JOIN pg_class AS k ON k.oid = t.pgt_relid
    WHERE r.id = request_id
$$;
COMMENT ON FUNCTION pgtrickle_internal.request_progress IS 'Internal: how far a request is, for who waits for it.';
