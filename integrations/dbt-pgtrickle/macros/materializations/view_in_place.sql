{#
  A view that is altered by CREATE OR REPLACE where PostgreSQL can do that: its columns stay, or others come after them.
  So stream tables that read it go on. (dbt's own `view` makes another view each time and drops the old one, after which
  stream tables over it have to be defined again and computed from scratch.) Where it cannot, it is dbt's way.
#}
{% materialization view_in_place, adapter='postgres' %}
  {% set existing = load_cached_relation(this) %}
  {% set target_relation = this.incorporate(type='view') %}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}
  {% if config.get('contract').enforced %}
    {{ get_assert_columns_equivalent(sql) }}
  {% endif %}
  {% set replaced = none %}
  {% if existing is not none and not pgtrickle.can_replace(existing, sql) %}
    {% set replaced = pgtrickle.with_suffix(this, '__dbt_backup').incorporate(type=existing.type) %}
    {{ drop_relation_if_exists(load_cached_relation(replaced)) }}
    {% do adapter.rename_relation(existing, replaced) %}
  {% endif %}
  {% call statement('main') %}
    {{ config.get('sql_header') or '' }}
    create or replace view {{ target_relation }} as
{{ sql }}
  {% endcall %}
  {% do apply_grants(target_relation, config.get('grants'), should_revoke=True) %}
  {% do persist_docs(target_relation, model) %}
  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {{ adapter.commit() }}
  {% if replaced is not none %}
    {{ drop_relation_if_exists(replaced) }}
  {% endif %}
  {{ run_hooks(post_hooks, inside_transaction=False) }}
  {{ return({'relations': [target_relation]}) }}
{% endmaterialization %}

{# Whether what is there is a view, whose columns the query answers first. #}
{% macro can_replace(existing, sql) %}
  {% if not existing.is_view %}
    {{ return(false) }}
  {% endif %}
  {% set columns = pgtrickle.answer(pgtrickle.columns_before_and_after(existing, sql)) %}
  {{ return(columns['after'][:columns['before'] | length] == columns['before']) }}
{% endmacro %}

{% macro columns_before_and_after(existing, sql) %}
  drop view if exists pg_temp.pgtrickle_dbt_query;
  create temporary view pgtrickle_dbt_query as
{{ sql }}
  ;
  select pg_catalog.set_config('pgtrickle_dbt.answer', pg_catalog.jsonb_build_object(
    'before', {{ pgtrickle.columns_of('pg_catalog.to_regclass(' ~ pgtrickle.name_of(existing) ~ ')') }},
    'after', {{ pgtrickle.columns_of("'pg_temp.pgtrickle_dbt_query'::pg_catalog.regclass") }})::pg_catalog.text, true);
  drop view pg_temp.pgtrickle_dbt_query;
  select pg_catalog.current_setting('pgtrickle_dbt.answer')
{% endmacro %}
