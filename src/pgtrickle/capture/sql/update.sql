        INSERT INTO {buffer} (xid, lsn, action{new_columns}{old_columns})
        SELECT (SELECT pg_current_xact_id()), (SELECT pg_current_wal_insert_lsn()),
               CASE WHEN o.n IS NULL THEN 'I' WHEN n.n IS NULL THEN 'D' ELSE 'U' END::"char"{new_images}{old_images}
        FROM (SELECT row_number() OVER () AS n{images} FROM {old_rows} AS r) AS o
        FULL JOIN (SELECT row_number() OVER () AS n{images} FROM {new_rows} AS r) AS n ON n.n = o.n
        WHERE o.n IS NULL OR n.n IS NULL OR NOT (ROW({old_record})::record *= ROW({new_record})::record);
