-- Queries with window functions whose tree must give what PostgreSQL gives; one a paragraph.

SELECT id, rank() OVER (ORDER BY credit) AS r, dense_rank() OVER (ORDER BY credit DESC NULLS LAST) AS d FROM customers

SELECT id, row_number() OVER w AS n, percent_rank() OVER w AS p, cume_dist() OVER w AS c, ntile(2) OVER w AS t FROM customers WINDOW w AS (PARTITION BY region ORDER BY id)

SELECT sum(id) OVER w AS s, count(*) OVER (w ORDER BY id) AS c, max(name) OVER v AS m FROM customers WINDOW w AS (PARTITION BY region), v AS (w ORDER BY id ROWS 1 PRECEDING)

SELECT c.id, lag(c.name) OVER (ORDER BY c.id) AS a, lead(c.name, 2, 'none') OVER (ORDER BY c.id) AS b, first_value(c.mood) OVER (ORDER BY c.id) AS f, last_value(c.credit) OVER (ORDER BY c.id ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS l, nth_value(c.region, 2) OVER (ORDER BY c.id) AS n FROM customers c

SELECT region, count(*) AS n, rank() OVER (ORDER BY count(*) DESC, region) AS r, sum(count(*)) OVER (ORDER BY region) AS s FROM customers GROUP BY region HAVING count(*) > 0

SELECT region, avg(credit) AS a, avg(avg(credit)) OVER () AS b, sum(sum(credit)) OVER (PARTITION BY count(*) ORDER BY region) AS c FROM customers GROUP BY region

SELECT count(*) AS n, sum(count(*)) OVER () AS m FROM customers

SELECT id, count(*) FILTER (WHERE credit > 0) OVER (PARTITION BY region) AS n, sum(credit) FILTER (WHERE name IS NOT NULL) OVER (ORDER BY id) AS s FROM customers

SELECT order_id, product, sum(amount) OVER (PARTITION BY order_id ORDER BY amount, product ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE CURRENT ROW) AS s FROM items

SELECT order_id, sum(amount) OVER (ORDER BY amount RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING EXCLUDE TIES) AS s, count(*) OVER (ORDER BY amount GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE GROUP) AS g FROM items

SELECT id, count(*) OVER (ORDER BY placed RANGE BETWEEN '1 day'::interval PRECEDING AND '12 hours'::interval FOLLOWING) AS n FROM orders

SELECT id, sum(id) OVER (ORDER BY id ROWS 1 + 1 PRECEDING) AS s, sum(id) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS t FROM orders

SELECT q.id FROM (SELECT id, row_number() OVER (PARTITION BY customer ORDER BY placed DESC, id) AS n FROM orders) q WHERE q.n <= 1

SELECT id, product(id) OVER (ORDER BY id) AS p, string_agg(note, ',') OVER (ORDER BY id) AS s, array_agg(code) OVER (ORDER BY id) AS a, bool_or(note IS NULL) OVER () AS b FROM orders

SELECT DISTINCT region, count(*) OVER (PARTITION BY region) AS n FROM customers

SELECT DISTINCT ON (region) region, id, rank() OVER (ORDER BY id) AS r FROM customers ORDER BY region, rank() OVER (ORDER BY id) DESC

SELECT id, rank() OVER (ORDER BY id DESC) AS r FROM customers ORDER BY r LIMIT 2

SELECT id FROM customers ORDER BY row_number() OVER (PARTITION BY region ORDER BY id), id LIMIT 3

SELECT id, 1 + rank() OVER (ORDER BY id) * 2 AS x, CASE WHEN lag(id) OVER (ORDER BY id) IS NULL THEN 'first' ELSE 'later' END AS y FROM orders

SELECT c.id, (SELECT max(o.n) FROM (SELECT row_number() OVER (ORDER BY id) AS n FROM orders) o) AS m FROM customers c

SELECT c.id, q.n FROM customers c, LATERAL (SELECT row_number() OVER (ORDER BY o.id) AS n FROM orders o WHERE o.customer = c.id) q

SELECT c.id, (SELECT sum(q.n) FROM (SELECT o.id * rank() OVER (ORDER BY o.id) AS n FROM orders o WHERE o.customer = c.id) q) AS s FROM customers c

SELECT c.id FROM customers c WHERE 2 IN (SELECT rank() OVER (ORDER BY o.id) FROM orders o WHERE o.customer = c.id)

SELECT c.id FROM customers c WHERE EXISTS (SELECT row_number() OVER () FROM orders o WHERE o.customer = c.id)

SELECT c.id, (SELECT sum(o.id) OVER () FROM orders o WHERE o.customer = c.id ORDER BY o.id LIMIT 1) AS s FROM customers c

SELECT c.id, (SELECT rank() OVER (ORDER BY o.id) FROM orders o WHERE o.id = c.id) AS s FROM customers c

SELECT c.id, rank() OVER (ORDER BY (SELECT count(*) FROM orders o WHERE o.customer = c.id) DESC, c.id) AS r FROM customers c

SELECT c.region, rank() OVER (ORDER BY (SELECT count(*) FROM orders) + count(*)) AS r FROM customers c GROUP BY c.region

SELECT id, unnest(ARRAY[1, 2]) AS u, count(*) OVER () AS n FROM customers

SELECT id, rank() OVER (ORDER BY id) AS r FROM customers UNION ALL SELECT id, row_number() OVER (ORDER BY id) FROM orders

SELECT who, rank() OVER (ORDER BY twice) AS r FROM north

SELECT place, count(*) AS n FROM ranked GROUP BY place

WITH w AS (SELECT id, rank() OVER (ORDER BY id) AS r FROM orders) SELECT a.id, b.id AS next FROM w a JOIN w b ON b.r = a.r + 1

SELECT id, sum(n) OVER (ORDER BY id) AS s FROM (SELECT id, count(*) OVER (PARTITION BY customer) AS n FROM orders) q

SELECT body, rank() OVER (PARTITION BY body ORDER BY id, doc) AS r, row_number() OVER (ORDER BY id, body, doc) AS n FROM notes

SELECT o.id, i.product, sum(i.amount) OVER (PARTITION BY o.customer) AS s FROM orders o LEFT JOIN items i ON i.order_id = o.id

SELECT region, mood, count(*) AS n, sum(count(*)) OVER () AS t FROM customers GROUP BY ROLLUP (region, mood)

SELECT region, count(*) AS n, rank() OVER (PARTITION BY GROUPING(region) ORDER BY count(*)) AS r FROM customers GROUP BY ROLLUP (region)

SELECT region, count(*) AS n, row_number() OVER (ORDER BY region NULLS FIRST, count(*)) AS r FROM customers GROUP BY CUBE (region)

SELECT sum(weight) OVER (PARTITION BY order_id ORDER BY product, amount) AS s FROM items

SELECT id, rank() OVER (ORDER BY note COLLATE "C") AS r, min(note) OVER (PARTITION BY upper(note) COLLATE "POSIX") AS m FROM orders

SELECT 1 AS one, count(*) OVER () AS n FROM customers

SELECT row_number() OVER () AS n FROM customers

SELECT id, rank() OVER (PARTITION BY 1 ORDER BY 'x'::text) AS r FROM customers

SELECT x.id, x.r FROM (SELECT id, region, rank() OVER (PARTITION BY region ORDER BY id) AS r FROM customers) x WHERE x.region = 'north' AND x.r > 0

SELECT id, extract(year FROM placed) AS y, count(*) OVER (PARTITION BY extract(year FROM placed)) AS n FROM orders

SELECT id, ntile((SELECT 2)) OVER (ORDER BY id) AS t FROM orders

SELECT id, sum(id) OVER (ORDER BY id ROWS (SELECT 1) PRECEDING) AS s FROM orders

SELECT o.id, x.s FROM orders o LEFT JOIN LATERAL (SELECT i.product, sum(i.amount) OVER (ORDER BY i.amount, i.product) AS s FROM items i WHERE i.order_id = o.id) x ON true

SELECT o.id, x.n FROM orders o CROSS JOIN LATERAL (SELECT rank() OVER (ORDER BY count(*) DESC) AS n FROM items i WHERE i.order_id <= o.id GROUP BY i.product) x

SELECT upper(region) AS u, count(*) AS n, sum(count(*)) OVER (PARTITION BY GROUPING(upper(region)) ORDER BY upper(region)) AS s, GROUPING(upper(region)) AS g FROM customers GROUP BY ROLLUP (upper(region))

SELECT region, mood, rank() OVER (PARTITION BY GROUPING(region, mood) ORDER BY sum(credit) DESC NULLS LAST, region, mood) AS r FROM customers GROUP BY GROUPING SETS ((region), (mood), ())

SELECT region, mood, lag(region) OVER (ORDER BY region, mood, count(*)) AS l FROM customers GROUP BY CUBE (region, mood) ORDER BY count(*), region, mood, rank() OVER (ORDER BY mood) LIMIT 3

SELECT c.id, q.m FROM customers c, LATERAL (SELECT sum(count(*)) OVER () AS m FROM orders o WHERE o.customer = c.id) q

SELECT c.id, (SELECT sum(count(*)) OVER () AS m FROM orders o WHERE o.customer = c.id) AS m FROM customers c

SELECT c.id, (SELECT DISTINCT count(*) OVER () AS m FROM orders o WHERE o.customer = c.id) AS m FROM customers c

SELECT c.id, q.r FROM customers c LEFT JOIN LATERAL (SELECT o.id, rank() OVER (ORDER BY o.id + c.id) AS r FROM orders o) q ON q.id = c.id

SELECT c.id, q.n FROM customers c, LATERAL (SELECT o.note, count(*) OVER (PARTITION BY c.region) AS n FROM orders o WHERE o.customer = c.id UNION ALL SELECT NULL, c.id) q

SELECT c.id FROM customers c WHERE c.id > ALL (SELECT row_number() OVER (ORDER BY o.id) FROM orders o WHERE o.customer = c.id)

SELECT c.id, c.id IN (SELECT row_number() OVER (ORDER BY o.id) FROM orders o WHERE o.customer <> c.id) AS m FROM customers c

SELECT c.id, ARRAY(SELECT row_number() OVER (ORDER BY o.id) FROM orders o WHERE o.customer = c.id ORDER BY 1) AS m FROM customers c

SELECT c.id, (SELECT array_agg(q.n ORDER BY q.n) FROM (SELECT row_number() OVER (ORDER BY v) AS n FROM (VALUES (1), (c.id)) x(v)) q) AS m FROM customers c

SELECT c.id, (SELECT max(q.n) FROM (SELECT row_number() OVER (ORDER BY x) AS n FROM generate_series(1, c.id) x) q) AS m FROM customers c

SELECT x.n FROM (SELECT row_number() OVER (ORDER BY v) AS n FROM (VALUES (1), (2)) x(v)) x, customers

SELECT row_number() OVER (ORDER BY q.n) AS n FROM (SELECT count(*) AS n FROM customers) q

SELECT c.region, (SELECT rank() OVER (ORDER BY 1)) AS r, count(*) AS n FROM customers c GROUP BY c.region

SELECT id, (SELECT sum(x) OVER () FROM (SELECT 1 AS x) y) AS s FROM customers

SELECT o.id, sum(i.amount) OVER w AS s FROM orders o JOIN items i ON i.order_id = o.id WINDOW w AS (PARTITION BY o.customer ORDER BY i.amount RANGE BETWEEN 1 PRECEDING AND CURRENT ROW)

SELECT DISTINCT ON (1) count(*) OVER (PARTITION BY region) AS n, id FROM customers ORDER BY 1, 2

SELECT region FROM customers GROUP BY region ORDER BY rank() OVER (ORDER BY count(*)), region LIMIT 1

SELECT id, rank() OVER (ORDER BY id USING >) AS r FROM customers

SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY id) AS p, rank() OVER (ORDER BY percentile_cont(0.5) WITHIN GROUP (ORDER BY id)) AS r FROM customers

SELECT id, count(*) OVER w1 AS a, count(*) OVER w2 AS b FROM customers WINDOW w1 AS (PARTITION BY region), w2 AS (PARTITION BY region)

SELECT id, max(id) OVER (PARTITION BY region ORDER BY mood RANGE UNBOUNDED PRECEDING) AS a, min(weight) OVER (PARTITION BY region) AS b FROM customers LEFT JOIN items ON order_id = id

SELECT id, lag(tags) OVER (ORDER BY product, amount, unit) AS b FROM customers JOIN items ON order_id = id

SELECT sum(n) AS s FROM (SELECT count(*) OVER (PARTITION BY region) AS n, region FROM customers) q GROUP BY region

SELECT id, sum(id) OVER (w) AS s, count(*) OVER w AS c, rank() OVER (v) AS r, max(id) OVER () AS m FROM customers WINDOW w AS (ORDER BY id), v AS (w)
