-- Calls with words between their operands; one a paragraph.

SELECT TRIM(TRAILING FROM name) AS a, TRIM(LEADING 'a' FROM name) AS b, TRIM(name) AS c, SUBSTRING(name FROM '.') AS d,
 SUBSTRING(name SIMILAR 'a#"_#"%' ESCAPE '#') AS e, NORMALIZE(name, NFD) AS f, name IS NFC NORMALIZED AS g FROM customers

SELECT TRIM(BOTH FROM name) AS n, count(*) AS c FROM customers GROUP BY TRIM(BOTH FROM name) HAVING TRIM(BOTH FROM name) > 'b'

SELECT c.id, r.a, r.b, r.o FROM customers c, ROWS FROM (generate_series(1, c.id), unnest(ARRAY[c.name])) WITH ORDINALITY AS r(a, b, o)

SELECT r.a, r.b FROM ROWS FROM (generate_series(1, 2), json_to_record('{"b": 7}') AS (b int)) AS r(a, b), customers

SELECT region, public.middle(0.5) WITHIN GROUP (ORDER BY credit) FILTER (WHERE id > 0) AS m FROM customers GROUP BY region

SELECT id, (SELECT max(TRIM(BOTH c.name FROM o.note)) FROM orders o WHERE o.customer = c.id) AS m FROM customers c
