        INSERT INTO {buffer} (xid, lsn, action{old_columns})
        SELECT (SELECT pg_current_xact_id()), (SELECT pg_current_wal_insert_lsn()), 'D'{old_images}
        FROM (SELECT row_number() OVER () AS n{images} FROM {old_rows} AS r) AS o
        LEFT JOIN (SELECT row_number() OVER () AS n{images} FROM {new_rows} AS r) AS n ON n.n = o.n
        WHERE n.n IS NULL OR NOT (ROW({old_record})::record *= ROW({new_record})::record);
        INSERT INTO {buffer} (xid, lsn, action{new_columns})
        SELECT (SELECT pg_current_xact_id()), (SELECT pg_current_wal_insert_lsn()), 'I'{new_images}
        FROM (SELECT row_number() OVER () AS n{images} FROM {new_rows} AS r) AS n
        LEFT JOIN (SELECT row_number() OVER () AS n{images} FROM {old_rows} AS r) AS o ON n.n = o.n
        WHERE o.n IS NULL OR NOT (ROW({old_record})::record *= ROW({new_record})::record);
