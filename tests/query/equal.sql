-- Queries whose tree must give what PostgreSQL gives; one a paragraph.

SELECT * FROM items

SELECT id, name || '!' AS loud, credit * 2 AS twice, credit FROM customers WHERE credit > 0 OR name IS NULL

SELECT name AS a, name AS b FROM customers

SELECT c.name, o.note FROM customers c JOIN orders o ON o.customer = c.id

SELECT c.name, o.note, i.amount FROM items i, orders o, customers c WHERE i.order_id = o.id AND c.id = o.customer

SELECT name, product FROM customers, items WHERE id > amount

SELECT c.name, d.name AS other FROM customers c CROSS JOIN customers d

SELECT a.id, b.id AS next FROM orders a JOIN orders b ON a.customer = b.customer AND a.id < b.id

SELECT * FROM customers NATURAL JOIN orders

SELECT id, body FROM orders JOIN notes USING (id)

SELECT j.id, j.name, j.doc FROM (customers JOIN notes USING (id)) AS j

SELECT j.x, j.y FROM (customers c JOIN orders o ON c.id = o.customer) AS j (x, y)

SELECT id, n FROM customers JOIN (SELECT region, count(*) AS n FROM customers GROUP BY region) r USING (region)

SELECT v.x FROM (SELECT region AS r FROM customers) a JOIN (SELECT name::varchar(5) AS x, region::varchar(7) AS r FROM
customers) v USING (r)

SELECT count(*) FROM customers

SELECT count(*), sum(amount), avg(amount), min(product), max(unit) FROM items WHERE false

SELECT product, count(*), count(amount) AS n, sum(amount), avg(unit), min(amount), max(weight) FROM items GROUP BY product

SELECT region FROM customers GROUP BY region

SELECT date_trunc('month', placed) AS month, count(*) FROM orders GROUP BY 1

SELECT upper(product) || '-' || count(*) AS u FROM items GROUP BY upper(product)

SELECT product, sum(amount) / nullif(count(*), 0) AS q, coalesce(sum(amount), 0) AS s FROM items GROUP BY product

SELECT product, sum(amount) AS s FROM items GROUP BY product HAVING count(*) > 1 AND max(unit) > 1

SELECT count(*) FILTER (WHERE amount > 1) AS a, sum(unit) FILTER (WHERE product = 'pen') AS b, array_agg(amount ORDER
BY amount) FILTER (WHERE amount > 1) AS c FROM items

SELECT 1 AS one FROM items HAVING count(*) > 3

SELECT 'k' AS k, 7 AS seven, count(*) FROM orders GROUP BY 1, 2

SELECT product, string_agg(DISTINCT amount::text, ',' ORDER BY amount::text) AS s, count(DISTINCT unit) FROM items
GROUP BY product

SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY amount) AS median, mode() WITHIN GROUP (ORDER BY product) AS m,
corr(amount, unit) AS c, stddev(amount) AS d, bool_and(amount > 0) AS e, product(amount) AS p FROM items

SELECT c.id, c.name, c.credit, c.mood, count(*) FROM customers c JOIN orders o ON o.customer = c.id GROUP BY c.id

SELECT c.name, sum(i.amount * i.unit) AS total FROM customers c JOIN orders o ON o.customer = c.id JOIN items i ON
i.order_id = o.id GROUP BY c.name

SELECT x.total, count(*) FROM (SELECT order_id, sum(amount) AS total FROM items GROUP BY order_id) x GROUP BY x.total

SELECT who, twice FROM north

SELECT * FROM rich

SELECT t.total, n.who FROM totals t, north n WHERE n.id = t.customer AND t.total > 1

SELECT id FROM customers UNION ALL SELECT customer FROM orders UNION ALL SELECT amount FROM items

SELECT credit AS x, name::varchar(3) AS y FROM customers UNION ALL SELECT id, note FROM orders UNION ALL SELECT unit,
code FROM items, orders

SELECT u.k, count(*) FROM (SELECT region AS k FROM customers UNION ALL SELECT code FROM orders) u WHERE u.k > 'a'
GROUP BY u.k

(SELECT 1 AS a FROM orders) UNION ALL (SELECT 2.5 FROM items) ORDER BY 1

