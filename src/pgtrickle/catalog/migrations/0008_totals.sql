-- Totals that only grow: the history is pruned, what it has told of each stream table is kept in sums. The statistics view
-- reads them from 0012 on.

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
