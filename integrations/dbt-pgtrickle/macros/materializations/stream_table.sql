{#
  A model as a stream table: a table that the pgtrickle service keeps equal to the model's query.

  What is there is compared with what is wanted, and only the difference is asked for. Requests are carried out by the
  running service, so each is committed before it is waited for.
#}
{% materialization stream_table, adapter='postgres' %}
  {% set existing = load_cached_relation(this) %}
  {% set target_relation = this.incorporate(type='table') %}
  {% do pgtrickle.require_ready() %}

  {{ run_hooks(pre_hooks, inside_transaction=False) }}
  {{ run_hooks(pre_hooks, inside_transaction=True) }}
  {% do pgtrickle.run_sql_header() %}

  {% set wanted = pgtrickle.wanted_options() %}
  {% set seen = pgtrickle.inspect(target_relation, sql, wanted) %}
  {% do pgtrickle.require_contract(seen) %}

  {% if seen['stream_table'] is none and existing is none %}
    {% set outcome = pgtrickle.create(target_relation, sql, wanted) %}
  {% elif seen['stream_table'] is none %}
    {% set outcome = pgtrickle.create_in_place_of(existing, target_relation, sql, wanted) %}
  {% else %}
    {% set outcome = pgtrickle.bring_up_to_date(target_relation, sql, wanted, seen) %}
  {% endif %}

  {% call noop_statement('main', outcome['message'], outcome['code'], outcome['rows']) %}
{{ sql }}
  {% endcall %}

  {% do pgtrickle.begin() %}
  {% if not outcome['kept_as_it_is'] %}
    {% do pgtrickle.match_indexes(target_relation) %}
    {% do pgtrickle.match_not_null(target_relation) %}
  {% endif %}
  {% do apply_grants(target_relation, config.get('grants'), should_revoke=True) %}
  {% do persist_docs(target_relation, model) %}
  {{ run_hooks(post_hooks, inside_transaction=True) }}
  {{ adapter.commit() }}
  {% if outcome['replaced'] is not none %}
    {{ drop_relation_if_exists(outcome['replaced']) }}
  {% endif %}
  {{ run_hooks(post_hooks, inside_transaction=False) }}

  {{ return({'relations': [target_relation]}) }}
{% endmaterialization %}
