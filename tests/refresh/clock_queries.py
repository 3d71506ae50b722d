"""Queries that read the clock, over the tables of `test_clock.py`."""

QUERIES = {
    "sliding": "SELECT id, ts FROM e WHERE ts > now() - interval '5 hours' AND ts <= now()",
    "after": "SELECT id FROM e WHERE ts + interval '5 hours' > now()",
    "difference": "SELECT id FROM e WHERE now() - ts < interval '5 hours'",
    "either": "SELECT id FROM e WHERE k = 2 OR ts > now() - interval '5 hours'",
    "negated": "SELECT id FROM e WHERE NOT (ts > now() - interval '5 hours' AND k < 3)",
    "today": "SELECT id, d FROM e WHERE d = CURRENT_DATE OR d > CURRENT_DATE + 2",
    "local": "SELECT id FROM e WHERE t > LOCALTIMESTAMP - interval '3 hours'",
    "truncated": "SELECT id FROM e WHERE ts >= date_trunc('hour', now()) - interval '2 hours'",
    "selected": "SELECT id, now() AS n, CURRENT_DATE - d AS days, age(now(), ts) AS age FROM e WHERE id < 50",
    "labelled": "SELECT id, CASE WHEN ts > now() - interval '1 hour' THEN 'new' ELSE 'old' END AS label FROM e",
    "grouped": "SELECT k, count(*) AS n, max(ts) AS m FROM e WHERE ts > now() - interval '5 hours' GROUP BY k",
    "having": "SELECT k, max(ts) AS m, count(*) AS n FROM e WHERE id > 0 GROUP BY k HAVING max(ts) < now() -"
    " interval '30 min'",
    "counted": "SELECT k, count(*) FILTER (WHERE ts > now() - interval '1 hour') AS n, sum(id) AS s FROM e GROUP BY k",
    "listed": "SELECT k, string_agg(id::text, ',' ORDER BY id) FILTER (WHERE ts > now()) AS l FROM e GROUP BY k",
    "joined": "SELECT e.id, k.name FROM e JOIN k ON k.k = e.k AND e.ts > now() - k.keep",
    "left": "SELECT e.id, k.name FROM e LEFT JOIN k ON k.k = e.k AND k.since > now() AND e.ts < now()",
    "left_both": "SELECT e.id, k.name FROM e LEFT JOIN k ON k.k = e.k AND e.ts > now() - k.keep",
    "full": "SELECT e.id, k.name FROM e FULL JOIN k ON k.k = e.k AND e.ts > now() - interval '2 hours'",
    "exists": "SELECT name FROM k WHERE EXISTS (SELECT FROM e WHERE e.k = k.k AND e.ts > now() - k.keep)",
    "not_in": "SELECT id FROM e WHERE k NOT IN (SELECT k FROM k WHERE since < now() AND k IS NOT NULL)",
    "scalar": "SELECT name, (SELECT count(*) FROM e WHERE e.k = k.k AND e.ts > now() - interval '2 hours') AS n FROM k",
    "first": "SELECT id, ts FROM e WHERE ts < now() ORDER BY ts DESC, id LIMIT 5",
    "distinct": "SELECT DISTINCT k, ts > now() AS later FROM e",
    "distinct_on": "SELECT DISTINCT ON (k) k, id FROM e WHERE ts < now() ORDER BY k, ts DESC, id",
    "union": "SELECT id FROM e WHERE ts > now() UNION ALL SELECT k FROM k WHERE since > now()",
    "except": "SELECT k FROM e WHERE ts > now() EXCEPT ALL SELECT k FROM k",
    "twice": "WITH w AS (SELECT k, count(*) AS n FROM e WHERE ts > now() - interval '1 hour' GROUP BY k) SELECT"
    " a.k, a.n, b.n AS other FROM w AS a JOIN w AS b ON b.n >= a.n WHERE b.k < extract(minute FROM now())",
    "over_groups": "SELECT g.k, e.id FROM (SELECT k, max(ts) AS m FROM e GROUP BY k) AS g JOIN e ON e.k = g.k"
    " WHERE g.m > now() + interval '9 hours' AND e.ts < now()",
    "series": "SELECT s.hour, count(e.id) AS n FROM generate_series(date_trunc('hour', now()) - interval '3"
    " hours', date_trunc('hour', now()), interval '1 hour') AS s(hour) LEFT JOIN e ON e.ts >= s.hour AND e.ts <"
    " s.hour + interval '1 hour' GROUP BY s.hour",
    "values": "SELECT v.at, e.id FROM (VALUES (now()), (now() + interval '1 hour')) AS v(at) JOIN e ON e.ts = v.at",
    "kept_apart": "SELECT id FROM e WHERE ts > now() - interval '1 hour' AND 1 < extract(day FROM now()) AND k > 0",
    "gated": "SELECT id FROM e WHERE ts > CASE WHEN extract(hour FROM now()) < 14 THEN now() END",
    "times": "SELECT id, CURRENT_TIME AS a, LOCALTIME AS b FROM e WHERE ts::time < LOCALTIME AND id < 20",
}
"""Bounds that move, and what no bound moves with, in WHERE, HAVING, JOIN and SELECT."""

