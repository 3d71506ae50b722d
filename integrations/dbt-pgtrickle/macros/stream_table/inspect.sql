{# What is in the database: the stream table as it is, and the model's query as PostgreSQL reads it now. #}

{% macro inspect(relation, sql, wanted) %}
  {{ return(pgtrickle.answer(pgtrickle.inspection(relation, sql, wanted))) }}
{% endmacro %}

{# The query is made a temporary view for a moment: its columns and what it refers to are those that PostgreSQL finds. #}
{% macro inspection(relation, sql, wanted) %}
  drop view if exists pg_temp.pgtrickle_dbt_query;
  create temporary view pgtrickle_dbt_query as
{{ sql }}
  ;
  select pg_catalog.set_config('pgtrickle_dbt.answer', pg_catalog.jsonb_build_object(
    'columns', {{ pgtrickle.columns_of("'pg_temp.pgtrickle_dbt_query'::pg_catalog.regclass") }},
    'refers_to', {{ pgtrickle.referred_to() }},
    'wanted_key', {{ pgtrickle.parsed_key(wanted['primary_key']) }},
    'stream_table', (
      select pg_catalog.jsonb_build_object(
        'status', p.status, 'is_populated', t.is_populated, 'effective_mode', t.effective_mode,
        'query', t.defining_query,
        'schedule', coalesce(t.schedule, 'calculated'),
        'refresh_mode', t.refresh_mode,
        'cdc_mode', coalesce(t.requested_cdc_mode, 'inherit'),
        'diamond_consistency', coalesce(t.diamond_consistency, 'inherit'),
        'diamond_schedule_policy', coalesce(t.diamond_schedule_policy, 'inherit'),
        'protect', exists (select from pg_catalog.pg_trigger as g
                           where g.tgrelid = t.pgt_relid and g.tgname = 'pgtrickle_protect'),
        'key', coalesce((select pg_catalog.jsonb_agg(a.attname order by k.place)
                         from pg_catalog.pg_constraint as c
                         cross join unnest(c.conkey) with ordinality as k (number, place)
                         join pg_catalog.pg_attribute as a on a.attrelid = c.conrelid and a.attnum = k.number
                         where c.conrelid = t.pgt_relid and c.contype = 'p'), '[]'),
        'columns', {{ pgtrickle.columns_of('t.pgt_relid') }},
        'uses', coalesce((select pg_catalog.jsonb_agg(distinct u.classid::pg_catalog.text || ' ' || u.objid)
                          from pgtrickle.pgt_used_objects as u where u.pgt_id = t.pgt_id), '[]'))
      from pgtrickle.pgt_stream_tables as t join pgtrickle.pgt_present as p using (pgt_id)
      where t.pgt_relid = pg_catalog.to_regclass({{ pgtrickle.name_of(relation) }})))::pg_catalog.text, true);
  drop view pg_temp.pgtrickle_dbt_query;
  select pg_catalog.current_setting('pgtrickle_dbt.answer')
{% endmacro %}

{% macro columns_of(relid) %}
  (select pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
            'name', a.attname, 'type', pg_catalog.format_type(a.atttypid, a.atttypmod)) order by a.attnum)
   from pg_catalog.pg_attribute as a where a.attrelid = {{ relid }} and a.attnum > 0 and not a.attisdropped)
{% endmacro %}

{# Relations and functions that are not PostgreSQL's own. #}
{% macro referred_to() %}
  coalesce((select pg_catalog.jsonb_agg(distinct d.refclassid::pg_catalog.oid::pg_catalog.text || ' ' || d.refobjid)
            from pg_catalog.pg_rewrite as r
            join pg_catalog.pg_depend as d on d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass and d.objid = r.oid
            where r.ev_class = 'pg_temp.pgtrickle_dbt_query'::pg_catalog.regclass and d.refobjid <> r.ev_class
              and d.refobjid >= 16384
              and d.refclassid in ('pg_catalog.pg_class'::pg_catalog.regclass, 'pg_catalog.pg_proc'::pg_catalog.regclass)),
           '[]')
{% endmacro %}

{# The columns of a key that is written in SQL, by their names. #}
{% macro parsed_key(written) %}
  {% if written | lower | trim in ['none', ''] %}
    {{ return("'[]'::pg_catalog.jsonb") }}
  {% endif %}
  {{ return("(select pg_catalog.jsonb_agg((pg_catalog.parse_ident(k.name))[1] order by k.place)"
            ~ " from pg_catalog.regexp_split_to_table(" ~ pgtrickle.literal(written) ~ ", ',(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)')"
            ~ " with ordinality as k (name, place))") }}
{% endmacro %}