WITH w AS (SELECT customer, count(*) AS n FROM orders GROUP BY customer) SELECT a.n, b.customer FROM w a, w b WHERE
a.customer = b.customer

WITH w (k) AS (SELECT id FROM customers), v AS (SELECT k + 1 AS l FROM w) SELECT l, k FROM v, w ORDER BY l DESC

SELECT region IN ('north', 'x') AS a, note LIKE 'a%' AS b, note !~ 'b' AS c, placed AT TIME ZONE 'UTC' AS d,
extract(year FROM placed) AS e, 2 ^ c.id AS f, substring(note FROM 1 FOR 1) AS g, (c.id = 1) IS NOT UNKNOWN AS h, CASE
c.mood WHEN 'sad' THEN 1 ELSE 2 END AS i, code = 'x' AS j, credit::numeric(12, 4) AS k, trim(name) AS l, (c.id > 1) IS
NOT TRUE AS m, 'it''s' AS n, E'a\nb' AS o, placed + interval '1 day' AS p, o.id % 2 AS q FROM customers c, orders o

SELECT doc -> 'a' AS a, doc ->> 'a' AS b, doc @> '{"a": 1}' AS c, tags[1] AS d, tags[1:2] AS e, 'b' = ANY (tags) AS f,
tags && ARRAY['a'] AS g, body, doc #>> '{b,0}' AS h, doc ? 'a' AS i, cardinality(tags) AS j FROM notes, items

SELECT c.id FROM customers c WHERE c.id = ANY (ARRAY[1, 2]) AND c.mood > 'sad' AND c.region IS DISTINCT FROM 'south'

SELECT "Big Name", "q""x" FROM (SELECT id AS "Big Name", name AS "q""x" FROM customers) AS "Odd Alias"

SELECT count(*) AS n, max(x) FROM (SELECT 1 AS x FROM items UNION ALL SELECT id FROM orders) s

SELECT id FROM customers WHERE id = 1 AND false

SELECT plus_one(sum(amount)::int) AS p FROM items GROUP BY order_id

SELECT c.id, c.name, o.note FROM customers c LEFT JOIN orders o ON o.customer = c.id

SELECT c.id, o.note FROM customers c RIGHT JOIN orders o ON o.customer = c.id AND c.region = 'north'

SELECT c.id, o.id AS oid, c.name, o.note FROM customers c FULL JOIN orders o ON o.customer = c.id

SELECT c.id, o.note, i.product FROM customers c LEFT JOIN (orders o JOIN items i ON i.order_id = o.id) ON o.customer = c.id

SELECT * FROM customers FULL JOIN orders USING (id)

SELECT * FROM customers LEFT JOIN notes USING (id)

SELECT * FROM customers RIGHT JOIN notes USING (id)

SELECT id, body, placed FROM notes FULL JOIN orders USING (id) WHERE body IS NOT NULL OR id > 2

SELECT c.id, count(o.id), sum(i.amount), min(o.note) FROM customers c LEFT JOIN orders o ON o.customer = c.id
LEFT JOIN items i ON i.order_id = o.id AND i.amount > 1 GROUP BY c.id

SELECT c.name, o.note FROM customers c LEFT JOIN orders o ON o.customer > c.id WHERE c.credit IS NOT NULL AND o.note IS NULL

SELECT c.id FROM customers c LEFT JOIN orders o ON o.customer = c.id AND o.note = 'a' WHERE o.id IS NULL

SELECT id FROM outer_view

SELECT id FROM customers c WHERE EXISTS (SELECT FROM orders o WHERE o.customer = c.id)

SELECT id FROM customers c WHERE NOT EXISTS (SELECT 1 FROM orders o JOIN items i ON i.order_id = o.id WHERE o.customer = c.id AND i.amount > c.id)

SELECT id FROM customers c WHERE EXISTS (SELECT FROM orders) AND NOT EXISTS (SELECT FROM items WHERE amount > 100)

SELECT id FROM customers WHERE id IN (SELECT customer FROM orders WHERE note IS NOT NULL)

SELECT id FROM customers WHERE id NOT IN (SELECT customer FROM orders)

