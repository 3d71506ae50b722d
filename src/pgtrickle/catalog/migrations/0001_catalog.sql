-- The catalog of stream tables, their sources, their change buffers and their refreshes.

CREATE SCHEMA pgtrickle_changes;
CREATE SCHEMA pgtrickle_state;

CREATE TABLE pgtrickle.pgt_stream_tables (
    pgt_id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pgt_relid           oid NOT NULL UNIQUE,
    pgt_schema          text NOT NULL,
    pgt_name            text NOT NULL,
    defining_query      text NOT NULL,
    normalized_query    text NOT NULL,
    schedule            text,
    refresh_mode        text NOT NULL CHECK (refresh_mode IN ('AUTO', 'FULL', 'DIFFERENTIAL', 'IMMEDIATE')),
    effective_mode      text NOT NULL CHECK (effective_mode IN ('FULL', 'DIFFERENTIAL', 'IMMEDIATE')),
    mode_reason         text,
    status              text NOT NULL DEFAULT 'INITIALIZING'
                        CHECK (status IN ('INITIALIZING', 'ACTIVE', 'SUSPENDED', 'ERROR')),
    requested_cdc_mode  text CHECK (requested_cdc_mode IN ('auto', 'trigger', 'wal')),
    is_populated        boolean NOT NULL DEFAULT false,
    needs_reinit        boolean NOT NULL DEFAULT false,
    reinit_reason       text,
    frontier            pg_snapshot NOT NULL DEFAULT pg_current_snapshot(),
    data_timestamp      timestamptz,
    last_refresh_at     timestamptz,
    last_full_ms        double precision,
    consecutive_errors  integer NOT NULL DEFAULT 0 CHECK (consecutive_errors >= 0),
    last_error          text,
    source_fingerprint  text,
    search_path         text NOT NULL,
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    UNIQUE (pgt_schema, pgt_name),
    CHECK (NOT is_populated OR data_timestamp IS NOT NULL)
);
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.frontier IS
    'Changes visible in this snapshot are in the table, or came before it was registered; buffers keep all others.';

CREATE TABLE pgtrickle.pgt_dependencies (
    pgt_id                 bigint NOT NULL REFERENCES pgtrickle.pgt_stream_tables ON DELETE CASCADE,
    source_relid           oid NOT NULL,
    source_schema          text NOT NULL,
    source_name            text NOT NULL,
    columns_used           text[] NOT NULL,
    cdc_mode               text NOT NULL DEFAULT 'TRIGGER' CHECK (cdc_mode IN ('TRIGGER', 'TRANSITIONING', 'WAL')),
    slot_name              text,
    decoder_confirmed_lsn  pg_lsn,
    transition_started_at  timestamptz,
    PRIMARY KEY (pgt_id, source_relid)
);
CREATE INDEX ON pgtrickle.pgt_dependencies (source_relid);

CREATE TABLE pgtrickle.pgt_change_tracking (
    source_relid   oid PRIMARY KEY,
    buffer_name    text NOT NULL,
    columns        text[] NOT NULL,
    trigger_names  text[] NOT NULL,
    trigger_count  integer NOT NULL,
    trigger_level  text NOT NULL CHECK (trigger_level IN ('STATEMENT', 'ROW')),
    created_at     timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE pgtrickle.pgt_refresh_history (
    refresh_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pgt_id          bigint NOT NULL REFERENCES pgtrickle.pgt_stream_tables ON DELETE CASCADE,
    started_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at     timestamptz,
    action          text CHECK (action IN ('NO_DATA', 'FULL', 'DIFFERENTIAL', 'REINITIALIZE', 'SKIP')),
    status          text NOT NULL CHECK (status IN ('RUNNING', 'COMPLETED', 'FAILED', 'SKIPPED')),
    initiated_by    text NOT NULL CHECK (initiated_by IN ('SCHEDULER', 'MANUAL', 'INITIAL')),
    reason          text,
    rows_inserted   bigint NOT NULL DEFAULT 0,
    rows_deleted    bigint NOT NULL DEFAULT 0,
    changes_read    bigint NOT NULL DEFAULT 0,
    snapshot        pg_snapshot,
    data_timestamp  timestamptz,
    duration_ms     double precision,
    phases          jsonb NOT NULL DEFAULT '{}',
    error_code      text,
    error           text,
    CHECK ((status = 'RUNNING') = (finished_at IS NULL)),
    CHECK (status NOT IN ('COMPLETED', 'SKIPPED') OR action IS NOT NULL)
);
CREATE INDEX ON pgtrickle.pgt_refresh_history (pgt_id, refresh_id DESC);

CREATE VIEW pgtrickle.stream_tables_info AS
SELECT pgt_id, pgt_relid, pgt_schema, pgt_name, defining_query, schedule, refresh_mode, effective_mode, mode_reason,
       status, is_populated, needs_reinit, reinit_reason, data_timestamp, now() - data_timestamp AS staleness,
       last_refresh_at, consecutive_errors, last_error, created_at, updated_at
FROM pgtrickle.pgt_stream_tables;

CREATE VIEW pgtrickle.pgt_stream_table_sources AS
SELECT t.pgt_schema, t.pgt_name, d.source_schema, d.source_name, d.source_relid, d.columns_used, d.cdc_mode,
       u.pgt_id IS NOT NULL AS source_is_stream_table
FROM pgtrickle.pgt_dependencies AS d
JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)
LEFT JOIN pgtrickle.pgt_stream_tables AS u ON u.pgt_relid = d.source_relid;

