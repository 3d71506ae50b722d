{# Contracts, keys and indexes of a stream table. #}

{# A contract counts to the letter here: a stream table has the types of its query, and nothing casts them. #}
{% macro require_contract(seen) %}
  {% if config.get('contract').enforced %}
    {{ get_assert_columns_equivalent(sql) }}
    {% set declared = pgtrickle.answer(pgtrickle.declared_columns()) %}
    {% for column in seen['columns'] if declared.get(column['name']) %}
      {% if declared[column['name']] != column['type'] %}
        {% do exceptions.raise_compiler_error(
          'the contract says ' ~ column['name'] ~ ' ' ~ declared[column['name']] ~ ', and the query answers '
          ~ column['type'] ~ '. A stream table has the types of its query: cast it there.') %}
      {% endif %}
    {% endfor %}
    {% for kind in ['check', 'unique', 'foreign_key', 'custom'] %}
      {% do pgtrickle.warn_of_constraint(kind) %}
    {% endfor %}
  {% endif %}
{% endmacro %}

{# The types that the contract gives with a length or precision, as PostgreSQL writes them, by column. #}
{% macro declared_columns() %}
  drop view if exists pg_temp.pgtrickle_dbt_contract;
  create temporary view pgtrickle_dbt_contract as {{ get_empty_schema_sql(model['columns']) }};
  select pg_catalog.set_config('pgtrickle_dbt.answer', coalesce(pg_catalog.jsonb_object_agg(
           a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod)), '{}')::text, true)
  from pg_catalog.pg_attribute as a
  where a.attrelid = 'pg_temp.pgtrickle_dbt_contract'::pg_catalog.regclass and a.attnum > 0 and a.atttypmod <> -1;
  drop view pg_temp.pgtrickle_dbt_contract;
  select pg_catalog.current_setting('pgtrickle_dbt.answer')
{% endmacro %}

{% macro warn_of_constraint(kind) %}
  {% set found = [] %}
  {% for constraint in model.constraints if constraint.type == kind %}
    {% do found.append(constraint) %}
  {% endfor %}
  {% for column in model.columns.values() %}
    {% for constraint in column.constraints if constraint.type == kind %}
      {% do found.append(constraint) %}
    {% endfor %}
  {% endfor %}
  {% for constraint in found if constraint.warn_unsupported != false %}
    {% do exceptions.warn(this ~ ': a stream table has no ' ~ kind ~ ' constraint of a contract'
                          ~ (': use indexes with unique: true' if kind == 'unique' else ': use a test of dbt')) %}
  {% endfor %}
{% endmacro %}

{# NOT NULL where the contract says so, and nowhere else where there is a contract. #}
{% macro match_not_null(relation) %}
  {% if config.get('contract').enforced %}
    {% set wanted = pgtrickle.constrained_columns('not_null') %}
    {% set changes = pgtrickle.answer(pgtrickle.not_null_changes(relation, wanted)) %}
    {% for change in changes %}
      {% call statement('pgtrickle_not_null') %}alter table {{ relation }} alter column {{ change }}{% endcall %}
    {% endfor %}
  {% endif %}
{% endmacro %}

{% macro not_null_changes(relation, wanted) %}
  select coalesce(pg_catalog.jsonb_agg(pg_catalog.format('%I %s not null', a.attname,
                                                         case when a.attnotnull then 'drop' else 'set' end)), '[]')::text
  from pg_catalog.pg_attribute as a
  where a.attrelid = pg_catalog.to_regclass({{ pgtrickle.name_of(relation) }}) and a.attnum > 0 and not a.attisdropped
    and a.attnotnull <> (a.attname = any (array[
      {%- for name in wanted %}(pg_catalog.parse_ident({{ pgtrickle.literal(name) }}))[1], {% endfor %} null]::text[]) is true)
    and not exists (select from pg_catalog.pg_constraint as c
                    where c.conrelid = a.attrelid and c.contype = 'p' and a.attnum = any (c.conkey))
{% endmacro %}

{# The indexes of the config, under names that say what each is. Only indexes with such names are ever dropped. #}
{% macro match_indexes(relation) %}
  {% set wanted = {} %}
  {% for index in config.get('indexes', default=[]) %}
    {% set parsed = adapter.parse_index(index) %}
    {% set text = [relation.render(), parsed.columns | join(', '), parsed.unique, parsed.type or 'btree'] | join('|') %}
    {% do wanted.update({'pgtrickle_dbt_' ~ local_md5(text): parsed}) %}
  {% endfor %}
  {% set present = pgtrickle.answer(
    "select coalesce(jsonb_agg(c.relname), '[]')::text from pg_index as i join pg_class as c on c.oid = i.indexrelid"
    ~ " where i.indrelid = to_regclass(" ~ pgtrickle.name_of(relation) ~ ") and c.relname ~ '^pgtrickle_dbt_[0-9a-f]{32}$'") %}
  {% for name in present if name not in wanted %}
    {% call statement('pgtrickle_drop_index') %}
      drop index {{ relation.include(database=false, identifier=false) }}."{{ name }}"
    {% endcall %}
  {% endfor %}
  {% for name, index in wanted.items() if name not in present %}
    {% call statement('pgtrickle_create_index') %}
      create {{ 'unique ' if index.unique }}index "{{ name }}" on {{ relation }}
      using {{ index.type or 'btree' }} ({{ index.columns | join(', ') }})
    {% endcall %}
  {% endfor %}
{% endmacro %}
