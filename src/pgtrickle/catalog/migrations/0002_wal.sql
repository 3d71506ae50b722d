-- Hybrid capture: the mode of each source, the handovers between triggers and WAL, the decoder, and their health.

ALTER TABLE pgtrickle.pgt_change_tracking
    ADD COLUMN cdc_mode text NOT NULL DEFAULT 'TRIGGER' CHECK (cdc_mode IN ('TRIGGER', 'TRANSITIONING', 'WAL')),
    ADD COLUMN mode_since timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN requested text CHECK (requested IN ('auto', 'trigger', 'wal')),
    ADD COLUMN transition_started_at timestamptz,
    ADD COLUMN transition_lsn pg_lsn,
    ADD COLUMN membership oid,
    ADD COLUMN publication_xmin xid,
    ADD COLUMN refused_lsn pg_lsn,
    ADD COLUMN identity_before jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN note text,
    ADD COLUMN last_error text,
    ADD COLUMN next_try_at timestamptz,
    ADD COLUMN failures integer NOT NULL DEFAULT 0 CHECK (failures >= 0);
COMMENT ON COLUMN pgtrickle.pgt_change_tracking.requested IS
    'What the consumers ask for together: the safer wins (trigger, then auto, then wal).';
COMMENT ON COLUMN pgtrickle.pgt_change_tracking.note IS
    'Why the source is captured as it is, as of the last look.';
COMMENT ON COLUMN pgtrickle.pgt_change_tracking.transition_lsn IS
    'Where the last transition to WAL began; NULL: never, so the buffer has no decoded rows.';
COMMENT ON COLUMN pgtrickle.pgt_change_tracking.membership IS
    'The row of pg_publication_rel by which the source is published: another one means that changes were missed.';
COMMENT ON COLUMN pgtrickle.pgt_change_tracking.publication_xmin IS
    'The version of the row of pg_publication then: another one means that for a time it may not have told all.';
COMMENT ON COLUMN pgtrickle.pgt_change_tracking.refused_lsn IS
    'Up to there the buffer refuses a decoded value: of transactions before it, only that there were some is written.';
COMMENT ON COLUMN pgtrickle.pgt_change_tracking.identity_before IS
    'The replica identities that we replaced by FULL: table oid, and the clause that puts it back.';

CREATE TABLE pgtrickle.pgt_handovers (
    handover_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source_relid  oid NOT NULL,
    at            pg_snapshot NOT NULL,
    side          "char" NOT NULL CHECK (side IN ('T', 'W')),
    lsn           pg_lsn,
    created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON pgtrickle.pgt_handovers (source_relid, handover_id);
COMMENT ON TABLE pgtrickle.pgt_handovers IS
    'Which rows of a buffer count. Transactions visible in the first snapshot: those of triggers (T). Visible in the'
    ' next: those of the first row''s side. And so on; visible in none: those of the last row''s side.';
COMMENT ON COLUMN pgtrickle.pgt_handovers.lsn IS
    'For side T: once the decoder has passed it, all that counts on side W is in the buffer. NULL: not waited for.';

CREATE TABLE pgtrickle.pgt_decoder (
    slot_name      text PRIMARY KEY,
    publication    text NOT NULL,
    confirmed_lsn  pg_lsn,
    commit_lsn     pg_lsn,
    status         text NOT NULL DEFAULT 'STOPPED',
    error          text,
    updated_at     timestamptz NOT NULL DEFAULT now(),
    pid            integer
);
COMMENT ON COLUMN pgtrickle.pgt_decoder.confirmed_lsn IS
    'All that was committed before it is in the buffers; written in the transaction that copied the rows.';

CREATE TABLE pgtrickle.pgt_cdc_history (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    source_relid  oid NOT NULL,
    source_table  text NOT NULL,
    old_mode      text NOT NULL,
    new_mode      text NOT NULL,
    slot_name     text,
    reason        text NOT NULL
);
CREATE INDEX ON pgtrickle.pgt_cdc_history (source_relid, id DESC);

-- The name of this database's one slot, and of its publication.
CREATE FUNCTION pgtrickle.slot_name() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT 'pgtrickle_' || oid::text FROM pg_database WHERE datname = current_database()
$$;

-- Bytes of WAL written since `place`.
CREATE FUNCTION pgtrickle.wal_since(place pg_lsn) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT CASE WHEN NOT pg_is_in_recovery() THEN greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), place), 0)::bigint END
$$;