SELECT id FROM customers WHERE id NOT IN (SELECT customer FROM orders WHERE customer IS NOT NULL)

SELECT product FROM items i WHERE order_id NOT IN (SELECT o.id FROM orders o WHERE o.note = i.product)

SELECT product FROM items WHERE (order_id, amount) IN (SELECT id, customer + 1 FROM orders)

SELECT product FROM items WHERE (order_id, amount) NOT IN (SELECT id, customer FROM orders WHERE id > 3)

SELECT product FROM items WHERE amount > ALL (SELECT customer FROM orders WHERE id < 3)

SELECT product FROM items WHERE amount > ANY (SELECT customer FROM orders) AND NOT (amount <= ALL (SELECT id FROM orders))

SELECT product FROM items WHERE amount <> ALL (SELECT customer FROM orders)

SELECT product FROM items WHERE unit IN (SELECT credit FROM customers) OR amount IS NULL

SELECT id, EXISTS (SELECT FROM orders o WHERE o.customer = c.id) AS ordered, id IN (SELECT customer FROM orders) AS known,
id > ALL (SELECT customer FROM orders WHERE note IS NOT NULL) AS above FROM customers c

SELECT id FROM customers c WHERE NOT (region = 'south' OR EXISTS (SELECT FROM orders o WHERE o.customer = c.id))

SELECT id FROM customers c WHERE name = 'bob' OR EXISTS (SELECT FROM orders o WHERE o.customer = c.id AND o.note = 'a')

SELECT id, (SELECT max(amount) FROM items) AS m FROM customers

SELECT id, (SELECT count(*) FROM orders o WHERE o.customer = c.id) AS n, (SELECT 0.5 * sum(i.amount) + c.id FROM orders o
JOIN items i ON i.order_id = o.id WHERE o.customer = c.id AND i.product <> 'ink') AS s FROM customers c

SELECT id FROM customers c WHERE credit >= (SELECT avg(d.credit) FROM customers d WHERE d.region = c.region)

SELECT id, (SELECT o.note FROM orders o WHERE o.id = c.id) AS note FROM customers c

SELECT id FROM customers WHERE id = (SELECT id FROM orders WHERE note = 'b')

SELECT product, sum(amount) FROM items GROUP BY product HAVING sum(amount) > (SELECT avg(amount) FROM items)

SELECT region, (SELECT count(*) FROM orders o WHERE o.note = c.region) AS n, count(*) FROM customers c GROUP BY region
HAVING EXISTS (SELECT FROM orders WHERE note = 'a') OR c.region IS NULL

SELECT id FROM customers WHERE id IN (SELECT customer FROM orders GROUP BY customer HAVING count(*) > 1)

SELECT id FROM customers c WHERE id IN (SELECT o.customer FROM orders o WHERE o.id IN (SELECT i.order_id FROM items i WHERE
i.amount > (SELECT 0.5 * avg(j.amount) FROM items j WHERE j.product = i.product)))

SELECT DISTINCT region, credit FROM customers

SELECT DISTINCT region, count(*) FROM customers GROUP BY region, name

SELECT region FROM customers UNION SELECT note FROM orders

SELECT id FROM customers UNION SELECT id FROM notes UNION SELECT amount FROM items

SELECT id FROM customers UNION ALL (SELECT id FROM notes UNION SELECT amount FROM items)

SELECT amount FROM items INTERSECT SELECT id FROM notes

SELECT amount FROM items INTERSECT ALL SELECT id FROM orders

SELECT amount, product FROM items EXCEPT SELECT id, body FROM notes

SELECT product FROM items EXCEPT ALL SELECT note FROM orders

SELECT amount FROM items EXCEPT ALL (SELECT id FROM orders INTERSECT SELECT customer FROM orders)

WITH big AS (SELECT id, credit FROM customers WHERE credit > 0) SELECT a.id, b.id AS other FROM big a LEFT JOIN big b ON a.credit = b.credit

SELECT s.id, s.n FROM (SELECT c.id, count(o.id) AS n FROM customers c LEFT JOIN orders o ON o.customer = c.id GROUP BY c.id) s
WHERE s.n > (SELECT count(*) FROM notes) - 4

