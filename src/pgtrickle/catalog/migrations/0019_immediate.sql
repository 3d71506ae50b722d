-- IMMEDIATE mode: check_options refuses it no more.

CREATE OR REPLACE FUNCTION pgtrickle.check_options(
    schedule text, refresh_mode text, diamond_consistency text, diamond_schedule_policy text, cdc_mode text)
RETURNS jsonb LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pgtrickle.check_schedule(schedule);
    IF upper(btrim(refresh_mode)) = 'IMMEDIATE' AND lower(btrim(cdc_mode)) = 'wal' THEN
        PERFORM pgtrickle.refuse('PT009', 'IMMEDIATE refresh does not go with capture from the WAL',
                                 'Leave cdc_mode out: IMMEDIATE has triggers of its own.');
    ELSIF upper(btrim(refresh_mode)) = 'IMMEDIATE' AND lower(current_setting('pg_trickle.cdc_mode', true)) = 'wal' THEN
        RAISE NOTICE 'the setting pg_trickle.cdc_mode = wal has no effect on a table in IMMEDIATE mode'
            USING HINT = 'IMMEDIATE has triggers of its own.';
    END IF;
    RETURN jsonb_strip_nulls(jsonb_build_object(
        'schedule', btrim(schedule),
        'refresh_mode', pgtrickle.check_choice(
            'refresh mode', refresh_mode, 'PT006', 'AUTO', 'FULL', 'DIFFERENTIAL', 'IMMEDIATE'),
        'diamond_consistency', pgtrickle.check_choice(
            'diamond consistency', diamond_consistency, 'PT013', 'atomic', 'none', 'inherit'),
        'diamond_schedule_policy', pgtrickle.check_choice(
            'diamond schedule policy', diamond_schedule_policy, 'PT014', 'fastest', 'slowest', 'inherit'),
        'cdc_mode', pgtrickle.check_choice('capture mode', cdc_mode, 'PT007', 'auto', 'trigger', 'wal', 'inherit')));
END
$$;
