-- What only pgtrickle itself calls is out of sight: `\df pgtrickle.*` shows what users may call. Rights stay as they are.

CREATE SCHEMA pgtrickle_internal;
COMMENT ON SCHEMA pgtrickle_internal IS
    'Functions that pgtrickle calls. Not for users: they may change with any version. Made by pgtrickle.';

-- All run with the rights of their callers, who therefore must reach these too.
DO $$
DECLARE
    reader record;
BEGIN
    FOR reader IN
        SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS name, a.is_grantable
        FROM pg_namespace AS n CROSS JOIN aclexplode(n.nspacl) AS a
        WHERE n.nspname = 'pgtrickle' AND a.privilege_type = 'USAGE' AND a.grantee <> n.nspowner
    LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA pgtrickle_internal TO %s%s', reader.name,
                       CASE WHEN reader.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
    END LOOP;
END
$$;

-- Views, defaults and triggers know functions by oid; the bodies of functions know them by name, so these are made
-- again with the new names. The event trigger sleeps meanwhile, since it calls what is being moved.
DO $move$
DECLARE
    moved CONSTANT text[] := ARRAY[
        'add_request', 'begin_waiting', 'callers_path', 'catalog_is_here', 'check_capture', 'check_choice',
        'check_differential', 'check_new_name', 'check_new_name_in', 'check_options', 'check_own_full_name',
        'check_own_name', 'check_query', 'check_schedule', 'check_schedule_shape', 'check_steered_name',
        'check_wal', 'computes', 'describe_change', 'describe_object', 'duration_bounds', 'duration_bucket',
        'explain_full_name', 'full_name_of', 'history_of_full_name', 'id_of_name', 'id_of_relation',
        'is_done', 'is_of_the_query', 'is_served', 'is_stream_table', 'is_taken', 'is_wrong_cron',
        'is_wrong_in_cron', 'lease_problems', 'loop_problems', 'no_commit_here', 'note_altered',
        'note_dropped', 'object_names', 'object_shapes', 'on_source_ddl', 'on_subscription_ddl',
        'outlived_crashes', 'pause_problems', 'read_by_view', 'refuse', 'refuse_query', 'refuse_source_ddl',
        'request_progress', 'require_own_transaction', 'require_query', 'schedule_period',
        'sees_all_writers', 'service_pid', 'serving_roles', 'set_origin', 'setting', 'sources_of_view',
        'staleness_of', 'staleness_of_full_name', 'steerable_tables', 'takers', 'tell_source_ddl', 'tell_waiting',
        'unfilled_tables', 'unserved_tables', 'wal_since', 'wal_verdict', 'who_leads', 'with_descendants'];
    known CONSTANT text := format('\mpgtrickle\.(%s)\M(?=\s*\()', array_to_string(moved, '|'));
    own_schemas CONSTANT text := '''pgtrickle_changes'', ''pgtrickle_state''';  -- where they are listed
    definitions text[];
    each text;
    renamed regprocedure;
BEGIN
    definitions := ARRAY(
        SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p
        WHERE p.pronamespace = 'pgtrickle'::regnamespace AND p.prokind IN ('f', 'p')
        ORDER BY p.proname = 'on_source_ddl', p.oid);
    CREATE OR REPLACE FUNCTION pgtrickle.on_source_ddl() RETURNS event_trigger LANGUAGE plpgsql
        SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS 'BEGIN RETURN; END';
    FOR renamed IN
        SELECT p.oid FROM pg_proc AS p
        WHERE p.pronamespace = 'pgtrickle'::regnamespace AND p.proname = ANY (moved) AND p.prokind IN ('f', 'p')
    LOOP
        EXECUTE format('ALTER ROUTINE %s SET SCHEMA pgtrickle_internal', renamed);
    END LOOP;
    FOREACH each IN ARRAY definitions LOOP
        each := regexp_replace(each, known, 'pgtrickle_internal.\1', 'g');
        EXECUTE replace(each, own_schemas, own_schemas || ', ''pgtrickle_internal''');
    END LOOP;
END
$move$;

-- As before, and they are silent where somebody dropped the schema pgtrickle by hand, and these were left.
CREATE OR REPLACE FUNCTION pgtrickle_internal.on_source_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    noted bigint[];
    blocked boolean;
BEGIN
    BEGIN
        IF to_regnamespace('pgtrickle') IS NULL
           OR pgtrickle_internal.setting('own_ddl', 'off')::boolean THEN
            RETURN;
        END IF;
        noted := CASE TG_EVENT WHEN 'sql_drop' THEN pgtrickle_internal.note_dropped(TG_TAG)
                               ELSE pgtrickle_internal.note_altered(TG_TAG) END;
        blocked := noted IS NOT NULL AND pgtrickle_internal.setting('block_source_ddl', 'off')::boolean;
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING USING
            MESSAGE = format('pgtrickle could not tell whether a stream table depends on this %s: %s', TG_TAG, SQLERRM),
            HINT = 'Nothing is lost: refreshes compare what they depend on themselves.';
        RETURN;
    END;
    IF blocked THEN
        PERFORM pgtrickle_internal.refuse_source_ddl(noted);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION pgtrickle_internal.on_subscription_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    captured record;
BEGIN
    IF to_regnamespace('pgtrickle') IS NULL THEN
        RETURN;
    END IF;
    FOR captured IN
        SELECT k.source_relid, k.buffer_name FROM pgtrickle.pgt_change_tracking AS k
        WHERE k.cdc_mode <> 'WAL' AND NOT pgtrickle_internal.sees_all_writers(k.source_relid, k.trigger_level)
    LOOP
        EXECUTE format('INSERT INTO %s (xid, lsn, action) VALUES (pg_current_xact_id(), pg_current_wal_insert_lsn(), %L)',
                       to_regclass(captured.buffer_name), 'T');
    END LOOP;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'pgtrickle could not mark the targets of a subscription: %', SQLERRM
        USING HINT = 'Refresh the stream tables that read them in full.';
END
$$;

COMMENT ON FUNCTION pgtrickle.why_waiting IS
    'Why a request waits, for people; NULL if it does not, or if a service is about to take it.';
