-- Subqueries that read the query around them in ways that only its values, one by one, can answer. As in equal.sql.

SELECT c.id FROM customers c WHERE EXISTS (SELECT FROM orders o WHERE o.customer = c.id UNION ALL SELECT FROM items i
WHERE i.amount = c.id)

SELECT c.id FROM customers c WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.id INTERSECT SELECT 1 FROM
items i WHERE i.amount = c.id)

SELECT c.id, c.region FROM customers c WHERE c.region IN (SELECT o.code FROM orders o WHERE o.customer > c.id EXCEPT
SELECT i.product FROM items i WHERE i.amount < c.id)

SELECT c.id, x.v FROM customers c, LATERAL (SELECT o.note AS v FROM orders o WHERE o.customer = c.id UNION SELECT i.product
FROM items i WHERE i.amount = c.id) x

SELECT c.id, x.v FROM customers c LEFT JOIN LATERAL (SELECT o.note AS v FROM orders o WHERE o.customer = c.id UNION ALL
SELECT i.product FROM items i WHERE i.amount > c.credit) x ON x.v <> 'pen'

SELECT c.id, x.v, x.n FROM customers c CROSS JOIN LATERAL ((SELECT o.id AS v, o.note AS n FROM orders o WHERE o.customer =
c.id UNION ALL SELECT i.amount, i.product FROM items i WHERE i.amount > c.id) ORDER BY 1 DESC, 2 LIMIT 2) x

SELECT c.id, x.v FROM customers c, LATERAL (SELECT o.code::text AS v FROM orders o WHERE o.customer = c.id EXCEPT ALL
SELECT c.name) x

SELECT c.id, (SELECT o.id FROM orders o WHERE o.id = c.id UNION SELECT c.id) AS one FROM customers c

SELECT c.id, x.v FROM customers c, LATERAL (SELECT c.region AS v UNION SELECT c.name) x

SELECT c.id, x.v FROM customers c LEFT JOIN LATERAL (VALUES (c.region), (c.name)) x (v) ON x.v > 'b'

SELECT c.id, x.v FROM customers c LEFT JOIN LATERAL (SELECT c.credit + 1 AS v WHERE c.region IS NULL) x ON x.v > 0 OR
c.id = 2

SELECT c.id FROM customers c WHERE EXISTS (SELECT FROM orders o WHERE o.customer = c.id AND EXISTS (SELECT FROM items i
WHERE i.order_id = o.id AND i.amount > c.id))

SELECT c.id FROM customers c WHERE NOT EXISTS (SELECT FROM orders o WHERE o.note = 'a' AND NOT EXISTS (SELECT FROM items i
WHERE i.order_id = o.id AND i.unit IS DISTINCT FROM c.credit))

SELECT c.id, (SELECT count(*) FROM orders o WHERE o.customer = c.id AND o.id IN (SELECT i.order_id FROM items i WHERE
i.amount >= c.id)) AS n FROM customers c

SELECT c.id, (SELECT sum((SELECT count(*) FROM items i WHERE i.order_id = o.id AND i.amount > c.id)) FROM orders o WHERE
o.customer = c.id) AS n FROM customers c

SELECT c.id FROM customers c WHERE EXISTS (SELECT FROM (SELECT o.id FROM orders o WHERE o.customer = c.id) s JOIN items i
ON i.order_id = s.id AND i.amount > c.id)

SELECT c.id, (SELECT max(s.n) FROM (SELECT count(*) AS n FROM orders o WHERE o.customer <> c.id GROUP BY o.code) s) AS n
FROM customers c

SELECT i.order_id, i.product FROM items i WHERE EXISTS (SELECT FROM unnest(i.tags) t (v) WHERE t.v = 'b')

SELECT i.order_id, (SELECT string_agg(t.v, ',' ORDER BY t.v) FROM unnest(i.tags) t (v)) AS v FROM items i

SELECT c.id FROM customers c WHERE EXISTS (SELECT FROM orders o WHERE o.id < c.id HAVING count(*) = 0)

SELECT c.id FROM customers c WHERE EXISTS (SELECT FROM orders o WHERE o.customer = c.id HAVING count(*) > 1)

SELECT c.id, x.n FROM customers c, LATERAL (SELECT count(*) AS n FROM orders o WHERE o.customer = c.id ORDER BY 1 LIMIT
1) x

SELECT c.id, x.n, x.s FROM customers c LEFT JOIN LATERAL (SELECT count(*) AS n, sum(o.id) AS s FROM orders o WHERE
o.customer = c.id) x ON x.n > 1

SELECT c.id, x.note, x.d FROM customers c LEFT JOIN LATERAL (SELECT o.note, o.id - c.id AS d FROM orders o WHERE o.customer
= c.id) x ON x.d > 0

SELECT c.id FROM customers c WHERE c.id IN (SELECT max(o.id) FROM orders o WHERE o.customer = c.id)

SELECT c.id FROM customers c WHERE 0 = ALL (SELECT count(*) FROM orders o WHERE o.customer = c.id)

