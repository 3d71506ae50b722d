EXCEPTION
    WHEN program_limit_exceeded THEN
        INSERT INTO {buffer} (xid, lsn, action) VALUES (pg_current_xact_id(), pg_current_wal_insert_lsn(), 'T');
        RETURN NULL;
