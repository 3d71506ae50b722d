-- Calls with words between their operands, and rows as a whole; one a paragraph.

SELECT TRIM(TRAILING FROM name) AS a, TRIM(LEADING 'a' FROM name) AS b, TRIM(name) AS c, SUBSTRING(name FROM '.') AS d,
 SUBSTRING(name SIMILAR 'a#"_#"%' ESCAPE '#') AS e, NORMALIZE(name, NFD) AS f, name IS NFC NORMALIZED AS g FROM customers

SELECT TRIM(BOTH FROM name) AS n, count(*) AS c FROM customers GROUP BY TRIM(BOTH FROM name) HAVING TRIM(BOTH FROM name) > 'b'

SELECT c.id, r.a, r.b, r.o FROM customers c, ROWS FROM (generate_series(1, c.id), unnest(ARRAY[c.name])) WITH ORDINALITY AS r(a, b, o)

SELECT r.a, r.b FROM ROWS FROM (generate_series(1, 2), json_to_record('{"b": 7}') AS (b int)) AS r(a, b), customers

SELECT region, public.middle(0.5) WITHIN GROUP (ORDER BY credit) FILTER (WHERE id > 0) AS m FROM customers GROUP BY region

SELECT id, (SELECT max(TRIM(BOTH c.name FROM o.note)) FROM orders o WHERE o.customer = c.id) AS m FROM customers c

SELECT id, B'101'::varbit(3) || B'1' AS b, note::interval second(1) AS i, ARRAY[note]::bit varying(2)[] AS v FROM orders WHERE note = 'x'

SELECT to_jsonb(c) AS j, c::text AS t, c AS r FROM customers c

SELECT o.id, count(c) AS n, count(*) AS m FROM orders o LEFT JOIN customers c ON c.id = o.customer GROUP BY o.id

SELECT o.id, c IS NULL AS missing, to_jsonb(c) AS j, row_to_json(o) AS k FROM orders o FULL JOIN customers c ON c.id = o.customer

SELECT region, json_agg(s) AS a, jsonb_agg(s ORDER BY s.id) AS b FROM (SELECT id, name AS "Name", region FROM customers WHERE id = 1) s GROUP BY region

SELECT o.id, to_jsonb(s) AS j, s IS NULL AS missing FROM orders o LEFT JOIN (SELECT id AS i, upper(name) FROM customers) s ON s.i = o.customer

SELECT o.id, to_jsonb(s) AS j FROM orders o LEFT JOIN LATERAL (SELECT c.id, o.note FROM customers c WHERE c.id = o.customer) s (a, b) ON true

WITH w (r, n) AS (SELECT region, count(*) FROM customers GROUP BY region) SELECT c.id, to_jsonb(w) AS j, (SELECT count(v) FROM w v) AS n FROM customers c LEFT JOIN w ON w.r = c.region

SELECT n.who, to_jsonb(n) AS j, to_jsonb(t) AS t FROM north n JOIN totals t (a, b) ON t.a = n.id

SELECT id, (SELECT jsonb_agg(o ORDER BY o.id) FROM orders o WHERE o.customer = c.id AND to_jsonb(c) ? 'name') AS v FROM customers c

SELECT q.j FROM (SELECT c AS r FROM customers c) p, LATERAL (SELECT (p.r).name AS j) q

SELECT a.id FROM customers a JOIN customers b ON a IS NOT DISTINCT FROM b

SELECT id, credit::numeric(6, -2) AS hundreds, sum(credit::numeric(6,-2)) AS s FROM customers GROUP BY ROLLUP (id, credit::numeric(6, -2), credit)

SELECT c.id, JSON_ARRAY(SELECT o.id FROM orders o WHERE o.customer = c.id ORDER BY o.placed DESC NULLS LAST, o.id RETURNING jsonb) AS a, (SELECT json_agg(q) FROM (SELECT o.id, o.note FROM orders o WHERE o.customer = c.id ORDER BY o.id DESC) q) AS b FROM customers c

WITH w (i, n) AS (SELECT id, name FROM customers ORDER BY id DESC LIMIT 2) SELECT jsonb_agg(w) AS a, string_agg(w.n, ',') FILTER (WHERE w.i > 1) AS b, max(w.i) AS c, count(*) AS d FROM w

SELECT string_agg(q.t, '; ') AS t FROM (SELECT region || ': ' || count(*) AS t FROM customers GROUP BY region ORDER BY count(*), region DESC) q

WITH w (x) AS (VALUES ((SELECT max(id) FROM orders)), (2) ORDER BY 1) SELECT array_agg(w.x) FROM w
