-- Totals that only grow: the history is pruned, what it has told of each stream table is kept in sums.

CREATE TABLE pgtrickle.pgt_pruned_refreshes (
    pgt_id         bigint NOT NULL REFERENCES pgtrickle.pgt_stream_tables ON DELETE CASCADE,
    action         text NOT NULL,
    status         text NOT NULL,
    bucket         integer NOT NULL,
    refreshes      bigint NOT NULL,
    rows_inserted  numeric NOT NULL,
    rows_deleted   numeric NOT NULL,
    changes_read   numeric NOT NULL,
    seconds        double precision NOT NULL,
    PRIMARY KEY (pgt_id, action, status, bucket)
);
COMMENT ON TABLE pgtrickle.pgt_pruned_refreshes IS
    'Refreshes that have left the history, by what they did, how they ended and how long they took.';

-- The upper bounds, in seconds, of the buckets in which refreshes are counted; the last one has no bound.
CREATE FUNCTION pgtrickle.duration_bounds() RETURNS double precision[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY[0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800]::double precision[]
$$;

-- The bucket of a duration: the first whose bound it does not exceed, counted from 0.
CREATE FUNCTION pgtrickle.duration_bucket(milliseconds double precision) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
    SELECT pg_catalog.count(*)::integer FROM pg_catalog.unnest(pgtrickle.duration_bounds()) AS bound
    WHERE bound OPERATOR(pg_catalog.<) (coalesce(milliseconds, 0) OPERATOR(pg_catalog./) 1000)
$$;

CREATE VIEW pgtrickle.pgt_refresh_counts AS
SELECT c.pgt_id, c.action, c.status, c.bucket, sum(c.refreshes)::bigint AS refreshes, sum(c.rows_inserted) AS rows_inserted,
       sum(c.rows_deleted) AS rows_deleted, sum(c.changes_read) AS changes_read, sum(c.seconds) AS seconds
FROM (
    SELECT pgt_id, action, status, bucket, refreshes, rows_inserted, rows_deleted, changes_read, seconds
    FROM pgtrickle.pgt_pruned_refreshes
    UNION ALL
    SELECT pgt_id, coalesce(action, ''), status, pgtrickle.duration_bucket(duration_ms), 1, rows_inserted, rows_deleted,
           changes_read, coalesce(duration_ms, 0) / 1000
    FROM pgtrickle.pgt_refresh_history
) AS c
GROUP BY c.pgt_id, c.action, c.status, c.bucket;
COMMENT ON VIEW pgtrickle.pgt_refresh_counts IS
    'All refreshes of each stream table since it was created, in sums; RUNNING ones are counted too.';

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
    SELECT coalesce(sum(refreshes), 0)::bigint AS total_refreshes,
           coalesce(sum(refreshes) FILTER (WHERE status = 'COMPLETED'), 0)::bigint AS successful_refreshes,
           coalesce(sum(refreshes) FILTER (WHERE status = 'FAILED'), 0)::bigint AS failed_refreshes,
           coalesce(sum(refreshes) FILTER (WHERE status = 'COMPLETED' AND action IN ('FULL', 'REINITIALIZE')), 0)::bigint
               AS full_refreshes,
           coalesce(sum(refreshes) FILTER (WHERE status = 'COMPLETED' AND action = 'DIFFERENTIAL'), 0)::bigint
               AS differential_refreshes,
           coalesce(sum(rows_inserted), 0) AS rows_inserted,
           coalesce(sum(rows_deleted), 0) AS rows_deleted,
           coalesce(sum(changes_read), 0) AS changes_read,
           1000 * sum(seconds) FILTER (WHERE status = 'COMPLETED')
               / nullif(sum(refreshes) FILTER (WHERE status = 'COMPLETED'), 0)::double precision AS avg_duration_ms
    FROM pgtrickle.pgt_refresh_counts WHERE pgt_id = t.pgt_id
) AS h
CROSS JOIN LATERAL (
    SELECT array_agg(DISTINCT cdc_mode) AS cdc_modes, min(slot_name) AS slot_name
    FROM pgtrickle.pgt_dependencies WHERE pgt_id = t.pgt_id
) AS c
LEFT JOIN LATERAL (
    SELECT action, status, reason, duration_ms FROM pgtrickle.pgt_refresh_history
    WHERE pgt_id = t.pgt_id AND status <> 'RUNNING' ORDER BY refresh_id DESC LIMIT 1
) AS l ON true;