-- This database's slot, if it is there. `invalidation_reason` is asked for by name: PostgreSQL has it from 17 on.
CREATE VIEW pgtrickle.pgt_slot AS
SELECT s.slot_name::text AS slot_name, s.plugin::text AS plugin, s.active, s.active_pid, s.wal_status,
       to_jsonb(s) ->> 'invalidation_reason' AS invalidation_reason,
       s.confirmed_flush_lsn IS NOT NULL AND s.wal_status IS DISTINCT FROM 'lost' AS alive,
       s.restart_lsn, s.confirmed_flush_lsn, pgtrickle.wal_since(s.restart_lsn) AS retained_bytes,
       pgtrickle.wal_since(s.confirmed_flush_lsn) AS lag_bytes
FROM pg_replication_slots AS s
WHERE s.slot_name = pgtrickle.slot_name() AND s.database = current_database();

-- The sources that have been published, with all their changes, ever since they were added to the publication.
CREATE VIEW pgtrickle.pgt_published AS
SELECT k.source_relid
FROM pgtrickle.pgt_change_tracking AS k
JOIN pg_publication_rel AS r ON r.oid = k.membership AND r.prrelid = k.source_relid
JOIN pg_publication AS p ON p.oid = r.prpubid AND p.xmin = k.publication_xmin
WHERE p.pubname = pgtrickle.slot_name()
  AND p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate AND p.pubviaroot;

-- How far the WAL is in the buffers. The decoder confirms a position only after its rows are committed, and confirms
-- more than it records while there is nothing to write.
CREATE VIEW pgtrickle.pgt_decoded AS
SELECT greatest(d.confirmed_lsn, s.confirmed_flush_lsn) AS lsn
FROM (SELECT pgtrickle.slot_name() AS slot_name) AS n
LEFT JOIN pgtrickle.pgt_decoder AS d USING (slot_name) LEFT JOIN pgtrickle.pgt_slot AS s USING (slot_name);

-- Sources that went back to triggers while decoded rows that count had still to come.
CREATE VIEW pgtrickle.pgt_draining AS
SELECT h.source_relid, h.lsn, h.created_at AS since
FROM (SELECT DISTINCT ON (source_relid) source_relid, side, lsn, created_at
      FROM pgtrickle.pgt_handovers ORDER BY source_relid, handover_id DESC) AS h
CROSS JOIN pgtrickle.pgt_decoded AS p
WHERE h.side = 'T' AND h.lsn IS NOT NULL AND (p.lsn IS NULL OR p.lsn < h.lsn);

-- The first reason why a source with these properties cannot be captured from the WAL; code NULL: none.
CREATE FUNCTION pgtrickle.wal_verdict(
    is_stream_table boolean, kind "char", persistence "char", is_partition boolean, wal_level text, free_slots bigint,
    free_senders bigint, may_replicate boolean, may_publish boolean, unidentified text[], set_identity boolean, unpublished text[],
    refused_writes text[], unsendable text[], encoding text, OUT code text, OUT reason text, OUT hint text)