SELECT c.id, x.tags FROM customers c, LATERAL (SELECT i.tags FROM items i WHERE i.order_id = c.id ORDER BY i.tags LIMIT 2) x

SELECT c.id, x.tags FROM customers c, LATERAL (SELECT DISTINCT ON (i.product) i.tags FROM items i WHERE i.order_id = c.id
ORDER BY i.product, i.amount) x

SELECT DISTINCT ON (product) product, tags FROM items ORDER BY product, tags

SELECT c.id, x.p FROM customers c, LATERAL (SELECT DISTINCT i.product AS p FROM items i WHERE i.order_id = c.id ORDER BY
i.product DESC LIMIT 1) x

SELECT c.id, (SELECT i.tags FROM items i WHERE i.product = 'ink' AND i.order_id = c.id) AS tags FROM customers c

SELECT c.id, ARRAY(SELECT DISTINCT i.product FROM items i WHERE i.order_id = c.id ORDER BY i.product DESC) AS p FROM
customers c

SELECT c.id, ARRAY(SELECT i.product FROM items i WHERE i.order_id >= c.id GROUP BY i.product ORDER BY count(*) DESC,
i.product) AS p FROM customers c

SELECT c.id, ARRAY(SELECT i.amount FROM items i WHERE i.order_id = c.id ORDER BY i.amount DESC NULLS LAST LIMIT 2) AS p
FROM customers c

SELECT c.id, ARRAY(SELECT i.product FROM items i WHERE i.order_id = c.id UNION SELECT o.note FROM orders o WHERE o.customer
= c.id ORDER BY 1) AS p FROM customers c

SELECT c.id, ARRAY(SELECT DISTINCT i.product FROM items i ORDER BY i.product LIMIT 2) AS p FROM customers c

SELECT c.id, ARRAY(SELECT o.id FROM orders o WHERE o.customer = c.id AND EXISTS (SELECT FROM items i WHERE i.order_id =
o.id AND i.amount > c.id) ORDER BY o.placed, o.id) AS p FROM customers c

SELECT c.id, x.code, x.n FROM customers c, LATERAL (SELECT o.code, count(*) AS n FROM orders o WHERE o.customer >= c.id
GROUP BY ROLLUP (o.code)) x

SELECT c.id, x.code, x.n FROM customers c, LATERAL (SELECT o.code, (SELECT max(i.amount) FROM items i) AS n FROM orders o
WHERE o.customer = c.id GROUP BY o.code HAVING count(*) >= (SELECT min(i.amount) FROM items i WHERE i.order_id = c.id)) x

SELECT c.id, x.t FROM customers c, LATERAL (SELECT unnest(i.tags) AS t FROM items i WHERE i.order_id = c.id) x

SELECT c.id FROM customers c WHERE c.credit IN (SELECT i.unit FROM items i WHERE i.amount = c.id UNION ALL SELECT
c2.credit FROM customers c2 WHERE c2.credit = c.credit AND c2.id <> c.id)

SELECT c.id, c.credit::numeric AS v, (SELECT count(*) FROM (SELECT i.unit FROM items i WHERE i.unit > c.credit::numeric UNION
SELECT c.credit * 2) s) AS n FROM customers c

SELECT c.region, count(*) AS n FROM customers c GROUP BY c.region HAVING EXISTS (SELECT FROM orders o WHERE o.code = c.region
UNION ALL SELECT FROM items i WHERE i.product = c.region)

SELECT c.id FROM customers c LEFT JOIN orders o ON EXISTS (SELECT FROM items i WHERE i.amount = c.id EXCEPT SELECT FROM notes
n WHERE n.id = c.id)

SELECT c.id FROM customers c WHERE EXISTS (SELECT FROM orders o RIGHT JOIN items i ON i.order_id = o.id WHERE i.amount =
c.id AND (o.id IS NULL OR EXISTS (SELECT FROM notes n WHERE n.id = o.id AND n.id = c.id)))

SELECT c.id, (WITH w AS (SELECT o.id FROM orders o WHERE o.note = 'a') SELECT count(*) FROM (SELECT w.id FROM w WHERE w.id >=
c.id UNION ALL SELECT w.id FROM w) s) AS n FROM customers c

SELECT i.product FROM items i LEFT JOIN LATERAL unnest(i.tags) t (v) ON t.v = i.product OR t.v = 'b'

SELECT i.product, t.v, t.n FROM items i LEFT JOIN LATERAL unnest(i.tags) WITH ORDINALITY t (v, n) ON t.n > 1

SELECT o.id FROM orders o WHERE (o.customer, o.note) IN (SELECT c.id, o.note FROM customers c WHERE c.id = o.customer UNION
SELECT i.amount, i.product FROM items i WHERE i.order_id = o.id) OR o.id = 5

SELECT o.id, (SELECT count(*) FROM (customers c LEFT JOIN items i ON i.amount = c.id AND i.order_id = o.id) JOIN notes n ON
n.id = c.id AND n.id < o.id) AS n FROM orders o

