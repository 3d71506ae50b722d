-- Ticks: base tables are read at one snapshot for all, stream tables as they are once refreshed in the same tick.

ALTER TABLE pgtrickle.pgt_stream_tables ADD COLUMN upstream_frontier pg_snapshot;
COMMENT ON COLUMN pgtrickle.pgt_stream_tables.upstream_frontier IS
    'The frontier for those sources that are stream tables, where it is later than that of the others.';
