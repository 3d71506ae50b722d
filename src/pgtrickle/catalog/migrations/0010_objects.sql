-- All that a query's answer depends on, by what PostgreSQL itself knows of it (pg_depend): types, operators, functions,
-- collations, casts, text search, policies; and whose they are.

-- What objects are like, as far as an answer depends on it; those that are not there are left out. A set at a time: a
-- refresh asks for all that its query reaches. `code` is what PostgreSQL evaluates in the session of whoever reads: its
-- owner decides what runs there. (Tables, columns and keys are data; so is a stored generated column, which is computed
-- as it is written, but not a virtual one.)
CREATE FUNCTION pgtrickle.object_shapes(classids oid[], objids oid[], objsubids integer[])
RETURNS TABLE (classid oid, objid oid, objsubid integer, name text, type text, definition text, owner oid, code boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT DISTINCT a.classid, a.objid, a.objsubid FROM unnest(classids, objids, objsubids) AS a(classid, objid, objsubid)
    )
    -- relations: a view by its rule, and by whose rights and with which options it is read
    SELECT a.classid, a.objid, a.objsubid, format('%I.%I', n.nspname, c.relname), NULL::text,
           md5(concat(c.relkind, r.ev_action, CASE WHEN c.relkind = 'v' THEN concat(c.relowner, c.reloptions) END)),
           c.relowner, c.relkind = 'v'
    FROM asked AS a JOIN pg_class AS c ON c.oid = a.objid JOIN pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_rewrite AS r ON r.ev_class = c.oid AND r.rulename = '_RETURN'
    WHERE a.classid = 'pg_class'::regclass AND a.objsubid = 0
    UNION ALL
    SELECT a.classid, a.objid, a.objsubid, t.attname::text, format_type(t.atttypid, t.atttypmod),
           concat_ws(' ', t.attcollation, nullif(t.attgenerated, ''),
                     CASE WHEN t.attgenerated <> '' THEN md5(d.adbin::text) END),
           c.relowner, t.attgenerated = 'v'
    FROM asked AS a JOIN pg_attribute AS t ON t.attrelid = a.objid AND t.attnum = a.objsubid AND NOT t.attisdropped
    JOIN pg_class AS c ON c.oid = t.attrelid
    LEFT JOIN pg_attrdef AS d ON d.adrelid = t.attrelid AND d.adnum = t.attnum
    WHERE a.classid = 'pg_class'::regclass AND a.objsubid <> 0
    UNION ALL
    SELECT a.classid, a.objid, a.objsubid, p.oid::regprocedure::text, NULL,
           md5(jsonb_build_array(
               p.prolang, p.provolatile, p.proisstrict, p.prosecdef, p.proowner, p.prosrc, p.probin, p.proconfig,
               p.prosqlbody::text, p.prorettype, p.proretset, p.proargdefaults::text, p.provariadic, p.proleakproof,
               (SELECT to_jsonb(g) FROM pg_aggregate AS g WHERE g.aggfnoid = p.oid))::text),
           p.proowner, true
    FROM asked AS a JOIN pg_proc AS p ON p.oid = a.objid WHERE a.classid = 'pg_proc'::regclass
    UNION ALL
    SELECT a.classid, a.objid, a.objsubid, NULL, NULL, md5(concat_ws(' ', k.contype, k.conkey, k.conbin)),
           c.relowner, false
    FROM asked AS a JOIN pg_constraint AS k ON k.oid = a.objid LEFT JOIN pg_class AS c ON c.oid = k.conrelid
    WHERE a.classid = 'pg_constraint'::regclass
    UNION ALL
    -- types: labels of an enum in their order, checks of a domain, columns of a row, what a range is made of
    SELECT a.classid, a.objid, a.objsubid, format('%I.%I', n.nspname, t.typname), NULL,
           md5(jsonb_build_array(
               t.typlen, t.typbyval, t.typtype, t.typcategory, t.typispreferred, t.typdelim, t.typelem, t.typinput::oid,
               t.typoutput::oid, t.typreceive::oid, t.typsend::oid, t.typmodin::oid, t.typmodout::oid, t.typnotnull,
               t.typbasetype, t.typtypmod, t.typndims, t.typcollation, t.typdefaultbin::text,
               CASE t.typtype WHEN 'e' THEN
                   (SELECT jsonb_agg(e.enumlabel ORDER BY e.enumsortorder) FROM pg_enum AS e WHERE e.enumtypid = t.oid)
               WHEN 'd' THEN (SELECT jsonb_agg(md5(k.conbin::text) ORDER BY md5(k.conbin::text)) FROM pg_constraint AS k
                    WHERE k.contypid = t.oid)
               WHEN 'c' THEN (SELECT jsonb_agg(jsonb_build_array(b.attname, b.atttypid, b.atttypmod, b.attcollation)
                    ORDER BY b.attnum) FROM pg_attribute AS b
                    WHERE b.attrelid = t.typrelid AND b.attnum > 0 AND NOT b.attisdropped)
               WHEN 'r' THEN (SELECT to_jsonb(r) FROM pg_range AS r WHERE r.rngtypid = t.oid) END)::text),
           t.typowner, true
    FROM asked AS a JOIN pg_type AS t ON t.oid = a.objid JOIN pg_namespace AS n ON n.oid = t.typnamespace
    WHERE a.classid = 'pg_type'::regclass
    UNION ALL
    SELECT a.classid, a.objid, a.objsubid, o.oid::regoperator::text, NULL,
           md5((to_jsonb(o) - 'oprowner')::text), o.oprowner, true
    FROM asked AS a JOIN pg_operator AS o ON o.oid = a.objid WHERE a.classid = 'pg_operator'::regclass
    UNION ALL
    -- collations, with the version that the system's library has now
    SELECT a.classid, a.objid, a.objsubid, format('%I.%I', n.nspname, l.collname), NULL,
           md5(concat(to_jsonb(l) - 'collowner', pg_collation_actual_version(l.oid))), l.collowner, true
    FROM asked AS a JOIN pg_collation AS l ON l.oid = a.objid JOIN pg_namespace AS n ON n.oid = l.collnamespace
    WHERE a.classid = 'pg_collation'::regclass
    UNION ALL
    SELECT a.classid, a.objid, a.objsubid, NULL, NULL,
           md5(concat(to_jsonb(o) - 'opcowner',
               (SELECT jsonb_agg(to_jsonb(m) ORDER BY m.oid) FROM pg_amop AS m
                WHERE m.amopfamily = o.opcfamily AND m.amoplefttype = o.opcintype),
               (SELECT jsonb_agg(to_jsonb(m) ORDER BY m.oid) FROM pg_amproc AS m
                WHERE m.amprocfamily = o.opcfamily AND m.amproclefttype = o.opcintype))),
           o.opcowner, true
    FROM asked AS a JOIN pg_opclass AS o ON o.oid = a.objid WHERE a.classid = 'pg_opclass'::regclass
    UNION ALL
    -- a cast is of whoever owns its function, or one of its types
    SELECT a.classid, a.objid, a.objsubid, NULL, NULL, md5(to_jsonb(k)::text),
           coalesce(f.proowner, CASE WHEN s.oid >= 16384 THEN s.typowner ELSE t.typowner END), true
    FROM asked AS a JOIN pg_cast AS k ON k.oid = a.objid LEFT JOIN pg_proc AS f ON f.oid = k.castfunc
    JOIN pg_type AS s ON s.oid = k.castsource JOIN pg_type AS t ON t.oid = k.casttarget
    WHERE a.classid = 'pg_cast'::regclass
    UNION ALL
    SELECT a.classid, a.objid, a.objsubid, NULL, NULL,
           md5(concat(to_jsonb(f) - 'cfgowner', (SELECT jsonb_agg(to_jsonb(m) ORDER BY m.maptokentype, m.mapseqno)
                      FROM pg_ts_config_map AS m WHERE m.mapcfg = f.oid))), f.cfgowner, true
    FROM asked AS a JOIN pg_ts_config AS f ON f.oid = a.objid WHERE a.classid = 'pg_ts_config'::regclass
    UNION ALL
    SELECT a.classid, a.objid, a.objsubid, NULL, NULL, md5((to_jsonb(d) - 'dictowner')::text), d.dictowner, true
    FROM asked AS a JOIN pg_ts_dict AS d ON d.oid = a.objid WHERE a.classid = 'pg_ts_dict'::regclass
    UNION ALL
    SELECT a.classid, a.objid, a.objsubid, NULL, NULL, md5(to_jsonb(x)::text), 10::oid, true
    FROM asked AS a JOIN pg_ts_parser AS x ON x.oid = a.objid WHERE a.classid = 'pg_ts_parser'::regclass
    UNION ALL
    SELECT a.classid, a.objid, a.objsubid, NULL, NULL, md5(to_jsonb(x)::text), 10::oid, true
    FROM asked AS a JOIN pg_ts_template AS x ON x.oid = a.objid WHERE a.classid = 'pg_ts_template'::regclass
    UNION ALL
    SELECT a.classid, a.objid, a.objsubid, NULL, NULL, md5(to_jsonb(p)::text), c.relowner, true
    FROM asked AS a JOIN pg_policy AS p ON p.oid = a.objid JOIN pg_class AS c ON c.oid = p.polrelid
    WHERE a.classid = 'pg_policy'::regclass;
