"""What a query's answer depends on, found by PostgreSQL's own dependency graph. Called by `analyze.py`.

    the query's rule ─▶ columns ─▶ types ─▶ checks of domains, parts of rows, operator classes, casts ─▶ functions ─▶ …

From the rules of the query and of its views, `pg_depend` leads to all that is not built in. It records what an object
is made of, and not all that PostgreSQL looks up when it uses one: those steps are added here. What a body in PL/pgSQL
or in the text of another language calls is in no catalog, and is not followed.
"""

from __future__ import annotations

from collections.abc import Iterable

from pgtrickle.query.analyse.scratch_view import ScratchView

# Not followed: what only names or carries an object. Relations are the analysis' own matter.
_REACHED = """
WITH RECURSIVE reach(classid, objid, objsubid) AS (
    SELECT 'pg_rewrite'::regclass::oid, r.oid, 0 FROM pg_rewrite AS r
    WHERE r.ev_class = ANY (%(views)s::oid[]) AND r.rulename = '_RETURN'
    UNION SELECT 'pg_policy'::regclass, p.oid, 0 FROM pg_policy AS p WHERE p.polrelid = ANY (%(secured)s::oid[])
    UNION SELECT 'pg_proc'::regclass, f, 0 FROM unnest(%(functions)s::oid[]) AS f
    UNION SELECT 'pg_type'::regclass, c.reltype, 0 FROM pg_class AS c WHERE c.oid = ANY (%(whole)s::oid[])
    UNION
    SELECT n.* FROM reach AS r CROSS JOIN LATERAL (
        SELECT d.refclassid, d.refobjid, d.refobjsubid FROM pg_depend AS d
        WHERE d.classid = r.classid AND d.objid = r.objid AND d.objsubid = r.objsubid
          AND NOT (d.refclassid = 'pg_class'::regclass AND d.refobjsubid = 0) AND d.refclassid NOT IN (
              'pg_namespace'::regclass, 'pg_extension'::regclass, 'pg_language'::regclass, 'pg_am'::regclass)
        UNION ALL  -- a virtual generated column is computed as it is read
        SELECT 'pg_attrdef'::regclass, d.oid, 0 FROM pg_attrdef AS d
        JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum AND a.attgenerated = 'v'
        WHERE r.classid = 'pg_class'::regclass AND d.adrelid = r.objid AND d.adnum = r.objsubid
        UNION ALL
        SELECT 'pg_constraint'::regclass, k.oid, 0 FROM pg_constraint AS k
        WHERE r.classid = 'pg_type'::regclass AND k.contypid = r.objid
        UNION ALL
        SELECT 'pg_class'::regclass, a.attrelid, a.attnum FROM pg_type AS t JOIN pg_attribute AS a
        ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE r.classid = 'pg_type'::regclass AND t.oid = r.objid AND t.typrelid <> 0
        UNION ALL
        SELECT 'pg_opclass'::regclass, o.oid, 0 FROM pg_opclass AS o
        WHERE r.classid = 'pg_type'::regclass AND o.opcintype = r.objid
        UNION ALL
        SELECT 'pg_operator'::regclass, m.amopopr, 0 FROM pg_opclass AS o
        JOIN pg_amop AS m ON m.amopfamily = o.opcfamily AND m.amoplefttype = o.opcintype
        WHERE r.classid = 'pg_opclass'::regclass AND o.oid = r.objid
        UNION ALL
        SELECT 'pg_proc'::regclass, m.amproc, 0 FROM pg_opclass AS o
        JOIN pg_amproc AS m ON m.amprocfamily = o.opcfamily AND m.amproclefttype = o.opcintype
        WHERE r.classid = 'pg_opclass'::regclass AND o.oid = r.objid
        UNION ALL
        SELECT 'pg_cast'::regclass, k.oid, 0 FROM pg_cast AS k
        WHERE r.classid = 'pg_type'::regclass AND r.objid IN (k.castsource, k.casttarget)
    ) AS n(classid, objid, objsubid)
    WHERE n.objid >= 12000  -- those below are PostgreSQL's own, for good
)
SELECT classid::bigint, objid::bigint, objsubid FROM reach WHERE classid IN (
    'pg_type'::regclass, 'pg_proc'::regclass, 'pg_operator'::regclass, 'pg_collation'::regclass,
    'pg_opclass'::regclass, 'pg_cast'::regclass, 'pg_ts_config'::regclass, 'pg_ts_dict'::regclass,
    'pg_ts_parser'::regclass, 'pg_ts_template'::regclass, 'pg_policy'::regclass)
  AND NOT (classid = 'pg_type'::regclass AND objid IN (
      SELECT t.oid FROM pg_type AS t JOIN pg_class AS c ON c.reltype = t.oid WHERE c.oid = ANY (%(views)s::oid[])))
ORDER BY classid, objid, objsubid
"""


def reached(
    place: ScratchView,
    views: Iterable[int],
    secured: Iterable[int],
    functions: Iterable[int],
    whole: Iterable[int],
) -> tuple[tuple[int, int, int], ...]:
    """The objects below these views (the query's own among them), as pg_depend addresses them: catalog, object, part.
    `secured` are tables whose policies apply, `functions` those that are called, `whole` tables whose rows are read as
    values of their type, of which no dependency is on record."""
    given = {"views": views, "secured": secured, "functions": functions, "whole": whole}
    rows = place.rows(_REACHED, {name: list(oids) for name, oids in given.items()})
    return tuple((int(classid), int(objid), int(part)) for classid, objid, part in rows)