SELECT region, mood, count(*), sum(credit), GROUPING(region, mood) AS g FROM customers GROUP BY ROLLUP (region, mood)

SELECT region, upper(name) AS u, count(*) FROM customers GROUP BY GROUPING SETS ((region, upper(name)), (region), (), ()) HAVING count(*) > 1

SELECT region, mood, name, count(*), max(region) AS m FROM customers GROUP BY region, CUBE (mood, (name, id))

SELECT DISTINCT region, count(*) FROM customers GROUP BY CUBE (region, mood)

SELECT DISTINCT ON (customer) customer, placed, note FROM orders ORDER BY customer, placed DESC NULLS LAST, id

SELECT DISTINCT ON (region, mood) name, credit FROM customers ORDER BY region, mood, id DESC

SELECT DISTINCT ON (region) region, count(*) AS n, name FROM customers GROUP BY region, name ORDER BY region, count(*) DESC, name DESC

SELECT id, body, placed FROM notes LEFT JOIN orders USING (id) ORDER BY id, body, placed LIMIT 2 OFFSET 1

SELECT product, sum(amount) AS n FROM items GROUP BY product ORDER BY sum(amount) DESC NULLS LAST, product LIMIT 2

SELECT DISTINCT region FROM customers ORDER BY region DESC LIMIT 1

(SELECT id FROM customers UNION SELECT amount FROM items) ORDER BY 1 DESC LIMIT 3

SELECT i.product, u.tag, u.n FROM items i, unnest(i.tags) WITH ORDINALITY AS u (tag, n)

SELECT i.product, u.tag FROM items i LEFT JOIN LATERAL unnest(i.tags) AS u (tag) ON true WHERE i.amount > 1

SELECT o.id, g.g FROM orders o CROSS JOIN LATERAL generate_series(1, o.customer) g WHERE g.g <> o.id

SELECT n.id, e.key, e.value FROM notes n, jsonb_each(n.doc) e

SELECT o.id, v.a, v.b FROM orders o JOIN (VALUES (1, 'x'), (2, NULL)) v (a, b) ON v.a = o.id

SELECT id FROM orders UNION ALL VALUES (7), (8)

SELECT o.id, g FROM orders o JOIN generate_series(1, 3) g ON g = o.id

SELECT c.id, x.note FROM customers c, LATERAL (SELECT o.note FROM orders o WHERE o.customer = c.id) x

SELECT c.id, x.note, x.both FROM customers c LEFT JOIN LATERAL (SELECT o.note, coalesce(o.note, '-') || c.name AS both
FROM orders o WHERE o.customer <= c.id) x ON true

SELECT c.id, x.n FROM customers c, LATERAL (SELECT c.id AS n FROM orders) x

SELECT c.id, x.note FROM customers c LEFT JOIN LATERAL (SELECT o.note, o.id FROM orders o WHERE o.customer = c.id) x
ON x.id > 1

SELECT c.id, x.id AS o, x.note, x.code, x.placed FROM customers c, LATERAL (SELECT o.id, o.note, o.code, o.placed FROM
orders o WHERE o.customer = c.id ORDER BY o.placed DESC, o.id LIMIT 1) x

SELECT c.id, x.product, x.unit FROM customers c LEFT JOIN LATERAL (SELECT i.product, i.unit FROM orders o JOIN items i
ON i.order_id = o.id WHERE o.customer = c.id ORDER BY i.unit, i.product LIMIT 2 OFFSET 1) x ON true

SELECT c.id, x.id AS o FROM customers c LEFT JOIN LATERAL (SELECT o.id FROM orders o WHERE o.customer > c.id ORDER BY
o.customer, o.id LIMIT 1) x ON x.id > 2

SELECT c.id, x.id AS o, x.d FROM customers c, LATERAL (SELECT o.id, o.id - c.credit AS d FROM orders o WHERE
o.customer = c.id ORDER BY abs(o.id - c.credit), o.id LIMIT 1) x

SELECT c.id, x.n, x.s FROM customers c, LATERAL (SELECT count(*) AS n, sum(o.id) + 1 AS s FROM orders o WHERE
o.customer = c.id) x WHERE x.n < 2