END
$$;

-- What names may mean beside these objects: functions and operators of the same name, and casts that users made. A query
-- is read again and again, and one that was added may then be the better match.
CREATE FUNCTION pgtrickle.object_names(classids oid[], objids oid[]) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN jsonb_build_array(
        (SELECT jsonb_agg(DISTINCT o.oid) FROM unnest(classids, objids) AS a(classid, objid)
         JOIN pg_proc AS p ON p.oid = a.objid
         JOIN pg_proc AS o ON o.proname = p.proname AND o.pronamespace = p.pronamespace
         WHERE a.classid = 'pg_proc'::regclass),
        (SELECT jsonb_agg(DISTINCT o.oid) FROM unnest(classids, objids) AS a(classid, objid)
         JOIN pg_operator AS p ON p.oid = a.objid
         JOIN pg_operator AS o ON o.oprname = p.oprname AND o.oprnamespace = p.oprnamespace
         WHERE a.classid = 'pg_operator'::regclass),
        (SELECT jsonb_agg(to_jsonb(k) ORDER BY k.oid) FROM pg_cast AS k
         WHERE k.oid >= 16384 AND (k.castsource = ANY (objids) OR k.castsource < 16384)
           AND (k.casttarget = ANY (objids) OR k.casttarget < 16384)));
