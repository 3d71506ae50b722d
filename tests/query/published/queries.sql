-- Queries as they are published: dashboards, reports, series, JSON, windows, recursion; one a line.
SELECT region, count(*) AS n, count(*) FILTER (WHERE active) AS active, round(100.0 * count(*) FILTER (WHERE active) / count(*), 1) AS pct FROM customers GROUP BY region
SELECT date_trunc('month', placed) AS month, count(*) AS orders, sum(total) AS revenue, round(avg(total), 2) AS aov FROM orders WHERE status <> 'cancelled' GROUP BY 1
SELECT date_trunc('month', o.placed)::date AS month, c.region, sum(i.qty * i.unit * (1 - i.discount)) AS net FROM orders o JOIN items i ON i.order_id = o.id JOIN customers c ON c.id = o.customer GROUP BY 1, 2
SELECT p.name, sum(i.qty) AS sold, rank() OVER (ORDER BY sum(i.qty) DESC NULLS LAST) AS place FROM products p LEFT JOIN items i ON i.product = p.id GROUP BY p.id, p.name
SELECT * FROM (SELECT c.name AS category, p.name, sum(i.qty * i.unit) AS revenue, row_number() OVER (PARTITION BY c.id ORDER BY sum(i.qty * i.unit) DESC, p.id) AS rn FROM categories c JOIN products p ON p.category = c.id JOIN items i ON i.product = p.id GROUP BY c.id, c.name, p.id, p.name) q WHERE rn <= 3
SELECT month, revenue, lag(revenue) OVER (ORDER BY month) AS prev, round(100 * (revenue - lag(revenue) OVER (ORDER BY month)) / NULLIF(lag(revenue) OVER (ORDER BY month), 0), 2) AS growth FROM (SELECT date_trunc('month', placed) AS month, sum(total) AS revenue FROM orders GROUP BY 1) m
WITH m AS (SELECT date_trunc('month', placed) AS month, sum(total) AS revenue FROM orders GROUP BY 1) SELECT a.month, a.revenue, b.revenue AS year_before FROM m a LEFT JOIN m b ON b.month = a.month - interval '1 year'
SELECT placed::date AS day, sum(total) AS revenue, sum(sum(total)) OVER (ORDER BY placed::date) AS running FROM orders GROUP BY 1
SELECT day, revenue, avg(revenue) OVER (ORDER BY day ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) AS ma7 FROM (SELECT placed::date AS day, sum(total)::numeric AS revenue FROM orders GROUP BY 1) d
SELECT d.day::date, coalesce(count(o.id), 0) AS n FROM generate_series(date '2026-01-01', date '2026-01-31', interval '1 day') AS d(day) LEFT JOIN orders o ON o.placed::date = d.day::date GROUP BY 1
WITH first AS (SELECT customer, min(placed) AS first FROM orders GROUP BY customer) SELECT date_trunc('month', first) AS cohort, count(*) AS size FROM first GROUP BY 1
WITH c AS (SELECT customer, date_trunc('month', min(placed)) AS cohort FROM orders GROUP BY 1), a AS (SELECT DISTINCT customer, date_trunc('month', placed) AS month FROM orders) SELECT c.cohort, (extract(year FROM age(a.month, c.cohort)) * 12 + extract(month FROM age(a.month, c.cohort)))::int AS month_no, count(DISTINCT a.customer) AS users FROM c JOIN a USING (customer) GROUP BY 1, 2
SELECT usr, count(*) FILTER (WHERE kind = 'view') AS views, count(*) FILTER (WHERE kind = 'cart') AS carts, count(*) FILTER (WHERE kind = 'buy') AS buys FROM events GROUP BY usr
WITH v AS (SELECT usr, min(at) AS t FROM events WHERE kind = 'view' GROUP BY usr), c AS (SELECT e.usr, min(e.at) AS t FROM events e JOIN v ON v.usr = e.usr AND e.at >= v.t WHERE e.kind = 'cart' GROUP BY e.usr), b AS (SELECT e.usr, min(e.at) AS t FROM events e JOIN c ON c.usr = e.usr AND e.at >= c.t WHERE e.kind = 'buy' GROUP BY e.usr) SELECT (SELECT count(*) FROM v) AS viewed, (SELECT count(*) FROM c) AS carted, (SELECT count(*) FROM b) AS bought
SELECT usr, at, kind, sum(CASE WHEN gap > interval '30 minutes' OR gap IS NULL THEN 1 ELSE 0 END) OVER (PARTITION BY usr ORDER BY at, id) AS session_no FROM (SELECT *, at - lag(at) OVER (PARTITION BY usr ORDER BY at, id) AS gap FROM events) e
WITH s AS (SELECT *, sum(fresh) OVER (PARTITION BY usr ORDER BY at, id) AS sno FROM (SELECT *, CASE WHEN at - lag(at) OVER (PARTITION BY usr ORDER BY at, id) <= interval '30 minutes' THEN 0 ELSE 1 END AS fresh FROM events) x) SELECT usr, sno, min(at) AS began, max(at) AS ended, count(*) AS n FROM s GROUP BY usr, sno
SELECT usr, min(day) AS from_day, max(day) AS to_day, count(*) AS streak FROM (SELECT usr, day, day - (row_number() OVER (PARTITION BY usr ORDER BY day))::int AS grp FROM (SELECT DISTINCT usr, at::date AS day FROM events) d) g GROUP BY usr, grp
SELECT customer, ntile(5) OVER (ORDER BY max(placed), customer) AS r, ntile(5) OVER (ORDER BY count(*), customer) AS f, ntile(5) OVER (ORDER BY sum(total), customer) AS m FROM orders GROUP BY customer
SELECT p, revenue, sum(revenue) OVER (ORDER BY revenue DESC, p) / NULLIF(sum(revenue) OVER (), 0) AS cum_share FROM (SELECT product AS p, sum(qty * unit) AS revenue FROM items GROUP BY product) r
SELECT p, CASE WHEN share <= 0.8 THEN 'A' WHEN share <= 0.95 THEN 'B' ELSE 'C' END AS class FROM (SELECT p, sum(r) OVER (ORDER BY r DESC, p) / NULLIF(sum(r) OVER (), 0) AS share FROM (SELECT product AS p, sum(qty * unit) AS r FROM items GROUP BY 1) x) y
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY total) AS median, percentile_cont(ARRAY[0.25, 0.75]) WITHIN GROUP (ORDER BY total) AS quartiles, mode() WITHIN GROUP (ORDER BY status) AS usual FROM orders
SELECT region, percentile_disc(0.9) WITHIN GROUP (ORDER BY o.total) AS p90 FROM orders o JOIN customers c ON c.id = o.customer GROUP BY region
SELECT DISTINCT ON (customer) customer, id, placed, total FROM orders ORDER BY customer, placed DESC, id
SELECT c.id, c.name, o.id AS last_order, o.total FROM customers c LEFT JOIN LATERAL (SELECT id, total FROM orders WHERE customer = c.id ORDER BY placed DESC, id DESC LIMIT 1) o ON true
SELECT c.id, c.name, (SELECT count(*) FROM orders o WHERE o.customer = c.id) AS n, (SELECT max(placed) FROM orders o WHERE o.customer = c.id AND status = 'paid') AS last_paid FROM customers c
SELECT c.* FROM customers c WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.id)
SELECT id, name FROM customers WHERE id NOT IN (SELECT customer FROM orders WHERE customer IS NOT NULL)
SELECT o.id FROM orders o WHERE o.total > (SELECT avg(total) FROM orders o2 WHERE o2.customer = o.customer)
SELECT e.name, e.salary, d.avg FROM employees e JOIN (SELECT dept, avg(salary) AS avg FROM employees GROUP BY dept) d USING (dept) WHERE e.salary > d.avg
SELECT name, dept, salary, salary - avg(salary) OVER (PARTITION BY dept) AS above, rank() OVER (PARTITION BY dept ORDER BY salary DESC) AS place FROM employees
SELECT dept, max(salary) AS second FROM employees e WHERE salary < (SELECT max(salary) FROM employees WHERE dept = e.dept) GROUP BY dept
SELECT DISTINCT salary FROM employees ORDER BY salary DESC NULLS LAST LIMIT 3
WITH RECURSIVE chain AS (SELECT id, boss, name, 1 AS depth, name::text AS path FROM employees WHERE boss IS NULL UNION ALL SELECT e.id, e.boss, e.name, c.depth + 1, c.path || ' > ' || e.name FROM employees e JOIN chain c ON e.boss = c.id WHERE c.depth < 12) SELECT * FROM chain
WITH RECURSIVE sub(root, id, d) AS (SELECT id, id, 0 FROM employees UNION ALL SELECT s.root, e.id, s.d + 1 FROM sub s JOIN employees e ON e.boss = s.id WHERE s.d < 10) SELECT root, count(*) - 1 AS reports, sum(salary) AS cost FROM sub JOIN employees USING (id) GROUP BY root
WITH RECURSIVE t(id, parent, top) AS (SELECT id, parent, name FROM categories WHERE parent IS NULL UNION ALL SELECT c.id, c.parent, t.top FROM categories c JOIN t ON c.parent = t.id WHERE c.id <> t.id) SELECT t.top, count(p.id) AS products, avg(p.price) AS price FROM t LEFT JOIN products p ON p.category = t.id GROUP BY t.top
WITH RECURSIVE reach AS (SELECT src, dst FROM edges UNION SELECT r.src, e.dst FROM reach r JOIN edges e ON e.src = r.dst) SELECT * FROM reach
WITH RECURSIVE p(src, dst, w, hops) AS (SELECT src, dst, w, 1 FROM edges UNION ALL SELECT p.src, e.dst, p.w + e.w, p.hops + 1 FROM p JOIN edges e ON e.src = p.dst WHERE p.hops < 4) SELECT src, dst, min(w) AS dist, min(hops) AS hops FROM p GROUP BY src, dst
SELECT a.src, a.dst FROM edges a JOIN edges b ON b.src = a.dst AND b.dst = a.src WHERE a.src < a.dst
SELECT a.src, count(*) AS triangles FROM edges a JOIN edges b ON b.src = a.dst JOIN edges c ON c.src = b.dst AND c.dst = a.src GROUP BY a.src
SELECT coalesce(o.src, i.dst) AS node, coalesce(o.n, 0) AS out_deg, coalesce(i.n, 0) AS in_deg FROM (SELECT src, count(*) AS n FROM edges GROUP BY src) o FULL JOIN (SELECT dst, count(*) AS n FROM edges GROUP BY dst) i ON o.src = i.dst
SELECT coalesce(region, 'all regions') AS region, coalesce(segment, 'all') AS segment, count(*) FROM customers GROUP BY ROLLUP (region, segment)
SELECT CASE WHEN grouping(channel) = 1 THEN 'total' ELSE channel END AS channel, CASE WHEN grouping(status) = 1 THEN 'total' ELSE status END AS status, sum(total) FROM orders GROUP BY CUBE (channel, status)
SELECT grouping(c.region, o.channel) AS g, c.region, o.channel, sum(o.total) AS s, count(DISTINCT o.customer) AS buyers FROM orders o JOIN customers c ON c.id = o.customer GROUP BY GROUPING SETS ((c.region, o.channel), (c.region), ())
SELECT date_trunc('month', placed) AS m, sum(total) FILTER (WHERE channel = 'web') AS web, sum(total) FILTER (WHERE channel = 'shop') AS shop, sum(CASE WHEN channel NOT IN ('web', 'shop') THEN total ELSE 0 END) AS other FROM orders GROUP BY 1
SELECT o.id, x.name, x.value FROM orders o CROSS JOIN LATERAL (VALUES ('total', o.total::text), ('status', o.status), ('coupon', o.coupon)) AS x(name, value) WHERE x.value IS NOT NULL
SELECT tag, count(*) AS n, avg(price) AS price FROM products, unnest(tags) AS tag GROUP BY tag
SELECT p.id, t.tag, t.n FROM products p CROSS JOIN LATERAL unnest(p.tags) WITH ORDINALITY AS t(tag, n)
SELECT id, array_length(tags, 1) AS n, tags[1] AS first, 'new' = ANY (tags) AS is_new, cardinality(tags) AS c FROM products WHERE tags && ARRAY['sale', 'new']
SELECT id, attrs->>'color' AS color, (attrs->>'weight')::numeric AS weight, attrs ? 'size' AS sized, attrs @> '{"eco": true}' AS eco FROM products
SELECT attrs->>'color' AS color, count(*), jsonb_agg(name ORDER BY id) AS names, jsonb_object_agg(id::text, price ORDER BY id) AS prices FROM products GROUP BY 1
SELECT e.key, count(*) FROM events, jsonb_each_text(CASE jsonb_typeof(props) WHEN 'object' THEN props ELSE '{}' END) AS e GROUP BY e.key
SELECT id, k FROM events, jsonb_object_keys(CASE WHEN jsonb_typeof(props) = 'object' THEN props ELSE '{}' END) AS k
SELECT c.id, jsonb_build_object('name', c.name, 'orders', coalesce(jsonb_agg(jsonb_build_object('id', o.id, 'total', o.total) ORDER BY o.id) FILTER (WHERE o.id IS NOT NULL), '[]')) AS doc FROM customers c LEFT JOIN orders o ON o.customer = c.id GROUP BY c.id, c.name
SELECT c.id, (SELECT jsonb_agg(to_jsonb(o) ORDER BY o.id) FROM orders o WHERE o.customer = c.id) AS orders FROM customers c
SELECT id, to_jsonb(c) - 'email' AS doc FROM customers c
SELECT row_to_json(t) AS j FROM (SELECT region, count(*) AS n FROM customers GROUP BY region) t
SELECT id, jt.* FROM events, JSON_TABLE(props, '$' COLUMNS (page text PATH '$.page', n int PATH '$.n' DEFAULT 0 ON EMPTY)) AS jt
SELECT id, JSON_VALUE(props, '$.page') AS page, JSON_QUERY(props, '$.list') AS list, JSON_EXISTS(props, '$.n') AS has FROM events
SELECT kind, JSON_ARRAYAGG(id ORDER BY id) AS ids FROM events GROUP BY kind
SELECT kind, JSON_OBJECTAGG(id: session RETURNING jsonb) AS m FROM events GROUP BY kind
SELECT kind, json_object_agg(id, at ORDER BY id) AS m FROM events GROUP BY kind
SELECT props #>> '{a,b}' AS ab, jsonb_path_query_first(props, '$.list[0]') AS first, jsonb_array_length(CASE WHEN jsonb_typeof(props->'list') = 'array' THEN props->'list' ELSE '[]' END) AS n FROM events
SELECT id, x.v FROM events, jsonb_path_query(props, '$.list[*]') AS x(v)
SELECT id, r.a, r.b FROM events, jsonb_to_record(props) AS r(a text, b int) WHERE jsonb_typeof(props) = 'object' AND NOT props ? 'b'
SELECT string_agg(name, ', ' ORDER BY name, id) AS names FROM customers WHERE active
SELECT region, string_agg(DISTINCT segment, '/' ORDER BY segment) AS segs, array_agg(DISTINCT segment) AS a FROM customers GROUP BY region
SELECT lower(split_part(email, '@', 2)) AS domain, count(*) FROM customers GROUP BY 1 HAVING count(*) > 1
SELECT email, count(*), min(id), max(id) FROM customers GROUP BY email HAVING count(*) > 1
SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY email ORDER BY created_at DESC NULLS LAST, id DESC) AS rn FROM customers) q WHERE rn = 1
SELECT id, word FROM logs, regexp_split_to_table(lower(line), '\s+') AS word WHERE word <> ''
SELECT word, count(*) AS n FROM logs, regexp_split_to_table(lower(line), '[^a-z]+') AS word WHERE length(word) > 2 GROUP BY word ORDER BY n DESC, word LIMIT 10
SELECT id, (regexp_match(line, '(\d+) ms'))[1]::int AS ms, substring(line FROM 'code=(\w+)') AS code, line ~* 'error' AS bad FROM logs
SELECT id, substring(line SIMILAR '%#"err#"%' ESCAPE '#') AS e, trim(TRAILING '.' FROM line) AS t, trim(BOTH FROM line) AS b, overlay(line PLACING '**' FROM 1 FOR 2) AS o, position('e' IN line) AS p FROM logs
SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24') AS hour, level, count(*) FROM logs GROUP BY 1, 2
SELECT extract(dow FROM placed) AS dow, extract(hour FROM placed) AS hour, count(*) FROM orders GROUP BY 1, 2
SELECT date_bin('15 minutes', ts, timestamp '2026-01-01') AS bin, device, metric, avg(value) AS avg, min(value), max(value), count(*) FROM readings GROUP BY 1, 2, 3
SELECT device, ts, value, value - lag(value) OVER w AS delta, avg(value) OVER (w ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING) AS smooth FROM (SELECT DISTINCT ON (device, ts) * FROM readings WHERE metric = 'temp' ORDER BY device, ts, value) r WINDOW w AS (PARTITION BY device ORDER BY ts)
SELECT device, ts, metric, last_value(value) OVER (PARTITION BY device, metric ORDER BY ts, value ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS v, first_value(value) OVER (PARTITION BY device, metric ORDER BY ts, value) AS f FROM readings
SELECT DISTINCT ON (device, metric) device, metric, ts, value FROM readings ORDER BY device, metric, ts DESC, value DESC
SELECT d.site, r.metric, round(avg(r.value)::numeric, 2) AS avg, count(DISTINCT r.device) AS devices FROM readings r JOIN devices d ON d.id = r.device GROUP BY 1, 2 HAVING count(*) >= 2
SELECT r.* FROM readings r JOIN devices d ON d.id = r.device AND d.during @> r.ts
SELECT a.id, b.id AS other FROM devices a JOIN devices b ON a.id < b.id AND a.during && b.during
SELECT site, range_agg(during) AS spans FROM devices GROUP BY site
SELECT width_bucket(total, 0, 500, 10) AS bucket, count(*), min(total), max(total) FROM orders WHERE total IS NOT NULL GROUP BY 1
SELECT corr(qty, unit)::numeric(10,6) AS c, regr_slope(qty, unit)::numeric(10,6) AS s, regr_count(qty, unit) AS n FROM items
SELECT product, stddev(qty) AS sd, variance(unit) AS v, var_pop(qty) AS vp, stddev_pop(unit) AS sp FROM items GROUP BY product
SELECT symbol, day, close, close / NULLIF(lag(close) OVER w, 0) - 1 AS ret, avg(close) OVER (w ROWS 4 PRECEDING) AS ma5, max(high) OVER (w ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS hi, sum(volume) OVER w AS vol FROM prices WINDOW w AS (PARTITION BY symbol ORDER BY day, close)
SELECT symbol, (array_agg(open ORDER BY day, open))[1] AS open, max(high) AS high, min(low) AS low, (array_agg(close ORDER BY day DESC, close))[1] AS close, sum(volume) AS volume, sum(close * volume) / NULLIF(sum(volume), 0) AS vwap FROM prices GROUP BY symbol
SELECT symbol, date_trunc('week', day)::date AS week, min(low), max(high), sum(volume) FROM prices GROUP BY 1, 2
SELECT a.id, a.owner, a.opening + coalesce(i.s, 0) - coalesce(o.s, 0) AS balance FROM accounts a LEFT JOIN (SELECT dst, sum(amount) AS s FROM transfers GROUP BY dst) i ON i.dst = a.id LEFT JOIN (SELECT src, sum(amount) AS s FROM transfers GROUP BY src) o ON o.src = a.id
SELECT account, on_day, id, sum(delta) OVER (PARTITION BY account ORDER BY on_day, id) AS balance FROM (SELECT src AS account, on_day, id, -amount AS delta FROM transfers UNION ALL SELECT dst, on_day, id, amount FROM transfers) m
SELECT account, sum(delta) AS net FROM (SELECT src AS account, -amount AS delta FROM transfers UNION ALL SELECT dst, amount FROM transfers) m GROUP BY account HAVING sum(delta) < 0
SELECT prio, count(*) AS n, avg(closed - opened) AS mean, percentile_disc(0.5) WITHIN GROUP (ORDER BY closed - opened) AS med, max(closed - opened) AS longest FROM tickets WHERE closed IS NOT NULL GROUP BY prio
SELECT agent, avg(score) AS score, count(*) FILTER (WHERE closed IS NULL) AS open, bool_or(prio = 'urgent') AS urgent, max(prio) AS worst FROM tickets GROUP BY agent
SELECT t.agent, t.prio, count(*), rank() OVER (PARTITION BY t.prio ORDER BY count(*) DESC) FROM tickets t GROUP BY t.agent, t.prio
SELECT d::date AS day, (SELECT count(*) FROM tickets t WHERE t.opened::date <= d::date AND (t.closed IS NULL OR t.closed::date > d::date)) AS backlog FROM generate_series(timestamp '2026-01-01', timestamp '2026-01-14', interval '1 day') AS d
SELECT at, sum(n) OVER (ORDER BY at, n RANGE UNBOUNDED PRECEDING) AS open FROM (SELECT opened AS at, 1 AS n FROM tickets UNION ALL SELECT closed, -1 FROM tickets WHERE closed IS NOT NULL) x
SELECT month, sum(mrr) AS mrr FROM (SELECT generate_series(date_trunc('month', started), date_trunc('month', coalesce(ended, date '2026-06-01')), interval '1 month') AS month, mrr FROM subs WHERE started IS NOT NULL) s GROUP BY month
SELECT plan, count(*) FILTER (WHERE ended IS NULL) AS live, count(*) FILTER (WHERE ended IS NOT NULL) AS churned, round(avg(ended - started), 1) AS days FROM subs GROUP BY plan
SELECT s.customer, s.plan, lead(s.plan) OVER w AS next_plan, lead(s.started) OVER w - s.ended AS gap FROM subs s WINDOW w AS (PARTITION BY s.customer ORDER BY s.started, s.id)
SELECT old, new, count(*) FROM (SELECT plan AS old, lead(plan) OVER (PARTITION BY customer ORDER BY started, id) AS new FROM subs) x WHERE new IS NOT NULL AND new <> old GROUP BY old, new
SELECT t.region, t.month, t.goal, coalesce(a.actual, 0) AS actual, coalesce(a.actual, 0) >= t.goal AS met FROM targets t LEFT JOIN (SELECT c.region, date_trunc('month', o.placed)::date AS month, sum(o.total) AS actual FROM orders o JOIN customers c ON c.id = o.customer GROUP BY 1, 2) a USING (region, month)
SELECT o.id, o.total, coalesce(p.paid, 0) AS paid, o.total - coalesce(p.paid, 0) AS due FROM orders o LEFT JOIN (SELECT order_id, sum(amount) FILTER (WHERE ok) AS paid FROM payments GROUP BY order_id) p ON p.order_id = o.id WHERE o.total > coalesce(p.paid, 0)
SELECT o.id FROM orders o WHERE o.total IS DISTINCT FROM (SELECT sum(i.qty * i.unit) FROM items i WHERE i.order_id = o.id)
SELECT method, count(*), sum(amount), sum(amount) / sum(sum(amount)) OVER () AS share FROM payments WHERE ok GROUP BY method HAVING sum(amount) <> 0
SELECT a.product AS p1, b.product AS p2, count(*) AS together FROM items a JOIN items b ON a.order_id = b.order_id AND a.product < b.product GROUP BY 1, 2 HAVING count(*) > 1
SELECT p.id FROM products p WHERE NOT EXISTS (SELECT 1 FROM customers c WHERE c.active AND NOT EXISTS (SELECT 1 FROM orders o JOIN items i ON i.order_id = o.id WHERE o.customer = c.id AND i.product = p.id))
SELECT c.id, c.name FROM customers c WHERE EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.id AND o.channel = 'web') AND EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.id AND o.channel = 'shop')
SELECT customer FROM orders WHERE channel = 'web' INTERSECT SELECT customer FROM orders WHERE channel = 'shop' EXCEPT SELECT customer FROM orders WHERE status = 'cancelled'
SELECT name FROM customers UNION SELECT owner FROM accounts UNION SELECT name FROM employees
SELECT 'customers' AS what, count(*) AS n FROM customers UNION ALL SELECT 'orders', count(*) FROM orders UNION ALL SELECT 'items', count(*) FROM items ORDER BY n DESC
SELECT count(*) AS n, count(DISTINCT customer) AS customers, sum(total) AS revenue, max(placed) AS last FROM orders LIMIT 100
SELECT dept, stddev(salary) FROM employees GROUP BY dept ORDER BY dept LIMIT 3 OFFSET 1+1
SELECT c.region, c.name, x.total FROM customers c JOIN LATERAL (SELECT o.total FROM orders o WHERE o.customer = c.id AND o.total IS NOT NULL ORDER BY o.total DESC, o.id LIMIT 2) x ON true
SELECT id, name, CASE WHEN total >= 500 THEN 'gold' WHEN total >= 100 THEN 'silver' ELSE 'bronze' END AS tier FROM (SELECT c.id, c.name, coalesce(sum(o.total), 0) AS total FROM customers c LEFT JOIN orders o ON o.customer = c.id AND o.status = 'paid' GROUP BY c.id) q
SELECT count(*) FROM orders WHERE placed > now() - interval '7 days'
SELECT date_trunc('hour', at) AS h, count(*) FROM events WHERE at >= now() - interval '24 hours' GROUP BY 1
SELECT c.id FROM customers c WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.id AND o.placed > now() - interval '30 days')
SELECT id, CURRENT_DATE - hired AS days, extract(year FROM age(CURRENT_DATE, hired)) AS years FROM employees
SELECT id, closed IS NULL AND opened < now() - interval '2 days' AS late FROM tickets
SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY usr ORDER BY at DESC, id DESC) AS rn FROM events WHERE at > now() - interval '1 day') q WHERE rn <= 2
SELECT CASE WHEN age < interval '1 day' THEN 'new' WHEN age < interval '7 days' THEN 'week' ELSE 'old' END AS bucket, count(*) FROM (SELECT now() - placed AS age FROM orders) q GROUP BY 1
SELECT to_jsonb(p) AS doc FROM products p
SELECT count(p) FROM products p
SELECT o FROM orders o WHERE o.total > 10
SELECT count(o) AS n FROM orders o LEFT JOIN payments p ON p.order_id = o.id WHERE p IS NULL
SELECT row_to_json(q) FROM (SELECT o.id, o.total, (SELECT json_agg(i ORDER BY i.line, i.product, i.qty, i.unit) FROM items i WHERE i.order_id = o.id) AS items FROM orders o) q
SELECT json_build_object('type', 'FeatureCollection', 'features', json_agg(json_build_object('id', id, 'name', name) ORDER BY id)) FROM customers
SELECT x.a, x.b FROM ROWS FROM (generate_series(1, 3), unnest(ARRAY['a', 'b'])) AS x(a, b), customers c WHERE c.id = x.a
SELECT p.id, f.* FROM products p CROSS JOIN LATERAL ROWS FROM (unnest(p.tags), generate_series(1, 2)) AS f(tag, n)
SELECT a.id, a.n FROM (SELECT id, count(*) OVER (PARTITION BY region) AS n FROM customers) a WHERE a.n > 1
SELECT id, total, total::numeric / NULLIF(sum(total::numeric) OVER (PARTITION BY customer), 0) AS part FROM orders
SELECT id, name, salary, cume_dist() OVER w AS cd, percent_rank() OVER w AS pr, nth_value(name, 2) OVER (w ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS second FROM employees WINDOW w AS (PARTITION BY dept ORDER BY salary, id)
SELECT id, usr, at, count(*) OVER (PARTITION BY usr ORDER BY at RANGE BETWEEN interval '1 hour' PRECEDING AND CURRENT ROW) AS last_hour FROM events
SELECT id, usr, count(DISTINCT kind) AS k FROM events GROUP BY GROUPING SETS ((id, usr), (usr))
SELECT usr, kind, count(*) AS n, round(100.0 * count(*) / sum(count(*)) OVER (PARTITION BY usr), 2) AS pct FROM events GROUP BY usr, kind
SELECT array_agg(kind ORDER BY at, id) AS path, usr FROM events GROUP BY usr
SELECT path, count(*) AS n FROM (SELECT usr, string_agg(kind, '>' ORDER BY at, id) AS path FROM events GROUP BY usr) q GROUP BY path
SELECT e1.usr, e1.kind AS a, e2.kind AS b, count(*) FROM events e1 JOIN events e2 ON e1.usr = e2.usr AND e2.at > e1.at AND e2.at < e1.at + interval '1 hour' GROUP BY 1, 2, 3
SELECT kind, next_kind, count(*), avg(dt) FROM (SELECT kind, lead(kind) OVER w AS next_kind, lead(at) OVER w - at AS dt FROM events WINDOW w AS (PARTITION BY usr ORDER BY at, id)) q GROUP BY kind, next_kind
SELECT d.day::date AS day, count(DISTINCT e.usr) AS wau FROM generate_series(timestamp '2026-01-01', timestamp '2026-01-10', interval '1 day') d(day) LEFT JOIN events e ON e.at >= d.day - interval '6 days' AND e.at < d.day + interval '1 day' GROUP BY 1
SELECT a.usr FROM (SELECT DISTINCT usr FROM events WHERE kind = 'view') a LEFT JOIN (SELECT DISTINCT usr FROM events WHERE kind = 'buy') b USING (usr) WHERE b.usr IS NULL
SELECT session, min(at), max(at), max(at) - min(at) AS took, (array_agg(kind ORDER BY at, id))[1] AS first_kind, (array_agg(kind ORDER BY at DESC, id DESC))[1] AS last_kind FROM events WHERE session IS NOT NULL GROUP BY session
WITH a AS (SELECT usr, count(*) AS n FROM events GROUP BY usr), b AS (SELECT avg(n) AS mean, stddev(n) AS sd FROM a) SELECT a.usr, a.n, (a.n - b.mean) / NULLIF(b.sd, 0) AS z FROM a, b
WITH o AS (SELECT *, total - avg(total::numeric) OVER () AS dev FROM orders) SELECT id, dev FROM o WHERE abs(dev) > (SELECT 1 * stddev(total::numeric) FROM orders)
SELECT id FROM orders WHERE (customer, placed) IN (SELECT customer, max(placed) FROM orders GROUP BY customer)
SELECT id FROM orders WHERE (status, channel) = ('paid', 'web') OR (total, id) > (100, 5)
SELECT id FROM products WHERE price > ALL (SELECT price FROM products WHERE category = 1 AND price IS NOT NULL)
SELECT id FROM products WHERE price >= ANY (SELECT avg(price) FROM products GROUP BY category)
SELECT id, price <> ALL (ARRAY[1.00, 2.50]) AS odd, category = ANY ('{1,2}') AS low FROM products
SELECT c.id, EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.id) AS buyer, c.id IN (SELECT referrer FROM customers WHERE referrer IS NOT NULL) AS refers FROM customers c
SELECT c.name, r.name AS referred_by FROM customers c LEFT JOIN customers r ON r.id = c.referrer
SELECT r.id, count(c.id) AS referred, sum(o.total) AS their_total FROM customers r JOIN customers c ON c.referrer = r.id LEFT JOIN orders o ON o.customer = c.id GROUP BY r.id
SELECT m.name AS boss, count(*) AS reports, min(e.salary), max(e.salary), array_agg(e.name ORDER BY e.id) FROM employees e JOIN employees m ON m.id = e.boss GROUP BY m.id, m.name HAVING count(*) >= 1
SELECT e.name FROM employees e JOIN employees m ON m.id = e.boss WHERE e.salary > m.salary
SELECT dept, name, salary FROM (SELECT e.*, dense_rank() OVER (PARTITION BY dept ORDER BY salary DESC NULLS LAST) AS r FROM employees e) q WHERE r <= 2
SELECT dept FROM employees GROUP BY dept HAVING avg(salary) > (SELECT avg(salary) FROM employees)
SELECT dept, count(*) FROM employees GROUP BY dept HAVING count(*) = (SELECT max(n) FROM (SELECT count(*) AS n FROM employees GROUP BY dept) q)
SELECT DISTINCT e.dept FROM employees e WHERE e.hired = (SELECT min(hired) FROM employees)
SELECT extract(year FROM hired)::int AS y, count(*) AS hired, sum(count(*)) OVER (ORDER BY extract(year FROM hired)::int) AS cum FROM employees GROUP BY 1
SELECT id, name FROM employees ORDER BY salary DESC NULLS LAST, id FETCH FIRST 3 ROWS WITH TIES
SELECT id, name, salary FROM employees ORDER BY salary DESC NULLS LAST, id OFFSET 2 LIMIT 3
(SELECT id, 'top' AS w FROM orders ORDER BY total DESC NULLS LAST, id LIMIT 2) UNION ALL (SELECT id, 'bottom' FROM orders ORDER BY total NULLS LAST, id LIMIT 2)
SELECT avg(total) FROM (SELECT total::numeric FROM orders ORDER BY total::numeric DESC NULLS LAST, id LIMIT 5) q
SELECT * FROM (VALUES (1, 'low'), (2, 'mid'), (3, 'high')) AS v(k, label) LEFT JOIN (SELECT least(3, 1 + qty / 3) AS k, count(*) AS n FROM items GROUP BY 1) q USING (k)
SELECT v.label, count(o.id) FROM (VALUES (0, 50, 'small'), (50, 200, 'medium'), (200, NULL, 'large')) v(lo, hi, label) LEFT JOIN orders o ON o.total >= v.lo AND (o.total < v.hi OR v.hi IS NULL) GROUP BY v.label
SELECT id FROM orders WHERE (customer, id) <> (VALUES (1, 1))
SELECT o.id FROM orders o WHERE o.customer IN (VALUES (1), (2), (3))
SELECT x FROM (VALUES (3), (1), (2)) AS v(x) WHERE x IN (SELECT customer FROM orders) ORDER BY x LIMIT 2
SELECT id, greatest(placed, shipped) AS last, least(total, 100) AS capped, nullif(coupon, '') AS coupon, coalesce(shipped - placed, interval '0') AS took FROM orders
SELECT status, count(*) FROM orders WHERE coupon IS NULL OR coupon LIKE 'X%' GROUP BY status HAVING bool_and(total > 0) OR every(shipped IS NULL)
SELECT id, total BETWEEN 10 AND 100 AS mid, total NOT BETWEEN SYMMETRIC 100 AND 10 AS ex, status IS DISTINCT FROM 'paid' AS open FROM orders
SELECT o.id, i.line, i.qty * i.unit AS gross, sum(i.qty * i.unit) OVER (PARTITION BY o.id) AS order_gross FROM orders o JOIN items i ON i.order_id = o.id
SELECT o.id, sum(i.qty * i.unit * (1 - coalesce(i.discount, 0)))::numeric(12,2) AS net, round(sum(i.qty * i.unit) * 1.19, 2) AS gross FROM orders o JOIN items i ON i.order_id = o.id GROUP BY o.id
SELECT p.category, sum((p.price - p.cost) * i.qty) AS margin, sum((p.price - p.cost) * i.qty) / NULLIF(sum(p.price * i.qty), 0) AS pct FROM items i JOIN products p ON p.id = i.product GROUP BY p.category
SELECT p.id, p.price, p.price - avg(p.price) OVER (PARTITION BY p.category) AS vs_avg, max(p.price) OVER (PARTITION BY p.category) AS top, count(*) OVER (PARTITION BY p.category) AS n FROM products p
SELECT c.name, p.name AS best, p.price FROM categories c LEFT JOIN LATERAL (SELECT * FROM products WHERE category = c.id ORDER BY price DESC NULLS LAST, id LIMIT 1) p ON true
SELECT parent.name, count(child.id) FROM categories parent LEFT JOIN categories child ON child.parent = parent.id GROUP BY parent.id, parent.name
WITH RECURSIVE up(leaf, id, parent, n) AS (SELECT id, id, parent, 1 FROM categories UNION ALL SELECT u.leaf, c.id, c.parent, u.n + 1 FROM up u JOIN categories c ON c.id = u.parent WHERE u.n < 8) SELECT leaf, max(n) AS depth FROM up GROUP BY leaf
WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT t.n, count(o.id) FROM t LEFT JOIN orders o ON o.customer = t.n GROUP BY t.n
WITH RECURSIVE c AS (SELECT id, parent, ARRAY[id] AS path, false AS cycle FROM categories WHERE parent IS NULL UNION ALL SELECT x.id, x.parent, c.path || x.id, x.id = ANY (c.path) FROM categories x JOIN c ON x.parent = c.id WHERE NOT c.cycle) SELECT * FROM c
WITH RECURSIVE g(src, dst) AS (SELECT src, dst FROM edges UNION ALL SELECT g.src, e.dst FROM g JOIN edges e ON e.src = g.dst) CYCLE src, dst SET looped USING path SELECT src, dst, looped FROM g
WITH RECURSIVE b(id, name, boss) AS (SELECT id, name, boss FROM employees WHERE boss IS NULL UNION ALL SELECT e.id, e.name, e.boss FROM employees e JOIN b ON e.boss = b.id WHERE e.id <> e.boss) SEARCH DEPTH FIRST BY id SET o SELECT id, name FROM b
WITH t AS MATERIALIZED (SELECT customer, sum(total) AS s FROM orders GROUP BY customer) SELECT a.customer, b.customer AS rival FROM t a JOIN t b ON a.s < b.s
WITH t AS NOT MATERIALIZED (SELECT * FROM orders WHERE total > 0) SELECT (SELECT count(*) FROM t) AS n, (SELECT sum(total) FROM t) AS s, (SELECT count(DISTINCT customer) FROM t) AS c
WITH x AS (SELECT customer, count(*) AS n FROM orders GROUP BY 1), y AS (SELECT n, count(*) AS customers FROM x GROUP BY n) SELECT n, customers, sum(customers) OVER (ORDER BY n DESC) AS at_least FROM y
SELECT site, model, count(*), count(*) FILTER (WHERE installed < date '2026-01-01') AS old FROM devices GROUP BY CUBE (site, model) HAVING count(*) > 1
SELECT d.id, d.site, l.ts, l.value FROM devices d CROSS JOIN LATERAL (SELECT ts, value FROM readings r WHERE r.device = d.id AND r.metric = 'temp' ORDER BY ts DESC, value DESC LIMIT 1) l
SELECT device, metric, count(*) FILTER (WHERE value > 20) AS hot, max(value) - min(value) AS spread FROM readings GROUP BY 1, 2
SELECT device, ts, value FROM readings r WHERE metric = 'temp' AND value = (SELECT max(value) FROM readings x WHERE x.device = r.device AND x.metric = 'temp')
SELECT r.device, date_trunc('day', r.ts) AS d, max(r.value) FILTER (WHERE r.metric = 'temp') AS temp, max(r.value) FILTER (WHERE r.metric = 'hum') AS hum FROM readings r GROUP BY 1, 2
SELECT device, ts, lead(ts) OVER w AS until, value FROM readings WHERE metric = 'state' WINDOW w AS (PARTITION BY device ORDER BY ts, value)
SELECT device, grp, min(ts), max(ts), count(*) FROM (SELECT device, ts, value, row_number() OVER (PARTITION BY device ORDER BY ts, value) - row_number() OVER (PARTITION BY device, value > 20 ORDER BY ts, value) AS grp FROM readings WHERE metric = 'temp') q GROUP BY device, grp, value > 20
SELECT device, ts, value, count(value) OVER (PARTITION BY device ORDER BY ts, metric, value) AS filled_grp FROM readings
SELECT device, ts, max(value) OVER (PARTITION BY device, g) AS filled FROM (SELECT device, ts, value, count(value) OVER (PARTITION BY device ORDER BY ts, metric, value) AS g FROM readings) q
SELECT a.device, a.ts, b.ts AS nearest FROM readings a CROSS JOIN LATERAL (SELECT ts FROM readings b WHERE b.device <> a.device AND b.ts <= a.ts ORDER BY b.ts DESC LIMIT 1) b
SELECT symbol, day, close, rank() OVER (PARTITION BY day ORDER BY volume DESC NULLS LAST) AS r FROM prices
SELECT symbol, count(*) FILTER (WHERE close > open) AS up, count(*) FILTER (WHERE close < open) AS down, regr_r2(close, volume) IS NULL AS flat FROM prices GROUP BY symbol
SELECT * FROM (SELECT symbol, day, close, close > lag(close) OVER w AND close > lead(close) OVER w AS peak FROM prices WINDOW w AS (PARTITION BY symbol ORDER BY day, close)) q WHERE peak
SELECT symbol, day, sum(close * volume) OVER w / NULLIF(sum(volume) OVER w, 0) AS vwap FROM prices WINDOW w AS (PARTITION BY symbol ORDER BY day, close, volume)
SELECT symbol, day, stddev(close) OVER (PARTITION BY symbol ORDER BY day, close ROWS 4 PRECEDING) AS vol5, min(low) OVER (PARTITION BY symbol ORDER BY day, low ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING) AS floor3 FROM prices
SELECT p.symbol, p.day, p.close, m.avg FROM prices p JOIN (SELECT day, avg(close) AS avg FROM prices GROUP BY day) m USING (day) WHERE p.close > m.avg
SELECT src, dst, sum(amount) AS flow, count(*) FROM transfers GROUP BY src, dst HAVING sum(amount) > 10
SELECT least(src, dst) AS a, greatest(src, dst) AS b, sum(CASE WHEN src < dst THEN amount ELSE -amount END) AS net FROM transfers GROUP BY 1, 2
SELECT t.id, t.amount, a.owner AS from_owner, b.owner AS to_owner FROM transfers t LEFT JOIN accounts a ON a.id = t.src LEFT JOIN accounts b ON b.id = t.dst
SELECT a.id FROM accounts a WHERE a.id NOT IN (SELECT src FROM transfers WHERE src IS NOT NULL UNION SELECT dst FROM transfers WHERE dst IS NOT NULL)
SELECT on_day, sum(amount) AS s, sum(sum(amount)) OVER (ORDER BY on_day RANGE BETWEEN interval '2 days' PRECEDING AND CURRENT ROW) AS s3 FROM transfers WHERE on_day IS NOT NULL GROUP BY on_day
SELECT agent, avg(score) FILTER (WHERE prio >= 'high') AS hard, avg(score) FILTER (WHERE prio < 'high') AS easy, array_agg(DISTINCT prio) AS prios FROM tickets GROUP BY agent
SELECT prio, agent, score, ntile(4) OVER (PARTITION BY prio ORDER BY score, id) AS q, first_value(agent) OVER (PARTITION BY prio ORDER BY score DESC NULLS LAST, id) AS best FROM tickets
SELECT t1.id, count(t2.id) AS concurrent FROM tickets t1 LEFT JOIN tickets t2 ON t2.id <> t1.id AND t2.opened < coalesce(t1.closed, 'infinity') AND coalesce(t2.closed, 'infinity') > t1.opened GROUP BY t1.id
SELECT t1.id, t2.id AS overlapping FROM tickets t1, tickets t2 WHERE t1.id < t2.id AND t1.agent = t2.agent AND (t1.opened, coalesce(t1.closed, t1.opened)) OVERLAPS (t2.opened, coalesce(t2.closed, t2.opened))
SELECT unnest(enum_range(NULL::priority)) AS prio, (SELECT count(*) FROM tickets) AS n
SELECT p.prio, count(t.id) FROM unnest(enum_range(NULL::priority)) AS p(prio) LEFT JOIN tickets t ON t.prio = p.prio GROUP BY p.prio
SELECT level, count(*), count(*) * 100.0 / sum(count(*)) OVER () AS pct FROM logs GROUP BY level
SELECT level::int & 3 AS bits, bit_or(level) AS bo, bit_and(level) AS ba, bit_xor(level) AS bx FROM logs GROUP BY 1
SELECT id, to_tsvector('english', coalesce(line, '')) @@ plainto_tsquery('english', 'error code') AS hit FROM logs
SELECT id, md5(line) AS h, length(line) AS n, upper(left(line, 3)) AS l, reverse(line) AS r, initcap(line) AS i, lpad(id::text, 4, '0') AS pad, format('%s: %s', id, line) AS f FROM logs
SELECT translate(line, 'aeiou', '') AS t, regexp_replace(line, '\d+', '#', 'g') AS norm, count(*) FROM logs GROUP BY 1, 2
SELECT array_to_string(array_agg(m[1] ORDER BY m[1]), ',') AS nums, l.id FROM logs l CROSS JOIN LATERAL regexp_matches(l.line, '(\d+)', 'g') AS m GROUP BY l.id
SELECT l.id, s.n, s.word FROM logs l, LATERAL string_to_table(l.line, ' ') WITH ORDINALITY AS s(word, n)
SELECT a.id AS i, (SELECT string_agg(w, ' ' ORDER BY w) FROM regexp_split_to_table(a.line, ' ') AS w) AS sorted FROM logs a
SELECT at::date AS d, count(*) FROM logs WHERE at BETWEEN timestamptz '2026-01-01 00:00+00' AND timestamptz '2026-02-01 00:00+00' GROUP BY 1
SELECT region, segment, count(*), rank() OVER (ORDER BY count(*) DESC) AS r FROM customers GROUP BY region, segment
SELECT region, count(*) FROM customers GROUP BY ALL region
SELECT c.region, count(DISTINCT o.id) AS orders, count(DISTINCT c.id) AS customers, sum(DISTINCT o.total) AS s FROM customers c LEFT JOIN orders o ON o.customer = c.id GROUP BY c.region
SELECT date_trunc('quarter', placed) AS q, channel, sum(total), lag(sum(total)) OVER (PARTITION BY channel ORDER BY date_trunc('quarter', placed)) AS prev FROM orders GROUP BY 1, 2
SELECT to_char(placed, 'YYYY-MM') AS ym, status, count(*) FROM orders GROUP BY ROLLUP (to_char(placed, 'YYYY-MM'), status)
SELECT o.customer, o.id, o.placed - lag(o.placed) OVER (PARTITION BY o.customer ORDER BY o.placed, o.id) AS since, row_number() OVER (PARTITION BY o.customer ORDER BY o.placed, o.id) = 1 AS first FROM orders o
SELECT customer, avg(gap) AS mean_gap FROM (SELECT customer, placed - lag(placed) OVER (PARTITION BY customer ORDER BY placed, id) AS gap FROM orders) q WHERE gap IS NOT NULL GROUP BY customer
SELECT date_trunc('month', placed) AS m, count(*) FILTER (WHERE rn = 1) AS new, count(*) FILTER (WHERE rn > 1) AS returning FROM (SELECT placed, row_number() OVER (PARTITION BY customer ORDER BY placed, id) AS rn FROM orders) q GROUP BY 1
SELECT status, total, count(*) OVER (PARTITION BY status ORDER BY total GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE CURRENT ROW) AS near FROM orders
SELECT id, sum(total) OVER (PARTITION BY customer ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before, sum(total) OVER (PARTITION BY customer ORDER BY id ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS after FROM orders
SELECT c.id, coalesce(s.n, 0) AS n FROM customers c LEFT JOIN (SELECT customer, count(*) AS n FROM orders WHERE placed >= date '2026-01-01' GROUP BY customer HAVING count(*) > 0) s ON s.customer = c.id WHERE c.active IS NOT FALSE
SELECT c.id, o.id AS oid FROM customers c FULL JOIN orders o ON o.customer = c.id WHERE c.id IS NULL OR o.id IS NULL
SELECT c.id FROM customers c RIGHT JOIN orders o ON o.customer = c.id AND o.total > 100 GROUP BY c.id
SELECT * FROM customers NATURAL JOIN (SELECT id, count(*) AS n FROM customers GROUP BY id) q
SELECT c.id, c.meta->'address'->>'city' AS city, c.meta #> '{tags,0}' AS tag, c.meta || '{"x": 1}' AS more, c.meta - 'address' AS less FROM customers c
SELECT t.tag, count(*) FROM customers c, jsonb_array_elements_text(CASE jsonb_typeof(c.meta->'tags') WHEN 'array' THEN c.meta->'tags' ELSE '[]' END) AS t(tag) GROUP BY t.tag HAVING count(*) > 0
SELECT jsonb_object_agg(coalesce(region, '?'), n ORDER BY region) FROM (SELECT region, count(*) AS n FROM customers GROUP BY region) q
SELECT region, jsonb_agg(DISTINCT segment) AS s, json_agg(json_build_array(id, name) ORDER BY id DESC) AS l FROM customers GROUP BY region
SELECT JSON_OBJECT('id': id, 'name': name ABSENT ON NULL) AS o, JSON_ARRAY(id, name, region NULL ON NULL) AS a FROM customers
SELECT id, JSON_SERIALIZE(meta RETURNING text) AS s, JSON_SCALAR(id) AS sc, meta IS JSON OBJECT AS isobj FROM (SELECT id, meta::text::json AS meta FROM customers) q
SELECT c.id, jt.tag, jt.ord FROM customers c LEFT JOIN JSON_TABLE(c.meta, '$.tags[*]' COLUMNS (ord FOR ORDINALITY, tag text PATH '$')) AS jt ON true
SELECT id, extract(epoch FROM closed - opened) / 3600 AS hours, date_part('week', opened) AS w, opened::date + 7 AS due, make_date(2026, 1, 1 + id % 28) AS md, justify_hours(closed - opened) AS j FROM tickets
SELECT opened AT TIME ZONE 'Europe/Berlin' AS utc, to_timestamp(id * 3600) AS ts, (at AT TIME ZONE 'America/New_York')::date AS ny FROM tickets JOIN logs USING (id)
SELECT id, during * tsrange('2026-01-01', '2026-02-01') AS part, lower(during) AS lo, upper_inf(during) AS open, isempty(during) AS e FROM devices
SELECT a.n, b.n AS m FROM (SELECT count(*) AS n FROM orders) a CROSS JOIN (SELECT count(*) AS n FROM items) b
SELECT region, (SELECT count(*) FROM orders o JOIN customers c2 ON c2.id = o.customer WHERE c2.region = c.region) AS n FROM customers c GROUP BY region
SELECT c.region, sum((SELECT count(*) FROM orders o WHERE o.customer = c.id)) AS n FROM customers c GROUP BY c.region
SELECT c.id FROM customers c WHERE (SELECT sum(total) FROM orders o WHERE o.customer = c.id) > 100 AND c.region IN (SELECT region FROM targets WHERE goal > 0)
SELECT CASE (SELECT count(*) FROM orders o WHERE o.customer = c.id) WHEN 0 THEN 'none' WHEN 1 THEN 'one' ELSE 'many' END AS k, count(*) FROM customers c GROUP BY 1
SELECT c.id, ARRAY(SELECT o.id FROM orders o WHERE o.customer = c.id ORDER BY o.id) AS ids FROM customers c
SELECT c.id, (SELECT o.status FROM orders o WHERE o.customer = c.id ORDER BY o.placed DESC, o.id DESC LIMIT 1) AS last_status FROM customers c ORDER BY c.id
SELECT c.id, x.* FROM customers c CROSS JOIN LATERAL (SELECT count(*) AS n, sum(total) AS s, max(placed) AS last FROM orders o WHERE o.customer = c.id) x
SELECT c.region, x.status, x.n FROM (SELECT DISTINCT region FROM customers) c CROSS JOIN LATERAL (SELECT o.status, count(*) AS n FROM orders o JOIN customers k ON k.id = o.customer WHERE k.region = c.region GROUP BY o.status ORDER BY n DESC, o.status LIMIT 1) x
SELECT p.id FROM products p WHERE p.id IN (SELECT product FROM items GROUP BY product HAVING sum(qty) > (SELECT avg(s) FROM (SELECT sum(qty) AS s FROM items GROUP BY product) q))
SELECT p.name, i.n FROM products p JOIN (SELECT product, count(*) AS n FROM items GROUP BY product ORDER BY n DESC, product LIMIT 3) i ON i.product = p.id
SELECT i.product, i.order_id, i.qty, i.qty::numeric / sum(i.qty) OVER (PARTITION BY i.product) AS part, dense_rank() OVER (ORDER BY i.qty DESC) AS d FROM items i WHERE i.qty <> 0 AND i.qty IS NOT NULL
SELECT DISTINCT o.customer, p.category FROM orders o JOIN items i ON i.order_id = o.id JOIN products p ON p.id = i.product
SELECT o.customer, count(DISTINCT p.category) AS cats, array_agg(DISTINCT p.category ORDER BY p.category) AS list FROM orders o JOIN items i ON i.order_id = o.id JOIN products p ON p.id = i.product GROUP BY o.customer HAVING count(DISTINCT p.category) = (SELECT count(*) FROM categories WHERE parent IS NULL)
SELECT o.id, count(*) FILTER (WHERE i.product IS NULL) AS missing, bool_and(p.id IS NOT NULL) AS known FROM orders o LEFT JOIN items i ON i.order_id = o.id LEFT JOIN products p ON p.id = i.product GROUP BY o.id
SELECT id, total, sum(total) OVER (ORDER BY placed, id) - total AS before_this, 1.0 * rank() OVER (ORDER BY total) / count(*) OVER () AS pr FROM orders
SELECT q.id, q.total FROM (SELECT id, total, percent_rank() OVER (ORDER BY total) AS p FROM orders) q WHERE q.p > 0.9
SELECT id, total, avg(total::numeric) OVER (ORDER BY placed RANGE BETWEEN '3 days' PRECEDING AND '1 day' FOLLOWING) AS near FROM orders
SELECT s.plan, d::date AS day, count(*) FROM subs s JOIN generate_series(timestamp '2026-01-01', timestamp '2026-01-05', interval '1 day') d ON s.started <= d AND (s.ended IS NULL OR s.ended > d) GROUP BY 1, 2
SELECT s.customer FROM subs s GROUP BY s.customer HAVING count(*) FILTER (WHERE s.ended IS NULL) = 0
SELECT customer, plan, mrr, mrr - coalesce(lag(mrr) OVER w, 0) AS change, CASE WHEN lag(mrr) OVER w IS NULL THEN 'new' WHEN mrr > lag(mrr) OVER w THEN 'up' WHEN mrr < lag(mrr) OVER w THEN 'down' ELSE 'same' END AS kind FROM subs WINDOW w AS (PARTITION BY customer ORDER BY started, id)
SELECT m.month, sum(s.mrr) FILTER (WHERE date_trunc('month', s.started) = m.month) AS new, sum(s.mrr) FILTER (WHERE date_trunc('month', s.ended) = m.month) AS lost FROM generate_series(timestamp '2026-01-01', timestamp '2026-04-01', interval '1 month') AS m(month) CROSS JOIN subs s GROUP BY m.month
SELECT plan, round(sum(mrr) / NULLIF(count(DISTINCT customer), 0), 2) AS arpu, rank() OVER (ORDER BY sum(mrr) DESC NULLS LAST) FROM subs WHERE ended IS NULL GROUP BY plan
SELECT t.region, sum(t.goal) OVER (PARTITION BY t.region ORDER BY t.month ROWS UNBOUNDED PRECEDING) AS ytd FROM (SELECT region, month, sum(goal) AS goal FROM targets GROUP BY region, month) t
SELECT region, max(goal) AS g FROM targets GROUP BY region UNION ALL SELECT 'all', sum(g) FROM (SELECT max(goal) AS g FROM targets GROUP BY region) q
SELECT id FROM orders EXCEPT ALL SELECT order_id FROM payments WHERE ok
SELECT product FROM items INTERSECT ALL SELECT id FROM products WHERE price > 5
SELECT kind, session FROM events WHERE usr = 1 UNION ALL SELECT kind, session FROM events WHERE usr = 2 UNION SELECT 'x', NULL
SELECT DISTINCT ON (a.kind) a.kind, a.usr, b.n FROM events a JOIN (SELECT kind, count(*) AS n FROM events GROUP BY kind) b USING (kind) ORDER BY a.kind, a.at DESC NULLS LAST, a.id DESC
SELECT sum(n) AS s, max(n) AS m, min(kind) AS k FROM (SELECT kind, count(DISTINCT usr) AS n FROM events GROUP BY kind) q
SELECT usr, string_agg(kind || ':' || n, ',' ORDER BY n DESC, kind) AS summary FROM (SELECT usr, kind, count(*) AS n FROM events GROUP BY usr, kind) q GROUP BY usr
SELECT o.id, o.placed, h.name FROM orders o LEFT JOIN (VALUES (date '2026-01-01', 'new year'), (date '2026-01-06', 'three kings')) AS h(day, name) ON h.day = o.placed::date
SELECT extract(isodow FROM d) AS wd, avg(n) AS mean FROM (SELECT placed::date AS d, count(*) AS n FROM orders GROUP BY 1) q GROUP BY 1
SELECT a.x, b.y FROM (SELECT row_number() OVER (ORDER BY id) AS r, name AS x FROM customers) a FULL JOIN (SELECT row_number() OVER (ORDER BY id) AS r, name AS y FROM employees) b USING (r)
SELECT max(len) FROM (SELECT count(*) AS len FROM (SELECT id, status, row_number() OVER (ORDER BY id) - row_number() OVER (PARTITION BY status ORDER BY id) AS g FROM orders) q GROUP BY status, g) r
SELECT (total / 100)::int * 100 AS bucket, repeat('*', count(*)::int) AS bar FROM orders GROUP BY 1
SELECT count(*) FILTER (WHERE a.id IS NULL) AS only_b, count(*) FILTER (WHERE b.id IS NULL) AS only_a, count(*) FILTER (WHERE a.id = b.id) AS both FROM customers a FULL JOIN accounts b ON a.id = b.id
SELECT id, sum(qty * unit) AS s FROM (SELECT o.id, i.qty, i.unit FROM orders o JOIN items i ON i.order_id = o.id UNION ALL SELECT o.id, 1, -o.total FROM orders o) q GROUP BY id HAVING sum(qty * unit) <> 0
SELECT region, count(*) FROM customers WHERE name ILIKE 'a%' OR name ~ '^[b-c]' OR name SIMILAR TO '(x|y)%' GROUP BY region
SELECT id, num_nulls(name, email, region) AS missing, concat_ws(' / ', name, email, region) AS label, coalesce(name, email, region, 'nobody') AS who FROM customers
SELECT any_value(dept) AS d, count(*) FROM employees GROUP BY dept
SELECT dept, rank(5000) WITHIN GROUP (ORDER BY salary DESC) AS hyp, percentile_cont(0.5) WITHIN GROUP (ORDER BY salary) AS med FROM employees GROUP BY dept
SELECT id, row_number() OVER () AS n FROM orders
SELECT ARRAY(SELECT DISTINCT region FROM customers ORDER BY 1) AS regions
SELECT ARRAY_AGG(DISTINCT c.region) FILTER (WHERE c.active) AS r, MIN(o.placed) FROM customers c LEFT JOIN orders o ON o.customer = c.id
SELECT GREATEST(SUM(qty), 0) AS q, LEAST(MIN(unit), 1) AS u, SUM(qty) FILTER (WHERE qty > 0) * 1.5 AS w FROM items
SELECT array_agg(id) FROM (SELECT id FROM orders ORDER BY total, id) q
