-- The same, of PostgreSQL 17 and later.

SELECT id, JSON_VALUE(doc, '$.a' RETURNING int DEFAULT 7 ON EMPTY) AS v, doc IS JSON OBJECT AS o FROM notes WHERE NOT JSON_EXISTS(doc, '$.b')

SELECT id, JSON_ARRAYAGG(body ORDER BY body NULL ON NULL) AS b, JSON_OBJECTAGG(coalesce(body, '') : doc) AS o FROM notes GROUP BY id

SELECT n.id, k.* FROM notes n LEFT JOIN LATERAL JSON_TABLE(n.doc, '$.b[*]' COLUMNS (p FOR ORDINALITY, v int PATH '$')) AS k ON k.p < n.id

SELECT k.v, c.name FROM JSON_TABLE('[1, 2]'::jsonb, '$[*]' COLUMNS (v int PATH '$')) AS k JOIN customers c ON c.id = k.v

SELECT id, (SELECT JSON_ARRAYAGG(o.id ORDER BY o.id) FROM orders o WHERE o.customer = c.id) AS v, JSON_ARRAY(SELECT o.id FROM orders o
 WHERE o.customer = c.id ORDER BY o.id) AS w FROM customers c

SELECT n.id, JSON_OBJECT('a' : n.body, 'b' : JSON_QUERY(n.doc, '$.b' WITH WRAPPER)) AS o FROM notes n