SELECT sum((SELECT max(i.amount) FROM items i WHERE i.order_id = o.id)) AS s, count(*) FILTER (WHERE EXISTS (SELECT FROM
items i WHERE i.order_id = o.id)) AS n, o.customer, (SELECT count(*) FROM notes) AS m FROM orders o GROUP BY o.customer

SELECT c.id, (SELECT sum((SELECT max(n.id) FROM notes n WHERE n.id < o.id)) FROM orders o WHERE o.customer > c.id) AS s FROM
customers c

SELECT c.id FROM customers c WHERE EXISTS (SELECT FROM orders o, (items i JOIN notes n ON n.id = i.amount AND n.id <= c.id)
WHERE o.id = i.order_id)

SELECT c.id, x.n FROM customers c, LATERAL (SELECT count(*) AS n FROM orders o, LATERAL (SELECT i.product FROM items i WHERE
i.order_id = o.id AND i.amount > c.id UNION SELECT c.name) s) x

SELECT c.id FROM customers c WHERE c.id <> ALL (SELECT o.customer FROM orders o WHERE o.note = c.name OR o.id = c.id UNION
SELECT i.amount FROM items i WHERE i.product = c.name) AND (c.id > 1 OR c.name NOT IN (SELECT o.note FROM orders o WHERE
o.customer = c.id UNION ALL SELECT c.region))

SELECT x.a, x.b FROM orders o, LATERAL (SELECT o.id AS a, o.customer AS b ORDER BY o.note LIMIT 1) x

SELECT id, generate_series(1, generate_series(1, id)) AS n FROM customers

SELECT id, generate_series(1, generate_series(2, id)) + generate_series(1, 2) AS n, generate_series(1, 4) AS m FROM customers

SELECT order_id, unnest(string_to_array(unnest(tags) || ',x,' || product, ',')) AS v, unnest(tags) AS t FROM items

SELECT c.id FROM customers c WHERE EXISTS (SELECT FROM orders o WHERE o.customer = c.id AND o.id = c.id UNION ALL SELECT FROM
items i WHERE i.amount = c.id)

SELECT c.id, x.v FROM customers c, LATERAL (SELECT o.id AS v FROM orders o WHERE o.customer = c.id AND o.note = c.name UNION
(SELECT i.order_id FROM items i WHERE c.name = i.product AND i.amount = c.id INTERSECT ALL SELECT i.amount FROM items i WHERE
i.product = c.name AND i.order_id = c.id)) x

SELECT c.id, o.id AS o FROM customers c LEFT JOIN orders o ON EXISTS (SELECT FROM items i WHERE i.amount = c.id + o.id)

SELECT c.id, o.id AS o FROM customers c RIGHT JOIN orders o ON o.customer >= c.id AND c.region NOT IN (SELECT i.product FROM
items i WHERE i.order_id = o.id AND i.amount > c.id)

SELECT c.id, (WITH w AS (SELECT o.id, o.note FROM orders o WHERE o.customer = c.id) SELECT count(*) FROM w a JOIN w b ON
b.note = a.note) AS n FROM customers c

SELECT c.id, x.k FROM customers c, LATERAL (WITH w (k) AS (SELECT o.id FROM orders o WHERE o.customer = c.id UNION SELECT c.id)
SELECT w.k FROM w WHERE w.k > 1 UNION ALL SELECT v.l FROM w v (l)) x

SELECT c.region, count(*) AS n FROM customers c GROUP BY c.region HAVING EXISTS (SELECT FROM items i WHERE i.amount = count(c.id))

SELECT c.id, (SELECT count(c.id) FILTER (WHERE o.id > 1) FROM orders o WHERE o.customer = c.id) AS n FROM customers c

SELECT n.id FROM notes n WHERE EXISTS (SELECT FROM jsonb_array_elements(n.doc -> 'b') e (v))

SELECT c.id FROM customers c WHERE c.id IN (VALUES (2), (c.id - 1), (c.id * c.id))

SELECT c.id FROM customers c WHERE (SELECT c.id > 2) OR EXISTS (SELECT FROM rich r WHERE r.who = c.name UNION SELECT FROM totals
t WHERE t.customer = c.id)

SELECT c.id FROM customers c WHERE (c.id, c.credit) <> ALL (SELECT i.amount, i.unit FROM items i)

SELECT c.id, (c.id, c.credit) < ANY (SELECT i.amount, i.unit FROM items i WHERE i.order_id >= c.id) AS less, (c.id, c.name) <>
ANY (SELECT o.customer, o.note FROM orders o) AS other FROM customers c

WITH w AS (SELECT o.customer, o.id AS v FROM orders o) SELECT c.id, x.v FROM customers c, LATERAL (WITH w2 AS (SELECT w.v FROM w
WHERE w.customer = c.id), w AS (SELECT i.amount AS v FROM items i) SELECT w2.v FROM w2 UNION ALL SELECT w.v FROM w WHERE w.v = c.id) x