CREATE VIEW pgtrickle.pg_stat_stream_tables AS
SELECT t.pgt_id, t.pgt_schema, t.pgt_name, t.status, t.refresh_mode, t.effective_mode, t.is_populated,
       t.data_timestamp, now() - t.data_timestamp AS staleness, t.schedule, t.consecutive_errors, t.last_error,
       h.total_refreshes, h.successful_refreshes, h.failed_refreshes, h.full_refreshes, h.differential_refreshes,
       h.rows_inserted, h.rows_deleted, h.changes_read, h.avg_duration_ms,
       l.action AS last_action, l.status AS last_status, l.reason AS last_reason, l.duration_ms AS last_duration_ms,
       c.cdc_modes, c.slot_name
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

CREATE FUNCTION pgtrickle.pgt_status()
RETURNS TABLE (name text, status text, refresh_mode text, effective_mode text, is_populated boolean,
               consecutive_errors integer, schedule text, data_timestamp timestamptz, staleness interval)
LANGUAGE sql STABLE AS $$
    SELECT pg_catalog.format('%I.%I', t.pgt_schema, t.pgt_name), t.status, t.refresh_mode, t.effective_mode, t.is_populated,
           t.consecutive_errors, t.schedule, t.data_timestamp, now() - t.data_timestamp
    FROM pgtrickle.pgt_stream_tables AS t ORDER BY t.pgt_schema, t.pgt_name
$$;

-- The id of a stream table named as in a query: with or without schema, quoted where needed.
CREATE FUNCTION pgtrickle.pgt_id_of(name text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_id bigint;
BEGIN
    SELECT t.pgt_id INTO found_id FROM pgtrickle.pgt_stream_tables AS t WHERE t.pgt_relid = to_regclass(name);
    IF found_id IS NULL THEN
        RAISE EXCEPTION 'there is no stream table %', name
            USING ERRCODE = 'undefined_table', HINT = 'SELECT * FROM pgtrickle.pgt_status() lists all stream tables.';
    END IF;
    RETURN found_id;
END
$$;

CREATE FUNCTION pgtrickle.get_refresh_history(name text, max_rows integer DEFAULT 20)
RETURNS SETOF pgtrickle.pgt_refresh_history
LANGUAGE sql STABLE AS $$
    SELECT h.* FROM pgtrickle.pgt_refresh_history AS h
    WHERE h.pgt_id = pgtrickle.pgt_id_of(name) ORDER BY h.refresh_id DESC LIMIT max_rows
$$;

-- Seconds between now and the snapshot the table shows; NULL before it is populated.
CREATE FUNCTION pgtrickle.get_staleness(name text) RETURNS double precision
LANGUAGE sql STABLE AS $$
    SELECT extract(epoch FROM now() - t.data_timestamp)::double precision
    FROM pgtrickle.pgt_stream_tables AS t WHERE t.pgt_id = pgtrickle.pgt_id_of(name)
$$;