LANGUAGE sql IMMUTABLE AS $$
    SELECT v.code, v.reason, v.hint FROM (VALUES
        (is_stream_table AND kind IS NOT NULL, 'PT259',
         'it is a stream table: what reads it may be refreshed before its changes are committed and decoded',
         'Stream tables stay with triggers; leave cdc_mode out.'),
        (kind IS NULL, 'PT260', 'the table does not exist', 'Drop or alter the stream tables that read it.'),
        (kind NOT IN ('r', 'p'), 'PT261',
         CASE kind WHEN 'f' THEN 'it is a foreign table' WHEN 'v' THEN 'it is a view'
                   WHEN 'm' THEN 'it is a materialized view' ELSE 'it is not a table' END,
         'Only ordinary and partitioned tables are in the WAL.'),
        (persistence <> 'p', 'PT262', 'it is, or has a partition that is, an unlogged or temporary table',
         'ALTER TABLE ... SET LOGGED.'),
        (is_partition, 'PT263', 'it is a partition: its changes are published as those of its root',
         'Read the partitioned table, or stay with triggers.'),
        (wal_level <> 'logical', 'PT264', 'wal_level is ' || wal_level,
         'ALTER SYSTEM SET wal_level = logical, and restart the server.'),
        (free_slots < 1, 'PT265', 'no replication slot is free',
         'Raise max_replication_slots, or drop an unused slot.'),
        (free_senders < 1, 'PT266', 'no WAL sender is free', 'Raise max_wal_senders.'),
        (NOT may_replicate, 'PT267', 'the role has no REPLICATION right', 'ALTER ROLE ... REPLICATION.'),
        (NOT may_publish, 'PT268', 'the role may not create the publication', 'GRANT CREATE ON DATABASE ... to it.'),
        (cardinality(unpublished) > 0, 'PT269',
         'the generated column ' || coalesce(unpublished[1], '') || ' is not in the WAL''s changes',
         'Stay with triggers, which compute it.'),
        (cardinality(unidentified) > 0 AND NOT set_identity, 'PT270',
         'the replica identity of ' || coalesce(unidentified[1], '')
         || CASE kind WHEN 'p' THEN ' is not FULL' ELSE ' does not cover the columns used' END,
         'ALTER TABLE ... REPLICA IDENTITY FULL, or set pg_trickle.auto_replica_identity.'),
        (cardinality(refused_writes) > 0, 'PT271',
         'with REPLICA IDENTITY FULL and the generated column ' || coalesce(refused_writes[1], '')
         || ' PostgreSQL would refuse its updates', 'Use an identity index that covers the columns used.'),
        (cardinality(unsendable) > 0, 'PT272',
         'values of the column ' || coalesce(unsendable[1], '') || ' have parts without a binary form',
         'Stay with triggers, or drop the column.'),
        (encoding <> 'UTF8', 'PT273', 'the encoding of the database is ' || encoding,
         'Stay with triggers: the WAL is read in UTF8, and not all values can be written so.')
    ) AS v(holds, code, reason, hint) WHERE v.holds ORDER BY v.code LIMIT 1
$$;