WITH w AS (SELECT o.customer, o.id AS v FROM orders o) SELECT c.id, ARRAY(WITH w2 AS (SELECT w.v FROM w WHERE w.customer = c.id), w
AS (SELECT i.amount AS v FROM items i) SELECT w2.v FROM w2, w ORDER BY w2.v) AS v FROM customers c

WITH w AS (SELECT o.id FROM orders o WHERE o.customer = 1 EXCEPT SELECT n.id FROM notes n WHERE n.body = 'y') SELECT c.id, x.n FROM
customers c, LATERAL (SELECT y.n FROM orders o, LATERAL (SELECT count(*) AS n FROM items i, w WHERE i.amount IS DISTINCT FROM
o.customer UNION SELECT o.id) y WHERE o.id = c.id) x

SELECT c.id, x.note FROM customers c LEFT JOIN LATERAL (SELECT o.id, o.note FROM orders o WHERE o.customer >= c.id) x USING (id)

SELECT id, c.name, x.n, y.v FROM customers c JOIN LATERAL (SELECT o.id::bigint AS id, count(*) AS n FROM orders o WHERE o.customer
<= c.id GROUP BY o.id) x USING (id) LEFT JOIN LATERAL (VALUES (c.id, 1), (2, 2)) y (id, v) USING (id)

SELECT c.id FROM customers c WHERE EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.id LIMIT 1)

SELECT c.id, x.code FROM customers c, LATERAL (SELECT DISTINCT o.code FROM orders o WHERE o.customer >= c.id OFFSET 0) x

SELECT o.id, (SELECT c.region FROM customers c WHERE c.id = o.customer) AS region, (SELECT p.code FROM orders p WHERE p.id =
o.customer) AS code, ARRAY(SELECT p.code FROM orders p WHERE p.customer >= o.customer ORDER BY p.id) AS codes FROM orders o

SELECT c.id, c.name NOT LIKE ALL (SELECT i.product FROM items i WHERE i.amount > c.id) AS a, c.name !~ ANY (SELECT i.product FROM
items i) AS b, NOT (c.name ~* ALL (SELECT i.product FROM items i WHERE i.order_id = c.id)) AS d FROM customers c

SELECT c.id FROM customers c WHERE c.name NOT ILIKE ANY (SELECT i.product FROM items i) AND c.name !~ ALL (SELECT i.product FROM
items i WHERE i.product IS NOT NULL)

SELECT (SELECT max(o.id) FROM orders o WHERE o.customer = c.id) AS m, count(*) AS n FROM customers c GROUP BY 1

SELECT coalesce((SELECT max(o.note) FROM orders o WHERE o.customer = c.id), c.name) AS m, c.region, sum(c.credit) AS s FROM
customers c GROUP BY 1, c.region HAVING coalesce((SELECT max(o.note) FROM orders o WHERE o.customer = c.id), c.name) > 'a'

SELECT count(*) AS n FROM customers GROUP BY EXISTS (SELECT FROM orders o WHERE o.customer = customers.id), id IN (SELECT amount
FROM items)

SELECT (SELECT min(i.amount) FROM items i) AS m, sum((SELECT min(i.amount) FROM items i)) AS s, 1 IN (SELECT min(i.amount) FROM items
i) AS one FROM orders GROUP BY (SELECT min(i.amount) FROM items i)

SELECT (SELECT count(*) FROM orders o WHERE o.customer = c.id) AS n, c.region, count(*) AS m, GROUPING((SELECT count(*) FROM orders o
WHERE o.customer = c.id), c.region) AS g FROM customers c GROUP BY ROLLUP ((SELECT count(*) FROM orders o WHERE o.customer = c.id),
c.region)

SELECT o.id, x.m, x.n FROM orders o, LATERAL (SELECT (SELECT max(i.amount) FROM items i WHERE i.order_id = p.id) AS m, count(*) AS n
FROM orders p WHERE p.customer = o.customer GROUP BY 1 ORDER BY 1, 2 LIMIT 1) x

SELECT DISTINCT ON ((SELECT count(*) FROM orders o WHERE o.customer = c.id)) c.id FROM customers c ORDER BY (SELECT count(*) FROM
orders o WHERE o.customer = c.id), c.name DESC NULLS LAST

SELECT c.id FROM customers c WHERE (c.id, c.name) = (SELECT o.customer, o.note FROM orders o WHERE o.id = c.id) OR (c.id, c.credit) <>
(SELECT max(i.amount), min(i.unit) FROM items i WHERE i.order_id = c.id)

SELECT c.id, (c.id, c.region) < (SELECT o.customer, o.code FROM orders o WHERE o.id = c.id) AS less, (c.id, c.name) = (SELECT o.id,
o.note FROM orders o WHERE o.id < 0) AS none, (c.region, c.id) >= (SELECT c.region, max(o.id) FROM orders o WHERE o.customer = c.id
GROUP BY c.region) AS more FROM customers c