END
$$;

CREATE OR REPLACE FUNCTION pgtrickle.describe_object(
    classid oid, objid oid, objsubid integer, OUT title text, OUT shape jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT jsonb_strip_nulls(jsonb_build_object('name', s.name, 'type', s.type, 'definition', s.definition))
    INTO shape FROM pgtrickle.object_shapes(ARRAY[classid], ARRAY[objid], ARRAY[objsubid]) AS s;
    title := pg_describe_object(classid, objid, objsubid);
END
$$;

-- What was recorded before is recorded in today's terms. Of what a stream table uses, not all was: its next refresh
-- defines it once more, and takes things as they are ('before 0008', see refresh/owners.py).
UPDATE pgtrickle.pgt_used_objects AS u
SET shape = d.shape
FROM pgtrickle.pgt_used_objects AS o
CROSS JOIN LATERAL pgtrickle.describe_object(o.classid, o.objid, o.objsubid) AS d
WHERE (u.pgt_id, u.classid, u.objid, u.objsubid) = (o.pgt_id, o.classid, o.objid, o.objsubid) AND d.shape IS NOT NULL;
UPDATE pgtrickle.pgt_stream_tables SET source_fingerprint = 'before 0008' WHERE source_fingerprint IS NOT NULL;

-- As in 0003, for more kinds of objects. Event triggers that are there from before are made again.
CREATE OR REPLACE FUNCTION pgtrickle.track_ddl() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_event_trigger WHERE evtname = 'pgtrickle_ddl' AND NOT 'ALTER COLLATION' = ANY (evttags)) THEN
        DROP EVENT TRIGGER pgtrickle_ddl;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_event_trigger WHERE evtname = 'pgtrickle_ddl') THEN
        CREATE EVENT TRIGGER pgtrickle_ddl ON ddl_command_end WHEN TAG IN (
            'ALTER TABLE', 'ALTER FOREIGN TABLE', 'ALTER VIEW', 'ALTER MATERIALIZED VIEW', 'CREATE VIEW',
            'CREATE FUNCTION', 'ALTER FUNCTION', 'ALTER ROUTINE', 'CREATE AGGREGATE', 'ALTER AGGREGATE',
            'ALTER SCHEMA', 'ALTER TYPE', 'ALTER DOMAIN', 'ALTER COLLATION', 'ALTER OPERATOR', 'ALTER OPERATOR FAMILY',
            'ALTER TEXT SEARCH CONFIGURATION', 'ALTER TEXT SEARCH DICTIONARY', 'ALTER POLICY'
        ) EXECUTE FUNCTION pgtrickle.on_source_ddl();
    END IF;
    IF NOT EXISTS (SELECT FROM pg_event_trigger WHERE evtname = 'pgtrickle_drop') THEN
        CREATE EVENT TRIGGER pgtrickle_drop ON sql_drop EXECUTE FUNCTION pgtrickle.on_source_ddl();
    END IF;
    RETURN true;
EXCEPTION WHEN insufficient_privilege THEN
    RETURN false;
END
$$;

-- As in 0002, and whether someone moved the slot on while no decoder read it: past what the last one told the server,
-- which it recorded as it ended. One that failed or was killed may have told more than is on record. What was passed over
-- is lost, so the slot counts as lost.
CREATE OR REPLACE VIEW pgtrickle.pgt_slot AS
SELECT s.slot_name::text AS slot_name, s.plugin::text AS plugin, s.active, s.active_pid, s.wal_status,
       to_jsonb(s) ->> 'invalidation_reason' AS invalidation_reason,
       s.confirmed_flush_lsn IS NOT NULL AND s.wal_status IS DISTINCT FROM 'lost' AND NOT m.moved_by_hand AS alive,
       s.restart_lsn, s.confirmed_flush_lsn, pgtrickle.wal_since(s.restart_lsn) AS retained_bytes,
       pgtrickle.wal_since(s.confirmed_flush_lsn) AS lag_bytes, m.moved_by_hand
FROM pg_replication_slots AS s
LEFT JOIN pgtrickle.pgt_decoder AS d ON d.slot_name = s.slot_name::text
CROSS JOIN LATERAL (SELECT coalesce(NOT s.active AND d.status = 'STOPPED'
                                    AND s.confirmed_flush_lsn > d.confirmed_lsn, false) AS moved_by_hand) AS m
WHERE s.slot_name = pgtrickle.slot_name() AND s.database = current_database();