-- What tells whether a source can be captured from the WAL by `role`, with these columns used.
CREATE FUNCTION pgtrickle.wal_eligibility(
    source oid, used text[], role oid, set_identity boolean,
    OUT code text, OUT reason text, OUT hint text, OUT unidentified oid[])
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE server AS (
        SELECT current_setting('wal_level') AS wal_level,
               current_setting('max_replication_slots')::bigint - (SELECT count(*) FROM pg_replication_slots)
               + (SELECT count(*) FROM pgtrickle.pgt_slot) AS free_slots,
               current_setting('max_wal_senders')::bigint - (SELECT count(*) FROM pg_stat_replication)
               + (SELECT count(*) FROM pgtrickle.pgt_slot WHERE active) AS free_senders,
               current_setting('server_version_num')::integer AS version
    ), rights AS (
        SELECT r.rolsuper OR r.rolreplication OR EXISTS (
                   SELECT FROM pg_roles AS g WHERE g.rolname = 'rds_replication' AND pg_has_role(r.oid, g.oid, 'MEMBER')
               ) AS may_replicate,
               coalesce((SELECT pg_has_role(r.oid, p.pubowner, 'USAGE') FROM pg_publication AS p
                         WHERE p.pubname = pgtrickle.slot_name()),
                        has_database_privilege(r.oid, current_database(), 'CREATE')) AS may_publish
        FROM pg_roles AS r WHERE r.oid = role
    ), tree AS (
        -- A partition's changes come with the identity of its root, so an index would not be known by its columns.
        SELECT c.oid, c.relreplident, c.relpersistence,
               c.relreplident = 'f' OR c.relkind = 'r' AND NOT c.relispartition AND c.relreplident IN ('d', 'i')
               AND EXISTS (
                   SELECT FROM pg_index AS x
                   WHERE x.indrelid = c.oid AND x.indisvalid AND x.indimmediate
                     AND CASE c.relreplident WHEN 'd' THEN x.indisprimary ELSE x.indisreplident END
                     AND used <@ ARRAY(
                         SELECT a.attname::text FROM unnest(x.indkey[0:x.indnkeyatts - 1]) AS k(number)
                         JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = k.number)
               ) AS identified
        FROM pg_class AS c
        WHERE c.oid = source OR c.oid IN (SELECT p.relid FROM pg_partition_tree(source) AS p)
    ), shape AS (
        SELECT (SELECT array_agg(oid ORDER BY oid) FROM tree WHERE NOT identified) AS unidentified,
               (SELECT bool_or(relreplident = 'f' OR NOT identified AND set_identity) FROM tree) AS will_be_full,
               (SELECT relpersistence FROM tree ORDER BY relpersistence = 'p' LIMIT 1) AS persistence
    ), generated AS (
        SELECT array_agg(a.attname::text ORDER BY a.attnum) FILTER (
                   WHERE a.attname = ANY(used) AND (a.attgenerated = 'v' OR server.version < 180000)) AS unpublished,
               array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attgenerated = 'v') AS virtual
        FROM pg_attribute AS a, server
        WHERE a.attrelid = source AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> ''
    ), part AS (
        -- All columns are sent, also those that are not used. A column whose own type has no binary form is sent as
        -- text; but if its elements, attributes or bounds have none, the server fails, and all capture with it.
        SELECT a.attnum, a.attname::text AS name, a.atttypid AS type, false AS nested
        FROM pg_attribute AS a WHERE a.attrelid = source AND a.attnum > 0 AND NOT a.attisdropped
        UNION
        SELECT part.attnum, part.name, inner_type.oid, part.nested OR t.typtype <> 'd'
        FROM part JOIN pg_type AS t ON t.oid = part.type
        CROSS JOIN LATERAL (
            SELECT t.typbasetype WHERE t.typtype = 'd'
            UNION ALL SELECT t.typelem WHERE t.typtype <> 'd' AND t.typelem <> 0
            UNION ALL SELECT f.atttypid FROM pg_attribute AS f
                      WHERE t.typtype = 'c' AND f.attrelid = t.typrelid AND f.attnum > 0 AND NOT f.attisdropped
            UNION ALL SELECT CASE t.oid WHEN r.rngtypid THEN r.rngsubtype ELSE r.rngtypid END FROM pg_range AS r
                      WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
        ) AS inner_type(oid)
    ), unsendable AS (
        SELECT array_agg(DISTINCT part.name) AS columns
        FROM part JOIN pg_type AS t ON t.oid = part.type
        WHERE part.nested AND t.typsend = 0 OR t.typsend <> 0 AND t.typreceive = 0
    )
    SELECT v.code, v.reason, v.hint, coalesce(shape.unidentified, '{}')
    FROM server CROSS JOIN shape CROSS JOIN generated CROSS JOIN unsendable LEFT JOIN rights ON true
    LEFT JOIN pg_class AS c ON c.oid = source
    LEFT JOIN LATERAL pgtrickle.wal_verdict(
        EXISTS (SELECT FROM pgtrickle.pgt_stream_tables AS t WHERE t.pgt_relid = source), c.relkind, shape.persistence, c.relispartition, server.wal_level, server.free_slots, server.free_senders,
        coalesce(rights.may_replicate, false), coalesce(rights.may_publish, false),
        (SELECT array_agg(u::regclass::text) FROM unnest(shape.unidentified) AS u), set_identity, generated.unpublished,
        CASE WHEN shape.will_be_full THEN generated.virtual END, unsendable.columns, current_setting('server_encoding')
    ) AS v ON true
$$;

