-- Whose stream tables a service computes: those of its own login role, and of roles that have all of its rights anyway.
--
-- Functions of a query, triggers of a stream table, policies of a source are code of somebody, and run with the rights of
-- the session that computes. So a session computes only for those who gain nothing by that. Requests of others wait until
-- a service runs that serves them, and say so.

-- The one rule, for the programs and for the functions below. A role that has all rights of another is a member of it
-- that inherits them and may become it; but attributes are not inherited, so for a superuser only superusers qualify.
CREATE FUNCTION pgtrickle.serves(login oid, owner oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM pg_roles AS l CROSS JOIN pg_roles AS o
        WHERE l.oid = login AND o.oid = owner
          AND (l.oid = o.oid OR o.rolsuper OR NOT l.rolsuper AND pg_has_role(o.oid, l.oid, 'USAGE') AND pg_has_role(
                   o.oid, l.oid,
                   CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END)))
$$;
COMMENT ON FUNCTION pgtrickle.serves(oid, oid) IS
    'Whether a session that logged in as the one role computes the stream tables of the other.';

-- Whether a session that logged in as a role may compute a stream table: it serves its owner, and may write the table.
CREATE FUNCTION pgtrickle.computes(login oid, relid oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM pg_class AS c
        WHERE c.oid = relid AND pgtrickle.serves(login, c.relowner)
          AND has_table_privilege(login, c.oid, 'INSERT') AND has_table_privilege(login, c.oid, 'DELETE'))
$$;

-- The login roles for which a service leads in this database, each with the session that holds its lease. Whoever is no
-- member of the catalog's owner cannot lead, whatever locks it holds.
CREATE FUNCTION pgtrickle.serving_roles() RETURNS TABLE (role_name text, role_oid oid, backend_pid integer)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT a.usename::text, a.usesysid, min(a.pid)
    FROM pg_stat_activity AS a
    JOIN pg_locks AS l ON l.pid = a.pid AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
         AND (l.classid::bigint << 32) | l.objid::bigint = hashtextextended('pgtrickle service ' || a.usename, 0)
    JOIN pg_database AS d ON d.oid = l.database AND d.datname = current_database()
    JOIN pg_namespace AS n ON n.nspname = 'pgtrickle'
    WHERE pg_has_role(a.usesysid, n.nspowner, 'USAGE')
    GROUP BY a.usename, a.usesysid
$$;

CREATE OR REPLACE FUNCTION pgtrickle.service_pid() RETURNS integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT min(backend_pid) FROM pgtrickle.serving_roles()
$$;

-- Whether a service that runs now serves a role.
CREATE FUNCTION pgtrickle.is_served(owner oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pgtrickle.serving_roles() AS r WHERE pgtrickle.serves(r.role_oid, owner))
$$;

-- Names in a request mean what they mean to the caller: the path is stored as it is for that role, with "$user" resolved.
CREATE FUNCTION pgtrickle.callers_path() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(pg_catalog.string_agg(pg_catalog.quote_ident(s.name), ', ' ORDER BY s.place), '""')
    FROM pg_catalog.unnest(pg_catalog.current_schemas(false)) WITH ORDINALITY AS s(name, place)
$$;
ALTER TABLE pgtrickle.pgt_requests
    ALTER COLUMN search_path SET DEFAULT pgtrickle.callers_path(),
    ADD COLUMN taken_by text;
COMMENT ON COLUMN pgtrickle.pgt_requests.taken_by IS
    'The login role of the service that carries it out, or did.';