SELECT c.id FROM customers c WHERE EXISTS (SELECT FROM orders o WHERE (o.id, o.code) = (SELECT i.order_id, c.region FROM items i WHERE
i.amount = c.id AND i.product = 'cup'))

SELECT c.id FROM customers c WHERE NOT (c.id, c.id) = (SELECT min(o.id), max(o.id) FROM orders o WHERE o.customer = c.id UNION ALL
SELECT 1, 2 WHERE c.id > 100)

SELECT id, name FROM customers c ORDER BY (SELECT count(*) FROM orders o WHERE o.customer = c.id) DESC, id LIMIT 3

SELECT DISTINCT (SELECT count(*) FROM orders o WHERE o.customer = c.id) AS n FROM customers c ORDER BY (SELECT count(*) FROM orders o
WHERE o.customer = c.id) DESC LIMIT 2

SELECT region, count(*) AS n FROM customers c GROUP BY region ORDER BY (SELECT count(*) FROM items i WHERE i.product > c.region),
sum((SELECT max(o.id) FROM orders o WHERE o.customer = c.id)) DESC, region LIMIT 2 OFFSET 1

SELECT DISTINCT ON (c.region) c.region, c.id FROM customers c ORDER BY c.region, (SELECT max(o.note) FROM orders o WHERE o.customer
= c.id), c.id DESC

SELECT c.id, x.id AS o FROM customers c, LATERAL (SELECT o.id FROM orders o WHERE o.customer >= c.id ORDER BY (SELECT count(*) FROM items i
WHERE i.order_id = o.id) DESC, o.id LIMIT 2) x

SELECT c.id, x.id AS o FROM customers c LEFT JOIN LATERAL (SELECT o.id, o.note FROM orders o WHERE o.customer = c.id) x ON EXISTS
(SELECT FROM items i WHERE i.order_id = x.id AND i.amount > c.id)

SELECT c.id, x.id AS o FROM customers c JOIN LATERAL (SELECT o.id FROM orders o WHERE o.customer >= c.id ORDER BY o.id LIMIT 2) x ON
x.id NOT IN (SELECT i.order_id FROM items i WHERE i.amount = c.id) OR c.region IS NULL

SELECT c.id, x.n FROM customers c LEFT JOIN LATERAL (SELECT count(*) AS n FROM orders o WHERE o.customer = c.id) x ON x.n > (SELECT
min(i.amount) FROM items i WHERE i.order_id = c.id)

SELECT i.product, t.v, t.n FROM items i LEFT JOIN LATERAL unnest(i.tags) WITH ORDINALITY t (v, n) ON t.v = ANY (SELECT o.note FROM orders
o WHERE o.id >= i.order_id OR t.n = 1)

SELECT c.id, x.v FROM customers c LEFT JOIN LATERAL (VALUES (c.id), (2)) x (v) ON x.v IN (SELECT o.id FROM orders o WHERE o.customer = c.id)

SELECT c.id, x.v FROM customers c LEFT JOIN LATERAL unnest(ARRAY[1, 2, NULL]) x (v) ON x.v = (SELECT count(*) FROM orders o WHERE
o.customer = c.id)

SELECT c.region, c.mood, count(*) AS n, (SELECT count(*) FROM orders o WHERE o.code IS NOT DISTINCT FROM c.region::char(4)) AS m,
GROUPING(c.mood) AS g FROM customers c GROUP BY CUBE (c.region, c.mood)

SELECT c.region, sum(c.id) AS s FROM customers c WHERE EXISTS (SELECT FROM orders o WHERE o.customer = c.id) GROUP BY ROLLUP (c.region)
HAVING sum(c.id) > (SELECT min(i.amount) FROM items i) AND NOT EXISTS (SELECT FROM items i WHERE i.product = c.region)

SELECT c.region, (SELECT count(*) FROM items i WHERE i.amount < count(c.id) AND GROUPING(c.region) = 0) AS n, max((SELECT max(o.id) FROM
orders o WHERE o.customer = c.id)) AS m FROM customers c GROUP BY GROUPING SETS ((c.region), (), (c.region))

SELECT count(*), (SELECT max(o.id) FROM orders o) AS n FROM customers GROUP BY ROLLUP (region)

SELECT region, count(*) AS n FROM customers GROUP BY ROLLUP (region) ORDER BY count(*) DESC, region LIMIT 2

SELECT c.id, x.code, x.n FROM customers c, LATERAL (SELECT o.code, (SELECT count(*) FROM items i WHERE i.amount = c.id OR i.product =
o.code) AS n FROM orders o WHERE o.customer >= c.id GROUP BY ROLLUP (o.code)) x

SELECT c.id, u.v FROM customers c, unnest((SELECT array_agg(o.id ORDER BY o.id) FROM orders o WHERE o.customer = c.id)) u (v)

SELECT c.id, u.v FROM customers c, generate_series(1, (SELECT count(*) FROM orders o WHERE o.customer = c.id)) u (v)

SELECT u.v, u.n FROM unnest((SELECT array_agg(o.note ORDER BY o.id) FROM orders o)) WITH ORDINALITY u (v, n)