-- A setting of ours as SQL sees it: what was set for the database or role.
CREATE FUNCTION pgtrickle.setting(name text, fallback text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(nullif(current_setting('pg_trickle.' || name, true), ''), fallback)
$$;

-- Eligibility is that of the role that owns the catalog, under which the service runs.
CREATE VIEW pgtrickle.pgt_cdc_status AS
SELECT CASE WHEN c.oid IS NULL THEN k.source_relid::text ELSE pg_catalog.format('%I.%I', n.nspname, c.relname) END AS source_table,
       k.cdc_mode,
       CASE WHEN k.cdc_mode <> 'TRIGGER' OR g.source_relid IS NOT NULL THEN pgtrickle.slot_name() END AS slot_name,
       CASE WHEN k.cdc_mode <> 'TRIGGER' OR g.source_relid IS NOT NULL THEN s.lag_bytes END AS slot_lag_bytes,
       t.writing = k.trigger_count AS trigger_active,
       e.code IS NULL AS eligible,
       coalesce(e.reason, k.last_error, k.note) AS reason,
       e.hint,
       k.source_relid,
       k.requested,
       k.mode_since,
       k.transition_started_at,
       k.next_try_at,
       k.failures,
       g.source_relid IS NOT NULL AS draining,
       k.source_relid IN (SELECT p.source_relid FROM pgtrickle.pgt_published AS p) AS published,
       greatest(d.confirmed_lsn, s.confirmed_flush_lsn) AS confirmed_lsn,
       coalesce(d.status, 'STOPPED') AS decoder_status,
       d.error AS decoder_error
FROM pgtrickle.pgt_change_tracking AS k
LEFT JOIN pg_class AS c ON c.oid = k.source_relid
LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pgtrickle.pgt_slot AS s ON true
LEFT JOIN pgtrickle.pgt_decoder AS d ON d.slot_name = pgtrickle.slot_name()
LEFT JOIN pgtrickle.pgt_draining AS g ON g.source_relid = k.source_relid
CROSS JOIN LATERAL (
    SELECT count(*) AS writing FROM pg_trigger
    WHERE tgfoid = to_regproc('pgtrickle_changes.capture_' || k.source_relid) AND tgenabled = 'A'
) AS t
CROSS JOIN LATERAL pgtrickle.wal_eligibility(
    k.source_relid, k.columns, (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgtrickle'),
    pgtrickle.setting('auto_replica_identity', 'off')::boolean) AS e;

-- The slot: whether it lives, who reads it, what it holds back. No row: there is none.
CREATE FUNCTION pgtrickle.slot_health()
RETURNS TABLE (slot_name text, active boolean, wal_status text, invalidation_reason text, retained_wal_bytes bigint,
               lag_bytes bigint, confirmed_lsn pg_lsn, sources bigint, decoder_status text, decoder_error text,
               alert text)
LANGUAGE sql STABLE AS $$
    SELECT s.slot_name, s.active, s.wal_status, s.invalidation_reason, s.retained_bytes, s.lag_bytes,
           s.confirmed_flush_lsn, u.sources, coalesce(d.status, 'STOPPED'), d.error,
           CASE WHEN NOT s.alive THEN 'slot_lost'
                WHEN u.sources = 0 THEN 'slot_unused'
                WHEN d.status = 'ERROR' THEN 'decoder_error'
                WHEN NOT s.active THEN 'decoder_not_connected'
                WHEN greatest(s.lag_bytes, s.retained_bytes) > m.critical THEN 'slot_lag_critical'
                WHEN greatest(s.lag_bytes, s.retained_bytes) > m.warning THEN 'slot_lag_warning' END
    FROM pgtrickle.pgt_slot AS s
    LEFT JOIN pgtrickle.pgt_decoder AS d ON d.slot_name = s.slot_name
    CROSS JOIN (
        SELECT pgtrickle.setting('slot_lag_warning_threshold_mb', '100')::bigint << 20 AS warning,
               pgtrickle.setting('slot_lag_critical_threshold_mb', '1024')::bigint << 20 AS critical
    ) AS m
    CROSS JOIN LATERAL (
        SELECT count(*) AS sources FROM pgtrickle.pgt_change_tracking AS k
        WHERE k.cdc_mode <> 'TRIGGER' OR k.source_relid IN (SELECT g.source_relid FROM pgtrickle.pgt_draining AS g)
    ) AS u
$$;

-- One row a source; `alert` says what is wrong with it, NULL when nothing is.
CREATE FUNCTION pgtrickle.check_cdc_health()
RETURNS TABLE (source_relid oid, source_table text, cdc_mode text, slot_name text, lag_bytes bigint,
               confirmed_lsn pg_lsn, decoder_status text, alert text)
LANGUAGE sql STABLE AS $$
    SELECT c.source_relid, c.source_table, c.cdc_mode, c.slot_name, c.slot_lag_bytes, c.confirmed_lsn, c.decoder_status,
           CASE WHEN c.cdc_mode = 'TRIGGER' AND NOT c.trigger_active THEN 'trigger_missing'
                WHEN c.slot_name IS NULL THEN NULL
                WHEN h.slot_name IS NULL THEN 'slot_missing'
                WHEN h.alert = 'slot_lost' THEN h.alert
                WHEN c.cdc_mode <> 'TRIGGER' AND NOT c.published THEN 'not_published'
                WHEN c.cdc_mode <> 'TRIGGER' AND NOT c.eligible THEN 'not_eligible'
                ELSE h.alert END
    FROM pgtrickle.pgt_cdc_status AS c LEFT JOIN pgtrickle.slot_health() AS h ON true
    ORDER BY c.source_table
$$;

CREATE OR REPLACE VIEW pgtrickle.pg_stat_stream_tables AS
SELECT t.pgt_id, t.pgt_schema, t.pgt_name, t.status, t.refresh_mode, t.effective_mode, t.is_populated,
       t.data_timestamp, now() - t.data_timestamp AS staleness, t.schedule, t.consecutive_errors, t.last_error,
       h.total_refreshes, h.successful_refreshes, h.failed_refreshes, h.full_refreshes, h.differential_refreshes,
       h.rows_inserted, h.rows_deleted, h.changes_read, h.avg_duration_ms,
       l.action AS last_action, l.status AS last_status, l.reason AS last_reason, l.duration_ms AS last_duration_ms,
       c.cdc_modes, c.slot_name,
       CASE WHEN c.slot_name IS NOT NULL THEN (SELECT s.lag_bytes FROM pgtrickle.pgt_slot AS s) END AS slot_lag_bytes,
       (SELECT d.status FROM pgtrickle.pgt_decoder AS d WHERE d.slot_name = c.slot_name) AS decoder_status
FROM pgtrickle.pgt_stream_tables AS t
CROSS JOIN LATERAL (
    SELECT count(*) AS total_refreshes,
           count(*) FILTER (WHERE status = 'COMPLETED') AS successful_refreshes,
           count(*) FILTER (WHERE status = 'FAILED') AS failed_refreshes,
           count(*) FILTER (WHERE status = 'COMPLETED' AND action IN ('FULL', 'REINITIALIZE')) AS full_refreshes,
           count(*) FILTER (WHERE status = 'COMPLETED' AND action = 'DIFFERENTIAL') AS differential_refreshes,
           coalesce(sum(rows_inserted), 0) AS rows_inserted,
           coalesce(sum(rows_deleted), 0) AS rows_deleted,
           coalesce(sum(changes_read), 0) AS changes_read,
           avg(duration_ms) FILTER (WHERE status = 'COMPLETED') AS avg_duration_ms
    FROM pgtrickle.pgt_refresh_history WHERE pgt_id = t.pgt_id
) AS h
CROSS JOIN LATERAL (
    SELECT array_agg(DISTINCT cdc_mode) AS cdc_modes, min(slot_name) AS slot_name
    FROM pgtrickle.pgt_dependencies WHERE pgt_id = t.pgt_id
) AS c
LEFT JOIN LATERAL (
    SELECT action, status, reason, duration_ms FROM pgtrickle.pgt_refresh_history
    WHERE pgt_id = t.pgt_id AND status <> 'RUNNING' ORDER BY refresh_id DESC LIMIT 1
) AS l ON true;
