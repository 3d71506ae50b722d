-- DDL on what stream tables read: event triggers note it as it happens, or refuse it (block_source_ddl). Where the role
-- may not create them, the fingerprint that each refresh compares notices it later; it remains the one that decides.
--
-- A user's DDL must not wait for us nor we for it. A refresh reads a source and ends by updating its stream table's
-- row: were that row locked by a transaction that redefined a function and now waits to alter the source, both would
-- hang, and no deadlock detector sees it, since a refresh has several sessions. So DDL only adds rows to pgt_source_ddl,
-- and the stream table's row is changed as the user commits, if no one holds it at that instant.

CREATE TABLE pgtrickle.pgt_used_objects (
    pgt_id    bigint NOT NULL REFERENCES pgtrickle.pgt_stream_tables ON DELETE CASCADE,
    classid   oid NOT NULL,
    objid     oid NOT NULL,
    objsubid  integer NOT NULL,
    title     text NOT NULL,
    shape     jsonb NOT NULL,
    PRIMARY KEY (pgt_id, classid, objid, objsubid)
);
CREATE INDEX ON pgtrickle.pgt_used_objects (objid);
COMMENT ON TABLE pgtrickle.pgt_used_objects IS
    'What the query of a stream table depends on, addressed as in pg_depend: relations, columns, functions, keys.';
COMMENT ON COLUMN pgtrickle.pgt_used_objects.shape IS
    'What the query depends on of it, as of the last time the stream table was defined.';