SELECT c.id, x.n, x.s FROM customers c LEFT JOIN LATERAL (SELECT count(*) + c.id AS n, sum(o.id * c.id) AS s FROM
orders o WHERE o.customer >= c.id) x ON true

SELECT c.id, x.code, x.n FROM customers c LEFT JOIN LATERAL (SELECT o.code, count(*) AS n FROM orders o WHERE
o.customer = c.id GROUP BY o.code HAVING count(*) < 3) x ON x.n > 0

SELECT c.id, x.code FROM customers c, LATERAL (SELECT DISTINCT o.code FROM orders o WHERE o.customer <> c.id) x

SELECT c.id, x.code, x.note FROM customers c, LATERAL (SELECT DISTINCT ON (o.code) o.code, o.note FROM orders o WHERE
o.customer >= c.id ORDER BY o.code, o.id) x

SELECT c.id, x.total FROM customers c CROSS JOIN LATERAL (SELECT c.credit * 2 AS total) x

SELECT c.id, v.k, v.v FROM customers c CROSS JOIN LATERAL (VALUES ('name', c.name), ('region', c.region)) v (k, v)

SELECT c.id, x.n FROM customers c, LATERAL (SELECT count(*) AS n FROM orders) x

SELECT c.id, (SELECT o.note FROM orders o WHERE o.customer = c.id ORDER BY o.id LIMIT 1) AS first_note FROM customers c

SELECT c.id, (SELECT sum(d.credit) FROM customers d WHERE d.credit < c.credit) AS poorer FROM customers c

SELECT c.id FROM customers c WHERE c.id > (SELECT count(*) FROM customers d WHERE d.credit >= c.credit)

SELECT c.id, (SELECT sum(o.id * c.id) FROM orders o WHERE o.customer = c.id) AS s FROM customers c

SELECT c.region, (SELECT count(*) FROM orders o WHERE o.code > c.region) AS n FROM customers c GROUP BY c.region

SELECT c.id, ARRAY(SELECT o.note FROM orders o WHERE o.customer = c.id ORDER BY o.id DESC) AS notes FROM customers c

SELECT c.id, ARRAY(SELECT o.id FROM orders o WHERE o.customer < c.id ORDER BY o.id) AS ids FROM customers c

SELECT ARRAY(SELECT product FROM items ORDER BY product) AS products FROM customers

SELECT order_id, unnest(tags) AS tag FROM items

SELECT DISTINCT order_id, unnest(tags) || '!' AS tag, generate_series(1, 3) AS n FROM items

SELECT max(id) AS last, generate_series(1, count(*)) AS n FROM orders GROUP BY customer

SELECT c.id, o.id AS o FROM customers c JOIN orders o ON o.customer = c.id AND EXISTS (SELECT FROM items i WHERE
i.order_id = o.id AND i.amount > c.id)

SELECT c.id, o.id AS o FROM customers c LEFT JOIN orders o ON o.customer = c.id AND o.id IN (SELECT order_id FROM items)

SELECT c.id, o.id AS o FROM customers c LEFT JOIN orders o ON o.customer = c.id AND c.id < (SELECT max(order_id) FROM
items i WHERE i.amount = c.id)

SELECT c.id, o.id AS o FROM customers c FULL JOIN orders o ON o.customer = c.id AND NOT EXISTS (SELECT FROM items i
WHERE i.order_id = o.id)

SELECT c.id FROM customers c WHERE EXISTS (SELECT FROM orders o WHERE o.customer = c.id GROUP BY o.code HAVING
count(*) > 1)

SELECT c.id FROM customers c WHERE c.id IN (SELECT o.id FROM orders o WHERE o.customer <= c.id ORDER BY o.id DESC LIMIT 2)

SELECT c.id FROM customers c WHERE EXISTS (SELECT FROM orders o WHERE o.customer = c.id AND c.id < (SELECT max(order_id)
FROM items))

SELECT c.id, x.note FROM customers c, LATERAL (SELECT o.note FROM orders o WHERE o.customer = c.id AND c.credit < (SELECT
sum(i.unit) FROM items i WHERE i.order_id = o.id) ORDER BY o.note LIMIT 1) x

SELECT id FROM notes WHERE body IN (SELECT unnest(tags) FROM items) OR id = 3

