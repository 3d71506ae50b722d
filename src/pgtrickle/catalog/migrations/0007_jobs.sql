-- What the service ran, unit by unit: a table by itself, or the tables of a diamond that are committed together.

CREATE TABLE pgtrickle.pgt_scheduler_jobs (
    job_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tick         timestamptz NOT NULL,
    members      bigint[] NOT NULL,
    state        text NOT NULL DEFAULT 'RUNNING' CHECK (state IN ('RUNNING', 'DONE', 'FAILED', 'SKIPPED', 'ABANDONED')),
    actions      jsonb NOT NULL DEFAULT '{}',
    error        text,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at  timestamptz,
    CHECK ((state = 'RUNNING') = (finished_at IS NULL))
);
CREATE INDEX ON pgtrickle.pgt_scheduler_jobs (job_id) WHERE state = 'RUNNING';
COMMENT ON COLUMN pgtrickle.pgt_scheduler_jobs.tick IS
    'When the snapshot was taken that its base tables were read at: the data_timestamp of all tables of the tick.';
COMMENT ON COLUMN pgtrickle.pgt_scheduler_jobs.members IS
    'The ids of its stream tables, in the order in which they were refreshed.';
COMMENT ON COLUMN pgtrickle.pgt_scheduler_jobs.actions IS
    'What each member''s refresh did, by the name of the table. Tables with nothing to do have no job.';
COMMENT ON COLUMN pgtrickle.pgt_scheduler_jobs.error IS
    'Why it failed, or was skipped in this tick.';
