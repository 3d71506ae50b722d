-- Locks that only roles with the catalog's rights can take: rows and tables of ours, where there were advisory locks.
-- Locking a row needs the right to UPDATE it, and any lock on a table but ACCESS SHARE needs more than SELECT.

-- A service of an older version knows nothing of the locks below: its lease ends here, and it ends by itself when it
-- finds a catalog that is newer than it.
SELECT pg_catalog.pg_terminate_backend(l.pid, 5000)
FROM pg_catalog.pg_locks AS l
JOIN pg_catalog.pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND a.datname = current_database()
  AND a.application_name = 'pgtrickle lease' AND (a.usename = current_user OR pg_has_role(a.usesysid, 'MEMBER'))
  AND (l.classid::bigint << 32) | l.objid::bigint = pg_catalog.hashtextextended('pgtrickle service', 0);

-- Who leads. `epoch` is in a key, so that who takes over waits for whatever the former leader is committing, and
-- nothing of it commits after that; the heartbeat changes no key, and waits for no one.
CREATE TABLE pgtrickle.pgt_leases (
    role_name      text NOT NULL,
    purpose        text NOT NULL DEFAULT 'service' CHECK (purpose IN ('service', 'capture')),
    epoch          bigint NOT NULL,
    instance       text,
    backend_pid    integer,
    backend_start  timestamptz,
    taken_at       timestamptz,
    heartbeat_at   timestamptz,
    obstacle       text,
    PRIMARY KEY (role_name, purpose),
    UNIQUE (role_name, purpose, epoch)
);
COMMENT ON TABLE pgtrickle.pgt_leases IS
    'Who leads: one service for each login role, and one that steers capture for the whole database (role_name '''').';
COMMENT ON COLUMN pgtrickle.pgt_leases.epoch IS
    'Counts the leaders. Whatever a leader commits holds this row by its epoch, and fails where another leads.';
COMMENT ON COLUMN pgtrickle.pgt_leases.instance IS 'The leading process, as in the application_name of its sessions.';
COMMENT ON COLUMN pgtrickle.pgt_leases.heartbeat_at IS
    'When the leader last said that it lives; NULL where it has given the lease up. Too long ago, and another leads.';
COMMENT ON COLUMN pgtrickle.pgt_leases.obstacle IS
    'What a leader found in its way when it took over: sessions of the one before that it may not end.';

-- Held while the stream table is refreshed or changed, by a row lock for as long as that takes.
CREATE TABLE pgtrickle.pgt_refresh_locks (
    pgt_id  bigint PRIMARY KEY REFERENCES pgtrickle.pgt_stream_tables ON DELETE CASCADE
);
INSERT INTO pgtrickle.pgt_refresh_locks SELECT t.pgt_id FROM pgtrickle.pgt_stream_tables AS t;

-- The other locks, by name: row locks.
CREATE TABLE pgtrickle.pgt_locks (
    name  text PRIMARY KEY
);

-- One maker or dropper of the replication slot at a time. Locked as a table: a transaction that has locked a row has
-- an id, and PostgreSQL makes no slot in one that has.
CREATE TABLE pgtrickle.pgt_slot_lock ();

-- The leases, with whether each is alive: not given up, its session there, its heartbeat recent.
CREATE VIEW pgtrickle.pgt_leaders AS
SELECT l.role_name, l.purpose, l.epoch, l.instance, l.backend_pid, l.taken_at, l.obstacle,
       clock_timestamp() - l.heartbeat_at AS heartbeat_age,
       l.heartbeat_at IS NOT NULL AND EXISTS (
           SELECT FROM pg_catalog.pg_stat_activity AS a
           WHERE a.pid = l.backend_pid AND coalesce(a.backend_start = l.backend_start, true)
       ) AS connected,
       coalesce(l.heartbeat_at > clock_timestamp()
           - pgtrickle.setting('lease_timeout_ms', '15000')::double precision * interval '1 ms', false) AS beats
FROM pgtrickle.pgt_leases AS l;
COMMENT ON COLUMN pgtrickle.pgt_leaders.connected IS
    'Whether its session is there. Of another role''s session only the pid can be seen.';

-- The session of a service that leads in this database. NULL: none does.
CREATE OR REPLACE FUNCTION pgtrickle.service_pid() RETURNS integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.backend_pid FROM pgtrickle.pgt_leaders AS l
    WHERE l.purpose = 'service' AND l.connected AND l.beats ORDER BY l.taken_at LIMIT 1
$$;

-- Who leads, since when, and how long ago it last said that it lives; NULL where no service does.
CREATE FUNCTION pgtrickle.who_leads() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT string_agg(
        pg_catalog.format('a service leads as %s, in session %s, since %s (heartbeat %s s ago)', l.role_name, l.backend_pid,
                          date_trunc('second', l.taken_at), round(extract(epoch FROM l.heartbeat_age)::numeric, 1)),
        '; ' ORDER BY l.taken_at)
    FROM pgtrickle.pgt_leaders AS l WHERE l.purpose = 'service' AND l.connected AND l.beats
$$;

-- What is wrong with who leads.
CREATE FUNCTION pgtrickle.lease_problems() RETURNS TABLE (severity text, detail text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT 'ERROR', 'no service runs in this database: pgtrickle run'
    WHERE EXISTS (SELECT FROM pgtrickle.pgt_stream_tables)
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

-- One row for each check that is passed, and one for each problem where it is not. Severity OK, WARN or ERROR.
-- Settings are those of the database or role. A cron schedule says nothing about how old data may be.
CREATE OR REPLACE FUNCTION pgtrickle.health_check()
RETURNS TABLE (check_name text, severity text, detail text)
LANGUAGE sql STABLE AS $$
    WITH streams AS (
        SELECT t.*, pg_catalog.format('%I.%I', t.pgt_schema, t.pgt_name) AS name, now() - t.data_timestamp AS age,
               CASE WHEN lower(t.schedule) ~ '^(\d+d)?(\d+h)?(\d+m)?(\d+s)?$' THEN lower(t.schedule)::interval END
               AS period
        FROM pgtrickle.pgt_stream_tables AS t
    ), problems(check_name, severity, detail) AS (
        SELECT 'service', l.severity, l.detail FROM pgtrickle.lease_problems() AS l
        UNION ALL
        SELECT 'service', 'WARN', 'refreshes are paused: pg_trickle.enabled is off'
        WHERE lower(pgtrickle.setting('enabled', 'on')) IN ('false', 'off', 'no', '0', 'f', 'n')
        UNION ALL
        SELECT 'stream_tables', CASE WHEN s.last_error IS NULL THEN 'WARN' ELSE 'ERROR' END,
               pg_catalog.format('%s is in state %s', s.name, s.status) || coalesce(': ' || s.last_error, '')
        FROM streams AS s WHERE s.status IN ('ERROR', 'SUSPENDED') OR s.consecutive_errors > 0
        UNION ALL
        SELECT 'staleness', 'ERROR', pg_catalog.format('%s is %s old, and should be refreshed every %s', s.name,
                                            date_trunc('second', s.age), s.schedule)
        FROM streams AS s
        WHERE s.is_populated AND s.status <> 'SUSPENDED' AND s.age > 2 * s.period + interval '10 s'
        UNION ALL
        SELECT 'reinitialization', 'WARN', pg_catalog.format('%s will be computed anew: %s', s.name, s.reinit_reason)
        FROM streams AS s WHERE s.needs_reinit
        UNION ALL
        SELECT 'capture', CASE WHEN h.alert = 'slot_lag_warning' THEN 'WARN' ELSE 'ERROR' END,
               pg_catalog.format('%s (%s): %s', h.source_table, h.cdc_mode, h.alert)
        FROM pgtrickle.check_cdc_health() AS h WHERE h.alert IS NOT NULL
        UNION ALL
        SELECT 'slot', 'WARN', pg_catalog.format('%s holds back %s of WAL, and no source counts on it: a service drops it',
                                      h.slot_name, pg_size_pretty(h.retained_wal_bytes))
        FROM pgtrickle.slot_health() AS h WHERE h.sources = 0
        UNION ALL
        SELECT 'buffers', 'WARN', format('about %s changes of %s wait to be applied', b.waiting, b.source)
        FROM (
            SELECT pg_stat_get_live_tuples(to_regclass(k.buffer_name)) AS waiting, k.source_relid::regclass AS source
            FROM pgtrickle.pgt_change_tracking AS k
        ) AS b
        WHERE b.waiting > pgtrickle.setting('buffer_growth_warning_rows', '1000000')::bigint
    )
    SELECT c.name, coalesce(p.severity, 'OK'), coalesce(p.detail, c.passed)
    FROM (VALUES
        (1, 'service', coalesce(pgtrickle.who_leads(), 'there are no stream tables to serve')),
        (2, 'stream_tables', 'none has failed'),
        (3, 'staleness', 'all are as fresh as their schedules ask for'),
        (4, 'reinitialization', 'none has to be computed anew'),
        (5, 'capture', 'all sources are captured'),
        (6, 'slot', 'no replication slot is held for nothing'),
        (7, 'buffers', 'none is full of changes')
    ) AS c(place, name, passed)
    LEFT JOIN problems AS p ON p.check_name = c.name
    ORDER BY c.place, p.detail
$$;
