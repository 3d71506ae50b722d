-- What a refresh costs the server, which `spare_source` is to spare.

ALTER TABLE pgtrickle.pgt_refresh_history ADD COLUMN server_cpu_ms double precision;
COMMENT ON COLUMN pgtrickle.pgt_refresh_history.server_cpu_ms IS
    'Milliseconds of CPU that PostgreSQL spent on the work, by tasks of Spark too, but without parallel workers. NULL where nobody tells: from another machine only logins that may read files there are told.';