SELECT c.id, u.v FROM customers c LEFT JOIN LATERAL unnest(ARRAY(SELECT o.id FROM orders o WHERE o.customer = c.id ORDER BY o.id) ||
c.id) u (v) ON u.v > (SELECT min(i.amount) FROM items i WHERE i.order_id = u.v)

SELECT c.id, (SELECT count(*) FROM generate_series(1, (SELECT max(o.id) FROM orders o WHERE o.customer = c.id)) g (v) WHERE g.v > c.id)
AS n FROM customers c

SELECT (SELECT count(c.id) FROM orders o WHERE o.id = 1) AS n FROM customers c

SELECT region FROM customers c GROUP BY 1 HAVING 4 IN (SELECT o.id FROM orders o WHERE o.id < 2 UNION SELECT max(c.id))

SELECT c.region, (SELECT o.note FROM orders o WHERE o.id = max(c.id)) AS note, (SELECT min(o.note) FROM orders o WHERE o.customer <
sum(c.id) FILTER (WHERE c.name > 'a')) AS m FROM customers c GROUP BY c.region

SELECT c.region, count(*) AS n FROM customers c GROUP BY c.region ORDER BY (SELECT count(*) FROM orders o WHERE o.id <= max(c.id)) DESC,
c.region LIMIT 2

SELECT o.id, (SELECT (SELECT count(*) FROM items i WHERE i.amount < count(c.id) AND i.order_id = o.id) FROM customers c WHERE c.id <
o.customer) AS n FROM orders o

SELECT o.id FROM orders o WHERE EXISTS (SELECT c.region FROM customers c WHERE c.id >= o.customer GROUP BY c.region HAVING EXISTS (SELECT
FROM items i WHERE i.amount = max(c.id) - o.id))

SELECT c.id, c.name, (SELECT count(*) FROM items i WHERE i.amount <= count(o.id) AND i.product > c.name) AS n FROM customers c LEFT JOIN
orders o ON o.customer = c.id GROUP BY c.id

SELECT c.id, c.name ^@ ANY (SELECT i.product FROM items i WHERE i.amount > c.id) AS a, c.name ^@ ALL (SELECT o.note FROM orders o WHERE
o.customer = c.id) AS b FROM customers c WHERE NOT c.name ^@ ANY (SELECT o.note FROM orders o) OR c.name ^@ 'a'

SELECT (SELECT count(*) FROM orders) AS n, (SELECT max(id) FROM customers) AS m

SELECT c.id, x.a FROM customers c, (SELECT 1 AS a UNION ALL SELECT 2) x WHERE EXISTS (SELECT 1) AND c.id IN (SELECT 1 UNION SELECT 3)

SELECT c.id FROM customers c WHERE (c.id, 1) > (SELECT 2, 3) OR c.id = ANY (SELECT 1)

SELECT 1 AS a WHERE EXISTS (SELECT FROM orders WHERE id > 3) UNION ALL SELECT id FROM customers

SELECT k, (SELECT max(k + 1) FROM (SELECT id AS k FROM orders) a FULL JOIN (SELECT order_id AS k FROM items) b USING (k)) AS m FROM (SELECT
id AS k FROM customers) t GROUP BY k, k + 1 HAVING k + 1 > (SELECT count(*) FROM orders o WHERE o.id > max(t.k))

SELECT (SELECT count(*) FROM items i WHERE i.order_id = max(id)) AS n FROM customers FULL JOIN orders USING (id)

SELECT region, (SELECT count(*) FROM items WHERE amount < percentile_disc(0.5) WITHIN GROUP (ORDER BY c.id)) AS n, (SELECT product(c.id)) AS p
FROM customers c GROUP BY region

SELECT region, (WITH w AS (SELECT o.id FROM orders o WHERE o.customer <= max(c.id)) SELECT count(*) FROM w, w v) AS n FROM customers c GROUP
BY region

SELECT o.id, x.m, x.n FROM orders o LEFT JOIN LATERAL (SELECT (SELECT max(i.amount) FROM items i WHERE i.order_id = max(c.id)) AS m, count(*)
AS n FROM customers c WHERE c.id >= o.customer) x ON x.m > ALL (SELECT i.amount FROM items i WHERE i.order_id = o.id)

SELECT EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.id ORDER BY count(*)) AS e FROM customers c

SELECT DISTINCT ON (region) region, count(*) AS n FROM customers c GROUP BY CUBE (region, mood) ORDER BY region, (SELECT count(*) FROM
orders o WHERE o.id < count(c.id)), count(*) DESC, mood

SELECT c.region, (SELECT t.region) AS r, GROUPING(c.region) AS g FROM customers c, LATERAL (SELECT c.region) t(region) GROUP BY ROLLUP
(c.region, t.region) ORDER BY 1, 2, 3 OFFSET 1

SELECT n.id, n.doc @? ANY (SELECT '$.a'::jsonpath FROM notes m) AS a, n.doc @@ ALL (SELECT '$.a == 1'::jsonpath FROM notes m) AS b FROM notes n