MORE = {
    "slice": "SELECT id, (ARRAY[1,2,3])[1:extract(day FROM now())::int] AS s, (ARRAY[k])[1:extract(day FROM"
    " now())::int] AS z FROM e WHERE id < 5",
    "case2": "SELECT id, CASE WHEN now() > '2026-01-01 12:20+00' THEN 1 ELSE id END AS s FROM e",
    "rows": "SELECT id, (CURRENT_DATE, k) < (d, 2) AS later FROM e WHERE (ts, id) > (now(), 30) OR ts = now()",
    "ordered": "SELECT id FROM e ORDER BY age(now(), ts) DESC, id LIMIT 3",
    "ordered2": "SELECT id, now() - ts AS a FROM e WHERE ts < now() ORDER BY abs(extract(epoch FROM now() -"
    " ts)), id LIMIT 4",
    "key": "SELECT date_trunc('hour', now() - ts) AS h, count(*) AS n FROM e GROUP BY date_trunc('hour', now() - ts)",
    "sets": "SELECT k, CURRENT_DATE AS d, count(*) AS n FROM e WHERE ts < now() GROUP BY GROUPING SETS ((k,"
    " CURRENT_DATE), (CURRENT_DATE), ())",
    "agg_order": "SELECT k, string_agg(id::text, ',' ORDER BY abs(extract(epoch FROM now() - ts)), id) AS s FROM"
    " e GROUP BY k",
    "agg_now": "SELECT count(now()) AS n, max(now()) AS m, count(DISTINCT now() - ts) AS d FROM e",
    "lateral": "SELECT e.id, x.n FROM e, LATERAL (SELECT count(*) AS n FROM k WHERE k.k = e.k AND e.ts > now() -"
    " k.keep) AS x WHERE e.id < 30",
    "scalar_now": "SELECT id, (SELECT now()) AS n, (SELECT max(v) FROM (VALUES (now()), (e.ts)) AS w(v)) AS l"
    " FROM e WHERE id < 10",
    "union_const": "SELECT id, ts FROM e WHERE ts > now() UNION ALL SELECT 0, now()",
    "percentile": "SELECT k, percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM now() - ts)) AS p"
    " FROM e GROUP BY k",
    "distinct_on": "SELECT DISTINCT ON (k) k, id FROM e ORDER BY k, abs(extract(epoch FROM now() - ts)), id",
    "srf": "SELECT id, generate_series(date_trunc('hour', ts), now(), interval '1 hour') AS h FROM e WHERE id"
    " BETWEEN 1 AND 30",
    "array": "SELECT name, ARRAY(SELECT id FROM e WHERE e.k = k.k AND ts > now() - interval '1 hour' ORDER BY"
    " id) AS a FROM k",
    "any_all": "SELECT name FROM k WHERE since > ALL (SELECT ts FROM e WHERE ts < now() AND e.k = k.k)",
    "in_now": "SELECT id FROM e WHERE date_trunc('hour', ts) IN (date_trunc('hour', now()), date_trunc('hour',"
    " now()) - interval '1 hour')",
    "not_distinct": "SELECT id FROM e WHERE d IS DISTINCT FROM CURRENT_DATE",
    "cte": "WITH r AS MATERIALIZED (SELECT now() AS n) SELECT e.id FROM e, r WHERE e.ts > r.n",
    "top_group": "SELECT k, count(*) AS n FROM e WHERE ts > now() - interval '3 hours' GROUP BY k ORDER BY n"
    " DESC, k LIMIT 2",
    "over_agg": "SELECT g.k, g.m, now() - g.m AS lag FROM (SELECT k, max(ts) AS m FROM e GROUP BY k) g",
    "agg_agg": "SELECT recent, count(*) AS n FROM (SELECT k, max(ts) > now() AS recent FROM e GROUP BY k) g"
    " GROUP BY recent",
    "exc": "SELECT k FROM e WHERE ts > now() INTERSECT SELECT k FROM e WHERE ts < now() - interval '2 hours'",
}
"""In places that the builder takes apart."""
