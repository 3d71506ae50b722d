{# Making a stream table, and changing one to be as the model says. Each says what it did. #}

{% macro create(relation, sql, wanted) %}
  {% set result = pgtrickle.ask_for(pgtrickle.creation(relation, sql, wanted)) %}
  {{ return(pgtrickle.done('CREATE STREAM TABLE', result)) }}
{% endmacro %}

{% macro creation(relation, sql, wanted) %}
  {% set given = {
    'schedule': wanted['schedule'], 'refresh_mode': wanted['refresh_mode'],
    'initialize': pgtrickle.truth_of('initialize', true)} %}
  {% for name in ['cdc_mode', 'diamond_consistency', 'diamond_schedule_policy'] if wanted[name] != 'inherit' %}
    {% do given.update({name: wanted[name]}) %}
  {% endfor %}
  {% if wanted['primary_key'] | lower != 'none' %}
    {% do given.update({'primary_key': wanted['primary_key']}) %}
  {% endif %}
  {% if wanted['protect'] %}
    {% do given.update({'protect': true}) %}
  {% endif %}
  {{ return('create_stream_table(' ~ pgtrickle.name_of(relation) ~ ', ' ~ pgtrickle.literal(sql) ~ ', '
            ~ pgtrickle.named(given) ~ ')') }}
{% endmacro %}

{# name => value, … #}
{% macro named(given) %}
  {% set parts = [] %}
  {% for name, value in given.items() %}
    {% do parts.append(name ~ ' => ' ~ (value | string | lower if value is boolean else pgtrickle.literal(value))) %}
  {% endfor %}
  {{ return(parts | join(', ')) }}
{% endmacro %}

{% macro done(message, result, replaced=none, kept_as_it_is=false) %}
  {% set action = result.get('action') %}
  {{ return({
    'message': message ~ (' (' ~ action ~ ')' if action else ''),
    'code': message,
    'rows': result.get('rows_inserted', 0) + result.get('rows_deleted', 0),
    'replaced': replaced,
    'kept_as_it_is': kept_as_it_is}) }}
{% endmacro %}

{# In place of a view or a table that dbt has made before. It is made beside it and filled, and takes its name when it is
   ready: readers find the old one until then, and keep it if this fails. #}
{% macro create_in_place_of(existing, relation, sql, wanted) %}
  {% set beside = pgtrickle.with_suffix(relation, '__dbt_tmp') %}
  {% set backup = pgtrickle.with_suffix(relation, '__dbt_backup').incorporate(type=existing.type) %}
  {% do pgtrickle.remove_left_over(beside) %}
  {{ drop_relation_if_exists(load_cached_relation(backup)) }}
  {% set first = dict(wanted) %}
  {% if wanted['refresh_mode'] == 'IMMEDIATE' %}
    {% do first.update({'refresh_mode': 'DIFFERENTIAL'}) %}  {# its triggers do not follow a table that is renamed #}
  {% endif %}
  {% set result = pgtrickle.ask_for(pgtrickle.creation(beside, sql, first)) %}
  {% do pgtrickle.begin() %}
  {% do adapter.rename_relation(existing, backup) %}
  {% do adapter.rename_relation(beside, relation) %}
  {% do adapter.commit() %}
  {% if wanted['refresh_mode'] == 'IMMEDIATE' %}
    {% do pgtrickle.ask_for('alter_stream_table(' ~ pgtrickle.name_of(relation) ~ ", refresh_mode => 'IMMEDIATE')") %}
  {% endif %}
  {{ return(pgtrickle.done('CREATE STREAM TABLE', result, replaced=backup)) }}
{% endmacro %}

{# What a run that was cut off has left. #}
{% macro remove_left_over(relation) %}
  {% set name = pgtrickle.name_of(relation) %}
  {% if pgtrickle.answer('select to_json(exists (select from pgtrickle.pgt_stream_tables where pgt_relid = to_regclass('
                         ~ name ~ ')))::text') %}
    {% do pgtrickle.ask_for('drop_stream_table(' ~ name ~ ')') %}
  {% else %}
    {{ drop_relation_if_exists(load_cached_relation(relation)) }}
  {% endif %}
{% endmacro %}

{# A name of at most 63 bytes that no other model's is cut to. #}
{% macro with_suffix(relation, suffix) %}
  {% set whole = relation.identifier ~ suffix %}
  {% if whole.encode('utf-8') | length > 63 %}
    {% set suffix = '_' ~ local_md5(relation.identifier)[:8] ~ suffix %}
    {% set whole = relation.identifier.encode('utf-8')[:63 - suffix | length].decode('utf-8', 'ignore') ~ suffix %}
  {% endif %}
  {{ return(relation.incorporate(path={'identifier': whole})) }}
{% endmacro %}

{# Alters what is not as it should be; refreshes what is. #}
{% macro bring_up_to_date(relation, sql, wanted, seen) %}
  {% set there = seen['stream_table'] %}
  {% set lost = pgtrickle.why_defined_again(there, seen) %}
  {% set changes = pgtrickle.differences(there, sql, wanted, seen) %}
  {% set full_refresh = should_full_refresh() %}
  {% set on_change = config.get('on_configuration_change') or 'apply' %}
  {% if changes and not full_refresh and on_change != 'apply' %}
    {% set said = relation ~ ' differs from its model in ' ~ changes | join(', ') %}
    {% if on_change == 'fail' %}
      {% do exceptions.raise_fail_fast_error(said ~ ', and on_configuration_change is fail') %}
    {% endif %}
    {% do exceptions.warn(said ~ '; on_configuration_change is continue, so it stays as it is') %}
    {{ return(pgtrickle.done('skip', {}, kept_as_it_is=true)) }}
  {% endif %}
  {% set given = {} %}
  {% for name in changes if name not in ['query', 'columns'] %}
    {% do given.update({name: wanted[name]}) %}
  {% endfor %}
  {% if full_refresh or lost or 'query' in changes or 'columns' in changes %}
    {% do given.update({'query': sql}) %}
    {% if seen['wanted_key'] %}
      {% do given.update({'primary_key': wanted['primary_key']}) %}  {# it goes with a column that is made again #}
    {% endif %}
  {% endif %}
  {% if given %}
    {{ return(pgtrickle.alter(relation, given, full_refresh, lost)) }}
  {% endif %}
  {{ return(pgtrickle.refresh(relation, there)) }}
{% endmacro %}

{# Why a table is to be defined again though its model is as it was. #}
{% macro why_defined_again(there, seen) %}
  {% set unknown = seen['refers_to'] | reject('in', there['uses']) | list %}
  {% if there['status'] == 'ERROR' %}
    {{ return('its status is ERROR') }}
  {% elif unknown %}
    {{ return('what it reads was replaced') }}
  {% endif %}
  {{ return(none) }}
{% endmacro %}

{# What the model says otherwise than the stream table, by the names of options. #}
{% macro differences(there, sql, wanted, seen) %}
  {% set found = [] %}
  {% for name, value in wanted.items() if name != 'primary_key' and there[name] != value %}
    {% do found.append(name) %}
  {% endfor %}
  {% if seen['wanted_key'] != there['key'] %}
    {% do found.append('primary_key') %}
  {% endif %}
  {% if there['query'] | trim != sql | trim %}
    {% do found.append('query') %}
  {% elif there['columns'] | sort(attribute='name') != seen['columns'] | sort(attribute='name') %}
    {% do found.append('columns') %}
  {% endif %}
  {{ return(found) }}
{% endmacro %}

{% macro alter(relation, given, full_refresh, lost) %}
  {% set call = 'alter_stream_table(' ~ pgtrickle.name_of(relation) ~ ', ' ~ pgtrickle.named(given) ~ ')' %}
  {% set outcome = pgtrickle.ask(call) %}
  {% if outcome.get('code') == 'PT440' and full_refresh %}
    {# As dbt does with tables: what depends on columns that go is dropped, and made again by its own model. #}
    {% do pgtrickle.drop_dependent_views(relation) %}
    {% set outcome = pgtrickle.ask(call) %}
  {% endif %}
  {% do pgtrickle.require_done(outcome) %}
  {% set what = given.keys() | join(', ') ~ ('; ' ~ lost if lost else '') %}
  {{ return(pgtrickle.done('ALTER STREAM TABLE ' ~ what, {})) }}
{% endmacro %}

{% macro drop_dependent_views(relation) %}
  {% set views = pgtrickle.answer(
    "select coalesce(jsonb_agg(distinct jsonb_build_array(case v.relkind when 'm' then 'materialized_view' else 'view' end,"
    ~ " n.nspname, v.relname)), '[]')::text from pg_depend as d"
    ~ " join pg_rewrite as r on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid"
    ~ " join pg_class as v on v.oid = r.ev_class join pg_namespace as n on n.oid = v.relnamespace"
    ~ " where d.refclassid = 'pg_class'::regclass and d.refobjid = to_regclass(" ~ pgtrickle.name_of(relation) ~ ")") %}
  {% for kind, schema, name in views %}
    {% do adapter.drop_relation(
      api.Relation.create(database=relation.database, schema=schema, identifier=name, type=kind)) %}
  {% endfor %}
{% endmacro %}

{# So that what comes after in this run sees the rows that went before. Only what has changed is read. #}
{% macro refresh(relation, there) %}
  {% if there['status'] == 'SUSPENDED' %}
    {% do exceptions.warn(relation ~ ' is suspended, and was not refreshed; resume it with'
                          ~ ' SELECT pgtrickle.resume_stream_table(' ~ pgtrickle.name_of(relation) ~ ')') %}
  {% endif %}
  {% if not pgtrickle.truth_of('refresh_on_run', true) or there['status'] == 'SUSPENDED' or not there['is_populated']
        or there['effective_mode'] == 'IMMEDIATE' %}
    {{ return(pgtrickle.done('skip', {})) }}
  {% endif %}
  {% set result = pgtrickle.ask_for('refresh_stream_table(' ~ pgtrickle.name_of(relation) ~ ')') %}
  {{ return(pgtrickle.done('REFRESH', result)) }}
{% endmacro %}