SELECT c.mood, count(*) AS n FROM customers c GROUP BY GROUPING SETS ((c.mood, (SELECT max(o.id) FROM orders o WHERE o.customer = c.id)),
((SELECT max(o.id) FROM orders o WHERE o.customer = c.id)), ()) HAVING count(*) > 1 OR c.mood > 'sad'

SELECT count(*) AS n FROM customers c GROUP BY ROLLUP ((SELECT max(o.id) FROM orders o WHERE o.customer = c.id), c.region) ORDER BY (SELECT
max(o.id) FROM orders o WHERE o.customer = c.id), count(*) DESC, c.region LIMIT 3

SELECT c.id, (SELECT max(v.x) FROM (VALUES (c.id), (c.credit)) v (x)) AS m, EXISTS (SELECT FROM (VALUES (c.name), (c.region)) v
(x) WHERE v.x = 'a') AS e, c.id IN (VALUES (c.credit), (2)) AS i FROM customers c

SELECT c.id, (SELECT max(c1.c2) FROM (VALUES (c.id), (c.credit)) c1 (c2)) AS m FROM customers c

SELECT c.id, (SELECT count(*) FROM orders o JOIN (VALUES (c.id), (c.id + 1)) v (x) ON v.x = o.customer) AS n FROM customers c

SELECT c.id, x.n FROM customers c LEFT JOIN LATERAL (SELECT count(*) AS n WHERE c.region IS NULL) x ON x.n > 0

SELECT c.id, (SELECT count(*) WHERE c.id > 1) AS n, (SELECT c.name WHERE c.region = 'north') AS m, (SELECT 1) AS one FROM customers c

SELECT i.order_id, (SELECT count(DISTINCT u.x) FROM unnest(i.tags) u (x)) AS n, (SELECT u.x FROM unnest(i.tags) WITH ORDINALITY u
(x, n) ORDER BY u.n DESC LIMIT 1) AS l, ARRAY(SELECT upper(u.x) FROM unnest(i.tags) u (x)) AS a FROM items i

SELECT i.tags, count(*) AS n, (SELECT max(u.x) FROM unnest(i.tags) u (x)) AS m FROM items i GROUP BY i.tags HAVING EXISTS (SELECT
FROM unnest(i.tags) u (x) WHERE u.x > 'a')

SELECT c.region, c.name, (SELECT count(v.x) FROM (VALUES (c.region), (c.name)) v (x)) AS n FROM customers c GROUP BY CUBE (c.region,
c.name)

SELECT c.id, x.v, x.n FROM customers c, LATERAL (SELECT u.v, count(*) AS n FROM unnest(ARRAY[c.id, c.id, 3]) u (v) GROUP BY u.v
ORDER BY 2 DESC, 1 LIMIT 1) x

SELECT c.id, (SELECT count(*) FROM orders o RIGHT JOIN items i ON i.order_id = o.id AND o.customer = c.id WHERE o.id IS NULL) AS n
FROM customers c

SELECT c.id, x.a, x.b FROM customers c LEFT JOIN LATERAL (SELECT a.id AS a, b.id AS b FROM (SELECT o.id FROM orders o WHERE
o.customer = c.id) a FULL JOIN (SELECT n.id FROM notes n WHERE n.id > c.id) b USING (id)) x ON x.a > 1 OR x.b IS NOT NULL

SELECT c.id, (WITH w AS (SELECT o.id FROM orders o WHERE o.customer = c.id) SELECT count(*) FROM items i WHERE i.order_id IN (SELECT
w.id FROM w) OR EXISTS (SELECT FROM w WHERE w.id > i.amount)) AS n FROM customers c

SELECT c.id, (WITH w AS (SELECT o.id FROM orders o WHERE o.customer = c.id) SELECT max(id) FROM notes JOIN w USING (id) AS j) AS n FROM
customers c

SELECT c.id, x.id AS o FROM customers c, LATERAL (SELECT o.id, o.note FROM orders o WHERE o.customer = c.id ORDER BY o.note OFFSET 0
FETCH FIRST 1 ROW WITH TIES) x

SELECT region, id FROM customers ORDER BY region FETCH FIRST 2 ROWS WITH TIES

SELECT id FROM customers LIMIT ALL

SELECT c.id, (SELECT product(o.id) FROM orders o WHERE o.customer = c.id) AS p, (SELECT regr_count(o.id, o.customer) FROM orders o WHERE
o.customer = c.id + 1) AS r FROM customers c

SELECT c.id, x.p FROM customers c, LATERAL (SELECT product(o.id) + c.id AS p FROM (SELECT o.id FROM orders o WHERE o.customer > c.id) o) x

SELECT v.x, v.y FROM (VALUES ((SELECT max(o.id) FROM orders o), 'a'), (2, 'b'), (2, 'b')) v (x, y)

