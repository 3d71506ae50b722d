"""Traps for whoever calls by a bare name: operators, functions, types and relations in `public` that fit our SQL as
well as PostgreSQL's own, or better. What springs one counts in a sequence, which no rollback takes back, and fails.

    every operator of the types we use          as it is, and for pairs of types that PostgreSQL has none for
    every function that our source names        with the same arguments
    every type and system relation it names     as a domain, or a view
"""

from __future__ import annotations

import re
from pathlib import Path

from pgtrickle.db import Connection

SOURCE = Path(__file__).parents[2] / "src" / "pgtrickle"

_SPRING = """
CREATE SEQUENCE public.sprung;
CREATE TABLE public.known_traps (title pg_catalog.text);
CREATE FUNCTION public.spring(title pg_catalog.text) RETURNS pg_catalog.bool LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_catalog.nextval('public.sprung');
    RAISE EXCEPTION 'trap sprung: %', title;
END $$;
GRANT USAGE ON SEQUENCE public.sprung TO PUBLIC;
"""

# Shadows of what there is; and, better than what there is, for pairs that PostgreSQL would have to convert.
_OPERATORS = r"""
DO $do$
DECLARE
    types oid[] := ARRAY['int2', 'int4', 'int8', 'oid', 'text', 'name', 'bool', '"char"', 'xid', 'xid8', 'pg_snapshot',
        'timestamptz', 'interval', 'float8', 'numeric', 'jsonb', 'pg_lsn', 'regclass', 'regproc', 'regtype', 'record',
        'text[]', 'oid[]', 'int2[]', 'name[]', 'bigint[]', 'pg_node_tree', 'varchar', 'anyarray']::regtype[]::oid[];
    simple oid[] := ARRAY['int2', 'int4', 'int8', 'oid', 'text', 'name', 'bool', '"char"', 'xid8', 'regclass']
        ::regtype[]::oid[];
    made record;
BEGIN
    FOR made IN
        SELECT o.oprname AS sign, o.oprleft AS l, o.oprright AS r, o.oprresult AS result
        FROM pg_operator AS o WHERE o.oprkind = 'b' AND o.oprnamespace = 'pg_catalog'::regnamespace
          AND o.oprleft = ANY (types) AND o.oprright = ANY (types)
        UNION ALL
        SELECT s.sign, l.l, r.r, CASE WHEN s.compares THEN 'bool'::regtype ELSE l.l END
        FROM unnest(simple) AS l(l), unnest(simple) AS r(r),
             (VALUES ('=', true), ('<>', true), ('<', true), ('>', true), ('<=', true), ('>=', true), ('&', false),
                     ('|', false), ('+', false), ('-', false), ('||', false)) AS s(sign, compares)
        WHERE NOT EXISTS (SELECT FROM pg_operator AS o WHERE (o.oprname, o.oprleft, o.oprright) = (s.sign, l.l, r.r))
    LOOP
        EXECUTE format(
            'CREATE FUNCTION public.%I(%s, %s) RETURNS %s LANGUAGE plpgsql AS %L',
            'trap_' || encode(made.sign::text::bytea, 'hex'), made.l::regtype, made.r::regtype, made.result::regtype,
            format('BEGIN PERFORM public.spring(%L); RETURN NULL; END',
                   format('%s %s %s', made.l::regtype, made.sign, made.r::regtype)));
        EXECUTE format(
            'CREATE OPERATOR public.%s (FUNCTION = public.%I, LEFTARG = %s, RIGHTARG = %s)', made.sign,
            'trap_' || encode(made.sign::text::bytea, 'hex'), made.l::regtype, made.r::regtype);
        INSERT INTO public.known_traps VALUES (format('%s %s %s', made.l::regtype, made.sign, made.r::regtype));
    END LOOP;
END $do$
"""

# Those that cannot be (arguments of internal types, say) are left out: nobody could make them either.
_FUNCTIONS = r"""
DO $do$
DECLARE
    made record;
BEGIN
    FOR made IN
        SELECT p.proname, pg_get_function_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result
        FROM pg_proc AS p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind IN ('f', 'a')
          AND p.proname = ANY (current_setting('traps.names')::text[]) AND p.proname <> 'spring'
    LOOP
        BEGIN
            EXECUTE format(
                'CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', made.proname, made.arguments,
                made.result, format('BEGIN PERFORM public.spring(%L); END', made.proname));
            INSERT INTO public.known_traps VALUES (made.proname || '()');
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
    END LOOP;
END $do$
"""

_NAMES = r"""
DO $do$
DECLARE
    made record;
BEGIN
    FOR made IN
        SELECT c.relname, (
                   SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute AS a
                   WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.atttypid <> 'anyarray'::regtype) AS columns
        FROM pg_class AS c WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind IN ('r', 'v')
          AND c.relname = ANY (current_setting('traps.names')::text[])
    LOOP
        EXECUTE format('CREATE VIEW public.%I AS SELECT %s FROM pg_catalog.%I WHERE public.spring(%L)', made.relname,
                       made.columns, made.relname, made.relname);
        INSERT INTO public.known_traps VALUES (made.relname);
    END LOOP;
    FOR made IN
        SELECT t.typname FROM pg_type AS t WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype = 'b'
          AND t.typname = ANY (current_setting('traps.names')::text[]) AND t.typelem = 0
    LOOP
        EXECUTE format('CREATE DOMAIN public.%I AS pg_catalog.%I CHECK (public.spring(%L))', made.typname, made.typname,
                       made.typname);
        INSERT INTO public.known_traps VALUES ('type ' || made.typname);
    END LOOP;
END $do$
"""


def words() -> list[str]:
    """Every word of our source, and of the SQL that it holds."""
    files = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.sql")]
    return sorted({word for file in files for word in re.findall(r"[a-z_][a-z0-9_]{2,}", file.read_text())})


def set_traps(conn: Connection) -> set[str]:
    """Sets them as the role of the session, which needs CREATE on `public` and no more; answers what for."""
    conn.execute(_SPRING)
    conn.execute("SELECT set_config('traps.names', %s::text[]::text, false)", (words(),))
    for each in (_OPERATORS, _FUNCTIONS, _NAMES):
        conn.execute(each.encode())
    conn.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO PUBLIC")
    return {str(title) for (title,) in conn.execute("SELECT title FROM public.known_traps")}


def sprung(conn: Connection) -> bool:
    return bool(conn.execute("SELECT is_called FROM public.sprung").fetchone() != (False,))