CREATE TABLE pgtrickle.pgt_source_ddl (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pgt_id    bigint NOT NULL,
    classid   oid NOT NULL,
    objid     oid NOT NULL,
    objsubid  integer NOT NULL,
    title     text NOT NULL,
    shape     jsonb,
    reason    text NOT NULL,
    gone      boolean NOT NULL,
    command   text NOT NULL,
    done_by   text NOT NULL DEFAULT session_user,
    at        timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON pgtrickle.pgt_source_ddl (pgt_id, objid, id DESC);
COMMENT ON TABLE pgtrickle.pgt_source_ddl IS
    'DDL on what a stream table uses, since it was last defined. No foreign key: DDL must not wait for a drop.';
COMMENT ON COLUMN pgtrickle.pgt_source_ddl.gone IS
    'A relation or function was dropped: the query cannot run.';

-- An object for people, and what a query depends on of it; both NULL if it does not exist. In PL/pgSQL, which keeps
-- its plans: it is asked for every object used of a table that is altered.
CREATE FUNCTION pgtrickle.describe_object(
    classid oid, objid oid, objsubid integer, OUT title text, OUT shape jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    title := pg_describe_object(classid, objid, objsubid);
    IF classid = 'pg_class'::regclass AND objsubid = 0 THEN
        SELECT jsonb_build_object(
                   'name', format('%I.%I', n.nspname, c.relname),
                   'definition', md5(concat(c.relkind, (
                       SELECT r.ev_action FROM pg_rewrite AS r WHERE r.ev_class = c.oid AND r.rulename = '_RETURN'))))
        INTO shape FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = objid;
    ELSIF classid = 'pg_class'::regclass THEN
        SELECT jsonb_build_object(
                   'name', a.attname,
                   'type', format_type(a.atttypid, a.atttypmod),
                   'definition', concat_ws(' ', a.attcollation, nullif(a.attgenerated, ''), (
                       SELECT md5(d.adbin::text) FROM pg_attrdef AS d
                       WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.attgenerated <> '')))
        INTO shape FROM pg_attribute AS a WHERE a.attrelid = objid AND a.attnum = objsubid AND NOT a.attisdropped;
    ELSIF classid = 'pg_proc'::regclass THEN
        SELECT jsonb_build_object(
                   'name', p.oid::regprocedure::text,
                   'definition', md5(jsonb_build_array(
                       p.prolang, p.provolatile, p.proisstrict, p.prosrc, p.probin, p.proconfig, p.prosqlbody::text,
                       p.prorettype, p.proretset, (SELECT to_jsonb(g) FROM pg_aggregate AS g WHERE g.aggfnoid = p.oid)
                   )::text))
        INTO shape FROM pg_proc AS p WHERE p.oid = objid;
    ELSIF classid = 'pg_constraint'::regclass THEN
        SELECT jsonb_build_object('definition', k.conkey) INTO shape FROM pg_constraint AS k WHERE k.oid = objid;
    END IF;
END
$$;

-- What became of an object, in words.
CREATE FUNCTION pgtrickle.describe_change(title text, before jsonb, after jsonb) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT title || CASE
        WHEN after IS NULL THEN ' was dropped'
        WHEN after ->> 'name' IS DISTINCT FROM before ->> 'name' THEN ' was renamed to ' || (after ->> 'name')
        WHEN after ->> 'type' IS DISTINCT FROM before ->> 'type' THEN ' now has the type ' || (after ->> 'type')
        ELSE ' was redefined' END
$$;

-- Used objects as last seen: as defined, or as the last DDL left them.
CREATE VIEW pgtrickle.pgt_seen_objects AS
SELECT u.pgt_id, u.classid, u.objid, u.objsubid, u.title, CASE WHEN s.id IS NULL THEN u.shape ELSE s.shape END AS shape
FROM pgtrickle.pgt_used_objects AS u
LEFT JOIN LATERAL (
    SELECT id, shape FROM pgtrickle.pgt_source_ddl AS l
    WHERE (l.pgt_id, l.classid, l.objid, l.objsubid) = (u.pgt_id, u.classid, u.objid, u.objsubid)
    ORDER BY id DESC LIMIT 1
) AS s ON true;

-- Refuses the DDL at hand for what was noted of it, which goes with it.
CREATE FUNCTION pgtrickle.refuse_source_ddl(noted bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    objects text;
    reasons text;
    tables text;
BEGIN
    SELECT string_agg(DISTINCT l.title, ', '), string_agg(DISTINCT l.reason, '; '),
           string_agg(DISTINCT format('%I.%I', t.pgt_schema, t.pgt_name), ', ')
    INTO objects, reasons, tables
    FROM pgtrickle.pgt_source_ddl AS l JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id) WHERE l.id = ANY (noted);
    RAISE EXCEPTION USING
        ERRCODE = 'dependent_objects_still_exist',
        MESSAGE = format('PT370: %s is used by the stream table %s', objects, tables),
        DETAIL = format('Refused by pg_trickle.block_source_ddl: %s.', reasons),
        HINT = 'Alter or drop the stream table first, or SET pg_trickle.block_source_ddl = off for this change.';
END
$$;

-- Notes which used objects the command at hand has dropped, for whom; returns what was noted.
CREATE FUNCTION pgtrickle.note_dropped(command text) RETURNS bigint[]
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    WITH added AS (
        INSERT INTO pgtrickle.pgt_source_ddl (pgt_id, classid, objid, objsubid, title, reason, gone, command)
        SELECT u.pgt_id, u.classid, u.objid, u.objsubid, u.title, pgtrickle.describe_change(u.title, u.shape, NULL),
               u.objsubid = 0 AND u.classid IN ('pg_class'::regclass, 'pg_proc'::regclass), $1
        FROM pg_event_trigger_dropped_objects() AS d
        JOIN pgtrickle.pgt_used_objects AS u USING (classid, objid, objsubid)
        RETURNING id
    ) SELECT array_agg(id) FROM added
$$;

-- Notes which used objects the command at hand has changed. What is done to a partitioned table is done to its
-- partitions; a schema or type gives its name to any number of objects.
CREATE FUNCTION pgtrickle.note_altered(command text) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    touched oid[];
    all_touched boolean;
    noted bigint[];
BEGIN
    SELECT array_agg(c.objid) || array_agg(p.relid) FILTER (WHERE p.relid IS NOT NULL),
           coalesce(bool_or(c.classid IN ('pg_namespace'::regclass, 'pg_type'::regclass)), false)
    INTO touched, all_touched
    FROM pg_event_trigger_ddl_commands() AS c
    LEFT JOIN LATERAL pg_partition_tree(c.objid) AS p ON c.classid = 'pg_class'::regclass;
    IF NOT all_touched AND NOT EXISTS (
        SELECT FROM pgtrickle.pgt_used_objects AS u WHERE u.objid = ANY (touched)
    ) THEN
        RETURN NULL;
    END IF;
    WITH used AS (
        SELECT DISTINCT u.classid, u.objid, u.objsubid FROM pgtrickle.pgt_used_objects AS u
        WHERE all_touched OR u.objid = ANY (touched)
    ), found AS MATERIALIZED (
        SELECT used.*, d.shape
        FROM used CROSS JOIN LATERAL pgtrickle.describe_object(used.classid, used.objid, used.objsubid) AS d
        WHERE d.shape IS NOT NULL
    ), added AS (
        INSERT INTO pgtrickle.pgt_source_ddl (pgt_id, classid, objid, objsubid, title, shape, reason, gone, command)
        SELECT s.pgt_id, s.classid, s.objid, s.objsubid, s.title, f.shape,
               pgtrickle.describe_change(s.title, s.shape, f.shape), false, $1
        FROM found AS f JOIN pgtrickle.pgt_seen_objects AS s USING (classid, objid, objsubid)
        WHERE f.shape IS DISTINCT FROM s.shape
        RETURNING id
    ) SELECT array_agg(id) INTO noted FROM added;
    RETURN noted;
END
$$;

-- A user's DDL never fails by an error of ours, only by our refusal.
CREATE FUNCTION pgtrickle.on_source_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    noted bigint[];
    blocked boolean;
BEGIN
    BEGIN
        IF pgtrickle.setting('own_ddl', 'off')::boolean THEN
            RETURN;
        END IF;
        noted := CASE TG_EVENT WHEN 'sql_drop' THEN pgtrickle.note_dropped(TG_TAG)
                               ELSE pgtrickle.note_altered(TG_TAG) END;
        blocked := noted IS NOT NULL AND pgtrickle.setting('block_source_ddl', 'off')::boolean;
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING USING
            MESSAGE = format('pgtrickle could not tell whether a stream table depends on this %s: %s', TG_TAG, SQLERRM),
            HINT = 'Nothing is lost: refreshes compare what they depend on themselves.';
        RETURN;
    END;
    IF blocked THEN
        PERFORM pgtrickle.refuse_source_ddl(noted);
    END IF;
END
$$;

-- As the user's transaction commits: the stream table shows what was done to it, and whoever listens is told.
CREATE FUNCTION pgtrickle.tell_source_ddl() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_RELID <> 'pgtrickle.pgt_source_ddl'::regclass THEN
        RETURN NULL;  -- someone's own table: it has no say
    END IF;
    UPDATE pgtrickle.pgt_stream_tables AS t
    SET needs_reinit = true, reinit_reason = NEW.reason, updated_at = clock_timestamp(),
        status = CASE WHEN NEW.gone AND t.status <> 'SUSPENDED' THEN 'ERROR' ELSE t.status END,
        last_error = CASE WHEN NEW.gone THEN NEW.reason || ': create it again, or alter or drop the stream table'
                     ELSE t.last_error END
    FROM (SELECT pgt_id FROM pgtrickle.pgt_stream_tables WHERE pgt_id = NEW.pgt_id
          FOR NO KEY UPDATE SKIP LOCKED) AS free
    WHERE t.pgt_id = free.pgt_id;
    PERFORM pg_notify('pg_trickle_alert', json_build_object(
        'event', CASE WHEN NEW.gone THEN 'source_dropped' ELSE 'reinitialize_needed' END,
        'table', format('%I.%I', t.pgt_schema, t.pgt_name), 'status', t.status, 'reason', NEW.reason)::text)
    FROM pgtrickle.pgt_stream_tables AS t WHERE t.pgt_id = NEW.pgt_id;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING USING
        MESSAGE = format('pgtrickle could not mark a stream table (%s): %s', NEW.reason, SQLERRM),
        HINT = 'Nothing is lost: refreshes compare what they depend on themselves.';
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER tell AFTER INSERT ON pgtrickle.pgt_source_ddl
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pgtrickle.tell_source_ddl();

REVOKE ALL ON FUNCTION pgtrickle.on_source_ddl(), pgtrickle.tell_source_ddl() FROM PUBLIC;

-- Creates the event triggers; false if this role may not.
CREATE FUNCTION pgtrickle.track_ddl() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_event_trigger WHERE evtname = 'pgtrickle_ddl') THEN
        CREATE EVENT TRIGGER pgtrickle_ddl ON ddl_command_end WHEN TAG IN (
            'ALTER TABLE', 'ALTER FOREIGN TABLE', 'ALTER VIEW', 'ALTER MATERIALIZED VIEW', 'CREATE VIEW',
            'CREATE FUNCTION', 'ALTER FUNCTION', 'ALTER ROUTINE', 'CREATE AGGREGATE', 'ALTER AGGREGATE',
            'ALTER SCHEMA', 'ALTER TYPE', 'ALTER DOMAIN'
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

-- How DDL on sources is noticed, and whether it is refused.
CREATE VIEW pgtrickle.pgt_ddl_tracking AS
SELECT CASE WHEN e.standing THEN 'EVENT TRIGGERS' ELSE 'FINGERPRINT' END AS noticed_by,
       e.standing AND b.asked AS refused,
       CASE WHEN e.standing THEN 'DDL on what a stream table uses marks it at once'
            WHEN b.asked THEN 'block_source_ddl has no effect: there are no event triggers, which only a superuser'
                              ' (or a managed service''s equivalent) may create'
            ELSE 'DDL on what a stream table uses is noticed at its next refresh' END AS note
FROM (SELECT count(*) = 2 AS standing FROM pg_event_trigger
      WHERE evtname IN ('pgtrickle_ddl', 'pgtrickle_drop') AND evtenabled <> 'D') AS e
CROSS JOIN (SELECT pgtrickle.setting('block_source_ddl', 'off')::boolean AS asked) AS b;

-- Stream tables defined before this: their tables and columns. The rest comes when they are defined anew.
INSERT INTO pgtrickle.pgt_used_objects (pgt_id, classid, objid, objsubid, title, shape)
SELECT u.pgt_id, 'pg_class'::regclass, u.objid, u.objsubid, d.title, d.shape
FROM (SELECT pgt_id, source_relid AS objid, 0 AS objsubid FROM pgtrickle.pgt_dependencies
      UNION ALL
      SELECT p.pgt_id, a.attrelid, a.attnum FROM pgtrickle.pgt_dependencies AS p
      JOIN pg_attribute AS a ON a.attrelid = p.source_relid AND a.attname = ANY (p.columns_used)) AS u
CROSS JOIN LATERAL pgtrickle.describe_object('pg_class'::regclass, u.objid, u.objsubid) AS d
WHERE d.shape IS NOT NULL;