SELECT i.order_id, u.tag FROM items i CROSS JOIN LATERAL (SELECT unnest(i.tags) || '!' AS tag) u

SELECT c.id, (SELECT o.note FROM orders o WHERE o.customer = c.id AND o.code = c.name ORDER BY o.id LIMIT 1) AS n FROM
customers c

SELECT c.id, x.n FROM customers c JOIN LATERAL (SELECT o.id + c.id AS n, o.id FROM orders o WHERE o.customer = c.id) x ON
x.n > 2 AND x.id < 9

SELECT id, @ credit AS size, |/ abs(credit) AS root FROM customers WHERE name ^@ 'a' OR name ~>~ 'b'

SELECT region, mood, count(*) AS n FROM customers GROUP BY DISTINCT ROLLUP (region, mood), ROLLUP (region)

SELECT region, mood, count(*) AS n FROM customers GROUP BY ROLLUP (region, mood), ROLLUP (region)

SELECT region, mood, count(*) AS n FROM customers GROUP BY DISTINCT GROUPING SETS ((region, mood), (mood, region), (), ())

SELECT n.id, x.a, x."B b" FROM notes n, jsonb_to_record(n.doc) AS x(a numeric, "B b" text)

SELECT n.id, x.a FROM notes n LEFT JOIN jsonb_to_recordset(CASE WHEN n.doc ? 'a' THEN jsonb_build_array(n.doc, n.doc) END) AS x(a numeric(8, 1)) ON
x.a > 1

SELECT x.a, x.b FROM jsonb_to_recordset('[{"a": 1}, {"b": "x"}]') AS x(a int, b text)

SELECT make_interval(days => c.id, hours => 2) AS span FROM customers c

SELECT o.customer + 1 AS next, o.customer, (o.customer + 1) * 2 AS twice, count(*) AS n FROM orders o GROUP BY CUBE (o.customer + 1, o.customer)

SELECT count(*) AS n, c.region FROM customers c GROUP BY c.region ORDER BY c.region LIMIT 1

SELECT c.region, count(*) AS n FROM customers c GROUP BY c.region ORDER BY count(*) DESC, c.region FETCH FIRST 1 ROW WITH TIES

SELECT count(*) AS n, upper(c.region) AS u FROM customers c GROUP BY ROLLUP (upper(c.region)) ORDER BY upper(c.region) LIMIT 1

SELECT count(*) AS n, (SELECT max(o.note) FROM orders o WHERE o.customer = c.id) AS m FROM customers c GROUP BY 2 ORDER BY 2 LIMIT 1

SELECT o.id, x.n, x.product FROM orders o, LATERAL (SELECT count(*) AS n, i.product FROM items i WHERE i.order_id <= o.id GROUP BY i.product
ORDER BY i.product LIMIT 1) x

SELECT DISTINCT ON (c.region) count(*) AS n, c.region, c.mood FROM customers c GROUP BY c.region, c.mood ORDER BY c.region, c.mood

WITH w AS (SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer) SELECT count(*) AS n FROM w x, w y

WITH w AS (SELECT o.id, g.n FROM orders o JOIN (SELECT order_id, count(*) AS n FROM items GROUP BY order_id) g ON g.order_id = o.id) SELECT count(*) AS n FROM w x WHERE EXISTS (SELECT FROM w y)

WITH w AS (SELECT o.id FROM orders o CROSS JOIN customers c) SELECT w.id, (SELECT count(*) FROM w x, w y) AS n FROM w

WITH w AS NOT MATERIALIZED (SELECT o.id, x.v, x.q FROM orders o JOIN (SELECT order_id, amount AS v, 10 / amount AS q FROM items) x ON x.order_id = o.id) SELECT id, q FROM w WHERE v <> 0 UNION ALL SELECT id, v FROM w

SELECT region, mood, count(*) AS n FROM customers c JOIN orders o ON o.customer = c.id GROUP BY CUBE (region, mood)

WITH w AS (SELECT customer, count(*) AS n, max(id) AS m FROM orders GROUP BY customer) SELECT a.n, b.m FROM w a JOIN w b ON b.customer = a.customer WHERE a.n > 1
