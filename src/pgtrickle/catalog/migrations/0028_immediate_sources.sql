-- Sources whose writers keep tables in IMMEDIATE mode are told apart from those that are captured for refreshes, and such
-- tables alone need no service.

CREATE OR REPLACE VIEW pgtrickle.pgt_stream_table_sources AS
SELECT p.pgt_schema, p.pgt_name, coalesce(n.nspname::text COLLATE "default", d.source_schema) AS source_schema,
       coalesce(c.relname::text COLLATE "default", d.source_name) AS source_name, d.source_relid, d.columns_used,
       CASE WHEN t.effective_mode = 'IMMEDIATE' THEN 'IMMEDIATE' ELSE d.cdc_mode END AS cdc_mode,
       u.pgt_id IS NOT NULL AS source_is_stream_table, pgtrickle.source_type(d.source_relid) AS source_type
FROM pgtrickle.pgt_dependencies AS d
JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)
JOIN pgtrickle.pgt_present AS p USING (pgt_id)
LEFT JOIN pgtrickle.pgt_compared AS m ON m.copy_relid = d.source_relid
LEFT JOIN pg_class AS c ON c.oid = coalesce(m.source_relid, d.source_relid)
LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pgtrickle.pgt_stream_tables AS u ON u.pgt_relid = d.source_relid;
COMMENT ON COLUMN pgtrickle.pgt_stream_table_sources.cdc_mode IS
    'How its changes are captured for this table. IMMEDIATE: not at all, writers keep the table; NULL: it is read in full.';

CREATE OR REPLACE FUNCTION pgtrickle_internal.lease_problems() RETURNS TABLE (severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN t.are_immediate THEN 'WARN' ELSE 'ERROR' END, 'no service runs in this database: pgtrickle run'
    FROM (SELECT bool_and(effective_mode = 'IMMEDIATE') AS are_immediate FROM pgtrickle.pgt_stream_tables) AS t
    WHERE t.are_immediate IS NOT NULL
      AND NOT EXISTS (SELECT FROM pgtrickle.pgt_leaders AS l WHERE l.purpose = 'service' AND l.connected)
    UNION ALL
    SELECT 'ERROR',
           pg_catalog.format('the service that leads as %s, in session %s, hangs: its last heartbeat was %s ago;'
                             ' another service takes over if one runs', l.role_name, l.backend_pid,
                             date_trunc('second', l.heartbeat_age))
    FROM pgtrickle.pgt_leaders AS l WHERE l.purpose = 'service' AND l.connected AND NOT l.beats
    UNION ALL
    SELECT 'WARN', l.obstacle FROM pgtrickle.pgt_leaders AS l WHERE l.obstacle IS NOT NULL
$$;

-- A long function, which stays as it is but for these words.
DO $edit$
DECLARE
    each record;
    definition text;
BEGIN
    FOR each IN
        SELECT * FROM (VALUES
            ('pgtrickle_internal.explain_full_name', $$coalesce('by ' || s.cdc_mode, 'read in full')$$,
             $$CASE s.cdc_mode WHEN 'IMMEDIATE' THEN 'followed by its writers'
               ELSE coalesce('by ' || s.cdc_mode, 'read in full') END$$),
            ('pgtrickle_internal.explain_full_name', $$s.cdc_mode IS NOT NULL AND o.buffer_relid$$,
             $$s.cdc_mode <> 'IMMEDIATE' AND o.buffer_relid$$)
        ) AS v(function, old_words, new_words)
    LOOP
        definition := pg_get_functiondef(each.function::regproc);
        IF strpos(definition, each.old_words) = 0 THEN
            RAISE EXCEPTION '% is not what it was', each.function;
        END IF;
        EXECUTE replace(definition, each.old_words, each.new_words);
    END LOOP;
END
$edit$;
