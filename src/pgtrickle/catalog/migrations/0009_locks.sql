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
