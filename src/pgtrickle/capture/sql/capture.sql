#variable_conflict use_column
BEGIN
    IF TG_OP = 'TRUNCATE' OR NOT ({intact}) THEN
        INSERT INTO {buffer} (xid, lsn, action) VALUES (pg_current_xact_id(), pg_current_wal_insert_lsn(), 'T');
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO {buffer} (xid, lsn, action{new_columns})
        SELECT (SELECT pg_current_xact_id()), (SELECT pg_current_wal_insert_lsn()), 'I'{values} FROM {new_rows} AS r;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO {buffer} (xid, lsn, action{old_columns})
        SELECT (SELECT pg_current_xact_id()), (SELECT pg_current_wal_insert_lsn()), 'D'{values} FROM {old_rows} AS r;
    ELSE
{update}    END IF;
    RETURN NULL;
{if_too_large}END