-- Why a request waits, for people; NULL if it does not, or a service is about to take it.
CREATE FUNCTION pgtrickle.why_waiting(request_id bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN r.state <> 'PENDING' THEN NULL
        WHEN NOT EXISTS (SELECT FROM pgtrickle.serving_roles()) THEN 'no service runs in this database'
        WHEN o.oid IS NOT NULL AND NOT pgtrickle.is_served(o.oid)
            THEN format('no running service serves the role %s', r.requested_by)
        WHEN c.relowner IS NOT NULL AND NOT pgtrickle.is_served(c.relowner)
            THEN format('no running service serves the role %s, which owns the table', pg_get_userbyid(c.relowner)) END
    FROM pgtrickle.pgt_requests AS r
    LEFT JOIN pg_roles AS o ON o.rolname = r.requested_by
    LEFT JOIN pgtrickle.pgt_stream_tables AS t
        ON r.kind <> 'create' AND format('%I.%I', t.pgt_schema, t.pgt_name) = r.args ->> 'name'
    LEFT JOIN pg_class AS c ON c.oid = t.pgt_relid
    WHERE r.id = request_id
$$;

-- The request, and a call to the service, both of which count when the caller commits. It is taken by a service that
-- serves the caller; if none runs, the caller hears so at once.
CREATE OR REPLACE FUNCTION pgtrickle.add_request(kind text, args jsonb) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    request_id bigint;
    reason text;
BEGIN
    INSERT INTO pgtrickle.pgt_requests (kind, args) VALUES ($1, $2) RETURNING id INTO request_id;
    PERFORM pg_catalog.pg_notify('pg_trickle_wake', pg_catalog.format('request %s', request_id));
    reason := pgtrickle.why_waiting(request_id);
    IF reason IS NOT NULL THEN
        RAISE NOTICE USING MESSAGE = pg_catalog.format('request %s waits: %s', request_id, reason),
            HINT = 'Run one with the login of the owner: pgtrickle run. pgtrickle.pgt_requests shows its state.';
    END IF;
    RETURN request_id;
END
$$;

CREATE OR REPLACE PROCEDURE pgtrickle.wait_for(request_id bigint, timeout interval DEFAULT '1 minute')
LANGUAGE plpgsql AS $$
DECLARE
    request pgtrickle.pgt_requests;
    patience timestamptz := clock_timestamp() + timeout;
    waits text;
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM pgtrickle.refuse('PT380', 'this transaction has not been committed',
                                 'Commit first: a request counts from then on.');
    END IF;
    LOOP
        SELECT * INTO request FROM pgtrickle.pgt_requests WHERE id = request_id;
        IF request.id IS NULL THEN
            PERFORM pgtrickle.refuse('PT381', pg_catalog.format('there is no request %s', request_id),
                                     'pgtrickle.pgt_requests has all; one that was rolled back never was.');
        ELSIF request.state = 'DONE' THEN
            RETURN;
        ELSIF request.state = 'FAILED' THEN
            PERFORM pgtrickle.refuse(coalesce(request.error_code, 'PT000'), request.error, request.hint);
        ELSIF clock_timestamp() >= patience THEN
            waits := pgtrickle.why_waiting(request_id);
            PERFORM pgtrickle.refuse('PT382', pg_catalog.format('request %s is still %s', request_id, request.state)
                                              || coalesce(': ' || waits, ''),
                                     'Wait longer; if it stays PENDING, start a service with the login of the owner:'
                                     ' pgtrickle run.');
        END IF;
        COMMIT;
        PERFORM pg_sleep(least(0.1, greatest(extract(epoch FROM patience - clock_timestamp()), 0)));
    END LOOP;
END
$$;

-- Stream tables that no running service computes, where some service runs; a part of health_check().
CREATE FUNCTION pgtrickle.unserved_tables() RETURNS TABLE (pgt_id bigint, name text, owner text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT t.pgt_id, format('%I.%I', t.pgt_schema, t.pgt_name), pg_get_userbyid(c.relowner)::text
    FROM pgtrickle.pgt_stream_tables AS t JOIN pg_class AS c ON c.oid = t.pgt_relid
    WHERE t.status <> 'SUSPENDED' AND EXISTS (SELECT FROM pgtrickle.serving_roles())
      AND NOT EXISTS (SELECT FROM pgtrickle.serving_roles() AS r WHERE pgtrickle.computes(r.role_oid, t.pgt_relid))
$$;

-- One row for each check that is passed, and one for each problem where it is not. Severity OK, WARN or ERROR.
-- Settings are those of the database or role. A cron schedule says nothing about how old data may be.
CREATE OR REPLACE FUNCTION pgtrickle.health_check()
RETURNS TABLE (check_name text, severity text, detail text)
LANGUAGE sql STABLE AS $$
    WITH streams AS (
        SELECT t.*, pg_catalog.format('%I.%I', t.pgt_schema, t.pgt_name) AS name, now() - t.data_timestamp AS age,
               CASE WHEN lower(t.schedule) ~ '^(\d+d)?(\d+h)?(\d+m)?(\d+s)?$' THEN lower(t.schedule)::interval END
               AS period
        FROM pgtrickle.pgt_stream_tables AS t
    ), problems(check_name, severity, detail) AS (
        SELECT 'service', 'ERROR', 'no service runs in this database: pgtrickle run'
        WHERE pgtrickle.service_pid() IS NULL AND EXISTS (SELECT FROM streams)
        UNION ALL
        SELECT 'service', 'ERROR',
               pg_catalog.format('no running service serves the role %s, which owns %s: pgtrickle run with its login', u.owner, u.name)
        FROM pgtrickle.unserved_tables() AS u
        UNION ALL
        SELECT 'service', 'WARN', 'refreshes are paused: pg_trickle.enabled is off'
        WHERE lower(pgtrickle.setting('enabled', 'on')) IN ('false', 'off', 'no', '0', 'f', 'n')
        UNION ALL
        SELECT 'stream_tables', CASE WHEN s.last_error IS NULL THEN 'WARN' ELSE 'ERROR' END,
               pg_catalog.format('%s is in state %s', s.name, s.status) || coalesce(': ' || s.last_error, '')
        FROM streams AS s WHERE s.status IN ('ERROR', 'SUSPENDED') OR s.consecutive_errors > 0
        UNION ALL
        SELECT 'staleness', 'ERROR', pg_catalog.format('%s is %s old, and should be refreshed every %s', s.name,
                                            date_trunc('second', s.age), s.schedule)
        FROM streams AS s
        WHERE s.is_populated AND s.status <> 'SUSPENDED' AND s.age > 2 * s.period + interval '10 s'
        UNION ALL
        SELECT 'reinitialization', 'WARN', pg_catalog.format('%s will be computed anew: %s', s.name, s.reinit_reason)
        FROM streams AS s WHERE s.needs_reinit
        UNION ALL
        SELECT 'capture', CASE WHEN h.alert = 'slot_lag_warning' THEN 'WARN' ELSE 'ERROR' END,
               pg_catalog.format('%s (%s): %s', h.source_table, h.cdc_mode, h.alert)
        FROM pgtrickle.check_cdc_health() AS h WHERE h.alert IS NOT NULL
        UNION ALL
        SELECT 'slot', 'WARN', pg_catalog.format('%s holds back %s of WAL, and no source counts on it: a service drops it',
                                      h.slot_name, pg_size_pretty(h.retained_wal_bytes))
        FROM pgtrickle.slot_health() AS h WHERE h.sources = 0
        UNION ALL
        SELECT 'buffers', 'WARN', format('about %s changes of %s wait to be applied', b.waiting, b.source)
        FROM (
            SELECT pg_stat_get_live_tuples(to_regclass(k.buffer_name)) AS waiting, k.source_relid::regclass AS source
            FROM pgtrickle.pgt_change_tracking AS k
        ) AS b
        WHERE b.waiting > pgtrickle.setting('buffer_growth_warning_rows', '1000000')::bigint
    )
    SELECT c.name, coalesce(p.severity, 'OK'), coalesce(p.detail, c.passed)
    FROM (VALUES
        (1, 'service', coalesce('a service leads, in session ' || pgtrickle.service_pid()
                                || (SELECT ', for ' || string_agg(r.role_name, ', ' ORDER BY r.role_name)
                                    FROM pgtrickle.serving_roles() AS r),
                                'there are no stream tables to serve')),
        (2, 'stream_tables', 'none has failed'),
        (3, 'staleness', 'all are as fresh as their schedules ask for'),
        (4, 'reinitialization', 'none has to be computed anew'),
        (5, 'capture', 'all sources are captured'),
        (6, 'slot', 'no replication slot is held for nothing'),
        (7, 'buffers', 'none is full of changes')
    ) AS c(place, name, passed)
    LEFT JOIN problems AS p ON p.check_name = c.name
    ORDER BY c.place, p.detail
$$;
