{# Drops stream tables that no model of this project makes any more: of models that were removed, renamed, disabled or
   given another materialization. Looks only into schemas of the project, and only at tables of this role.

     dbt run-operation drop_removed_stream_tables                              says what it would drop
     dbt run-operation drop_removed_stream_tables --args 'dry_run: false'      drops it
#}
{% macro drop_removed_stream_tables(dry_run=true) %}
  {% set schemas, kept = [], [] %}
  {% for node in graph.nodes.values() if node.resource_type in ['model', 'seed', 'snapshot'] %}
    {% if node.schema not in schemas %}{% do schemas.append(node.schema) %}{% endif %}
    {% if node.config.get('materialized') == 'stream_table' %}
      {% do kept.append(api.Relation.create(schema=node.schema, identifier=node.alias).render()) %}
    {% endif %}
  {% endfor %}
  {% set removed = pgtrickle.answer(pgtrickle.stream_tables_but(schemas, kept)) %}
  {% for name in removed %}
    {% do log((('would drop ' if dry_run else 'dropping ') ~ 'the stream table ' ~ name), info=true) %}
    {% if not dry_run %}
      {% do pgtrickle.require_ready() %}
      {% do pgtrickle.ask_for('drop_stream_table(' ~ pgtrickle.literal(name) ~ ')') %}
    {% endif %}
  {% else %}
    {% do log('every stream table has a model', info=true) %}
  {% endfor %}
{% endmacro %}

{# Those that read others come first. #}
{% macro stream_tables_but(schemas, kept) %}
  select coalesce(pg_catalog.jsonb_agg(pg_catalog.format('%I.%I', p.pgt_schema, p.pgt_name) order by p.pgt_id desc), '[]')::text
  from pgtrickle.pgt_stream_tables as t join pgtrickle.pgt_present as p using (pgt_id)
  where p.is_there and p.owner = current_user
    and p.pgt_schema = any (array[{% for each in schemas %}{{ pgtrickle.literal(each) }}, {% endfor %}null]::text[])
    and t.pgt_relid <> all (array[
      {%- for each in kept %}coalesce(pg_catalog.to_regclass({{ pgtrickle.literal(each) }})::oid, 0), {% endfor %}0]::oid[])
{% endmacro %}
