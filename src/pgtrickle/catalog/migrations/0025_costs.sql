-- What refreshes were expected to take and what they took: a choice that learns, and shows it.

CREATE TABLE pgtrickle.pgt_refresh_costs (
    pgt_id        bigint PRIMARY KEY REFERENCES pgtrickle.pgt_stream_tables ON DELETE CASCADE,
    ways          jsonb NOT NULL,
    since_try_ms  double precision NOT NULL
);
COMMENT ON TABLE pgtrickle.pgt_refresh_costs IS
    'What the last refreshes of each stream table took, by the way they took, against what statistics alone tell.';
COMMENT ON COLUMN pgtrickle.pgt_refresh_costs.ways IS
    'By way and number of digits of the changes: the last ratios of the time taken to the time that statistics tell.';
COMMENT ON COLUMN pgtrickle.pgt_refresh_costs.since_try_ms IS
    'Time that refreshes took since another way than the cheapest was tried.';

ALTER TABLE pgtrickle.pgt_refresh_history ADD COLUMN way text, ADD COLUMN expected jsonb, ADD COLUMN took_ms double precision;
COMMENT ON COLUMN pgtrickle.pgt_refresh_history.way IS
    'By changes or in full, on Spark or by PostgreSQL alone.';
COMMENT ON COLUMN pgtrickle.pgt_refresh_history.expected IS
    'In mode AUTO: the milliseconds that were expected of each way there was.';
COMMENT ON COLUMN pgtrickle.pgt_refresh_history.took_ms IS
    'The time of its work, to hold against what was expected: without waiting, deciding and starting Spark.';
