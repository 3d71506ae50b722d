-- What pgtrickle asks itself, and the tables and views that only it reads, are out of sight as well: in the schema of
-- migration 22. Rights stay as they are, and come with what is moved.

-- Views, defaults and triggers know all of it by oid; the bodies of functions know it by name, so these are made again with
-- the new names. The event triggers pass over what is done here.
DO $move$
DECLARE
    routines CONSTANT text[] := ARRAY[
        'serves', 'session_settings', 'slot_name', 'source_type', 'steers', 'track_ddl', 'track_subscriptions', 'wal_eligibility'];
    relations CONSTANT text[] := ARRAY[
        'pgt_consumed', 'pgt_cron_runs', 'pgt_decoded', 'pgt_draining', 'pgt_locks', 'pgt_published', 'pgt_refresh_locks',
        'pgt_seen_objects', 'pgt_slot', 'pgt_slot_lock'];
    called CONSTANT text := format('\mpgtrickle\.(%s)\M(?=\s*\()', array_to_string(routines, '|'));
    read CONSTANT text := format('\mpgtrickle\.(%s)\M', array_to_string(relations, '|'));
    definitions text[];
    each text;
    moved oid;
BEGIN
    PERFORM set_config('pg_trickle.own_ddl', 'on', true);
    definitions := ARRAY(
        SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p
        WHERE p.pronamespace IN ('pgtrickle'::regnamespace, 'pgtrickle_internal'::regnamespace) AND p.prokind IN ('f', 'p')
        ORDER BY p.oid);
    FOR moved IN
        SELECT p.oid FROM pg_proc AS p WHERE p.pronamespace = 'pgtrickle'::regnamespace AND p.proname = ANY (routines)
    LOOP
        EXECUTE format('ALTER ROUTINE %s SET SCHEMA pgtrickle_internal', moved::regprocedure);
    END LOOP;
    FOREACH each IN ARRAY relations LOOP
        EXECUTE format('ALTER TABLE pgtrickle.%I SET SCHEMA pgtrickle_internal', each);  -- a view is altered so, too
    END LOOP;
    FOREACH each IN ARRAY definitions LOOP
        EXECUTE regexp_replace(regexp_replace(each, called, 'pgtrickle_internal.\1', 'g'), read, 'pgtrickle_internal.\1', 'g');
    END LOOP;
END
$move$;

COMMENT ON FUNCTION pgtrickle_internal.serves IS
    'Internal: whether a session that logged in as the one role computes the stream tables of the other.';
COMMENT ON FUNCTION pgtrickle_internal.session_settings IS
    'Internal: the settings of this session that can change the answer of a query. They are kept with a stream table.';
COMMENT ON FUNCTION pgtrickle_internal.slot_name IS
    'Internal: the name of the replication slot and of the publication in this database.';
COMMENT ON FUNCTION pgtrickle_internal.source_type IS
    'Internal: what a source is: TABLE, PARTITIONED_TABLE, FOREIGN_TABLE, VIEW, MATERIALIZED_VIEW or STREAM_TABLE.';
COMMENT ON FUNCTION pgtrickle_internal.steers IS
    'Internal: whether a role may make this request about a stream table of somebody else.';
COMMENT ON FUNCTION pgtrickle_internal.track_ddl IS
    'Internal: creates the event triggers by which DDL on sources is noticed at once; false if this role may not.';
COMMENT ON FUNCTION pgtrickle_internal.track_subscriptions IS
    'Internal: creates the event trigger by which changes of subscriptions are noticed; false if this role may not.';
COMMENT ON FUNCTION pgtrickle_internal.wal_eligibility IS
    'Internal: whether a role can have the changes of a source, with these columns used, from the WAL; if not, why.';
