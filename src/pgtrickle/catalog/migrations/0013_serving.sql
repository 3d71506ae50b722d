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

-- The login roles for which a service leads in this database, each with the session that holds its lease.
CREATE FUNCTION pgtrickle.serving_roles() RETURNS TABLE (role_name text, role_oid oid, backend_pid integer)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.role_name, r.oid, l.backend_pid
    FROM pgtrickle.pgt_leaders AS l JOIN pg_roles AS r ON r.rolname = l.role_name
    WHERE l.purpose = 'service' AND l.connected AND l.beats
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
    LEFT JOIN pgtrickle.pgt_present AS p ON r.kind <> 'create' AND format('%I.%I', p.pgt_schema, p.pgt_name) = r.args ->> 'name'
    LEFT JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)
    LEFT JOIN pg_class AS c ON c.oid = t.pgt_relid
    WHERE r.id = request_id
$$;

-- Stream tables that no running service computes, where some service runs; a part of health_check().
CREATE FUNCTION pgtrickle.unserved_tables() RETURNS TABLE (pgt_id bigint, name text, owner text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT t.pgt_id, format('%I.%I', p.pgt_schema, p.pgt_name), pg_get_userbyid(c.relowner)::text
    FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id) JOIN pg_class AS c ON c.oid = t.pgt_relid
    WHERE t.status <> 'SUSPENDED' AND EXISTS (SELECT FROM pgtrickle.serving_roles())
      AND NOT EXISTS (SELECT FROM pgtrickle.serving_roles() AS r WHERE pgtrickle.computes(r.role_oid, t.pgt_relid))
$$;