SELECT c.id, v.x FROM customers c LEFT JOIN LATERAL (VALUES ((SELECT max(o.id) FROM orders o WHERE o.customer = c.id)), (c.id)) v (x) ON
v.x > 1

SELECT c.id FROM customers c WHERE c.id NOT IN (VALUES ((SELECT max(o.id) FROM orders o WHERE o.customer = c.id)), (2)) OR c.id = ANY
(VALUES ((SELECT min(i.amount) FROM items i)), (5))

SELECT x.a FROM (VALUES ((SELECT max(y.b) FROM (VALUES ((SELECT min(o.id) FROM orders o)), (7)) y (b)))) x (a)

VALUES ((SELECT count(*) FROM orders)), (NULL)

SELECT i.product, (SELECT string_agg(coalesce(o.code, t.x), ',' ORDER BY t.x, o.code) FROM unnest(i.tags) t(x) LEFT JOIN orders o ON o.note = t.x) AS n
FROM items i

SELECT i.product, (SELECT count(*) FROM unnest(i.tags) t(x) FULL JOIN unnest(ARRAY['a','c']) u(x) ON u.x = t.x) AS n FROM items i

SELECT i.product, y.x, y.id FROM items i LEFT JOIN LATERAL (SELECT t.x, o.id FROM unnest(i.tags) WITH ORDINALITY t(x, n) LEFT JOIN orders o ON
o.note = t.x AND o.id > t.n) y ON true

SELECT u.x, o.note FROM unnest(ARRAY[1, 2, 99]) u(x) FULL JOIN orders o ON o.id = u.x

SELECT i.product, t.x, o.id FROM items i, unnest(i.tags) t(x) LEFT JOIN orders o ON o.note = t.x

SELECT c.id, (SELECT count(*) FROM items i, unnest(i.tags) t(x) JOIN orders o ON o.note = t.x AND o.customer >= c.id) AS n FROM customers c

WITH w (x, y) AS (VALUES (1, 'a'), (2, 'b')) SELECT c.id, w.y FROM customers c LEFT JOIN w ON w.x = c.id

(VALUES (1), (2), (9)) EXCEPT SELECT id FROM customers

SELECT id FROM customers INTERSECT ALL (VALUES (1), (1), (NULL))

SELECT c.id, v.x FROM customers c, LATERAL (WITH w (x) AS (VALUES (c.id), (3)) SELECT w.x FROM w) v

SELECT c.id FROM customers c WHERE EXISTS (VALUES (c.id) INTERSECT SELECT o.customer FROM orders o) OR c.id IN (SELECT o.id FROM
orders o WHERE o.id > 3 UNION ALL VALUES (1), (c.id + 1))

WITH w (x) AS (VALUES ((SELECT max(id) FROM orders)), (3)) SELECT a.x, b.x AS y FROM w a CROSS JOIN w b

SELECT DISTINCT ON (o.code) o.code, o.id, o.note FROM orders o ORDER BY o.code NULLS FIRST, o.placed DESC NULLS LAST, o.id LIMIT 2

SELECT DISTINCT ON (i.product) i.amount FROM items i ORDER BY i.product DESC, i.amount * 2 DESC NULLS LAST, i.order_id LIMIT 2 OFFSET 1

SELECT DISTINCT ON (o.code) o.code, count(*) AS n, o.note FROM orders o GROUP BY o.code, o.note ORDER BY o.code, count(*) DESC, o.note
LIMIT 2

SELECT c.id, x.code, x.id AS o FROM customers c, LATERAL (SELECT DISTINCT ON (o.code) o.code, o.id FROM orders o WHERE o.customer >= c.id
ORDER BY o.code DESC, o.id DESC LIMIT 1) x

SELECT c.id, (SELECT DISTINCT ON (o.code) o.id FROM orders o WHERE o.customer = c.id ORDER BY o.code, o.id LIMIT 1) AS o FROM customers c

SELECT c.id, (WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT r.n + 1 FROM r WHERE r.n < least(c.id, 5)) SELECT sum(r.n) FROM r) AS s FROM customers c

SELECT c.id, (SELECT rank(3) WITHIN GROUP (ORDER BY o.id) FROM orders o WHERE o.customer = c.id) AS r FROM customers c

SELECT c.id, (SELECT dense_rank(3) WITHIN GROUP (ORDER BY o.id) + count(*) FROM orders o WHERE o.customer = c.id) AS d, (SELECT percent_rank(3) WITHIN GROUP (ORDER BY o.id DESC) FROM orders o WHERE o.customer = c.id) AS p, (SELECT cume_dist(3) WITHIN GROUP (ORDER BY o.id) FROM orders o WHERE o.customer = c.id) AS q, (SELECT regr_count(o.id, o.customer) FROM orders o WHERE o.customer = c.id) AS n FROM customers c

SELECT c.id, (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY o.id) FROM orders o WHERE o.customer = c.id) AS r FROM customers c WHERE (SELECT rank(2) WITHIN GROUP (ORDER BY o.id) FROM orders o WHERE o.customer > c.id) > 1
