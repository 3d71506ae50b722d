{# What a model's config asks for. Each option may also stand under `meta`, where newer versions of dbt want it. #}

{% macro option(name, default=none) %}
  {% set found = config.get(name) %}
  {% if found is none %}
    {% set found = (config.get('meta') or {}).get(name) %}
  {% endif %}
  {{ return(default if found is none else found) }}
{% endmacro %}

{# A number of seconds, or words of PostgreSQL ('10 minutes'), as an interval. #}
{% macro interval_of(name, default) %}
  {% set given = pgtrickle.option(name, default) %}
  {{ return('interval ' ~ pgtrickle.literal(given ~ ' seconds' if given is number else given)) }}
{% endmacro %}

{% macro truth_of(name, default) %}
  {% set given = pgtrickle.option(name, default) %}
  {% if given is not boolean %}
    {% do exceptions.raise_compiler_error(name ~ " is true or false, not '" ~ given ~ "'") %}
  {% endif %}
  {{ return(given) }}
{% endmacro %}

{# The options that a stream table has, in the words of pgtrickle.alter_stream_table(). #}
{% macro wanted_options() %}
  {% set wanted = {
    'schedule': pgtrickle.option('schedule', '1m') | string | trim,
    'refresh_mode': pgtrickle.option('refresh_mode', 'AUTO') | string | upper | trim,
    'cdc_mode': pgtrickle.option('cdc_mode', 'inherit') | string | lower | trim,
    'diamond_consistency': pgtrickle.option('diamond_consistency', 'inherit') | string | lower | trim,
    'diamond_schedule_policy': pgtrickle.option('diamond_schedule_policy', 'inherit') | string | lower | trim,
    'primary_key': pgtrickle.wanted_primary_key(),
    'protect': pgtrickle.truth_of('protect', false),
  } %}
  {% if flags.EMPTY %}
    {# The refs of this run read no rows: the table only proves that the query is valid. #}
    {% do wanted.update({'refresh_mode': 'FULL', 'schedule': 'calculated', 'cdc_mode': 'inherit'}) %}
  {% endif %}
  {{ return(wanted) }}
{% endmacro %}

{# Of the config, or of the contract's constraint; columns as they are written in SQL. #}
{% macro wanted_primary_key() %}
  {% set given = pgtrickle.option('primary_key') %}
  {% set declared = pgtrickle.constrained_columns('primary_key') %}
  {% if given is none and not declared %}
    {{ return('none') }}
  {% elif given is none %}
    {{ return(declared | join(', ')) }}
  {% endif %}
  {{ return(given | trim if given is string else given | join(', ')) }}
{% endmacro %}

{# The columns that a constraint of this kind is on, quoted where the model's YAML says so. Others have a warning. #}
{% macro constrained_columns(kind) %}
  {% set found = [] %}
  {% if config.get('contract').enforced %}
    {% for name, column in model.columns.items() %}
      {% for constraint in column.constraints if constraint.type == kind %}
        {% do found.append(adapter.quote(name) if column.quote else name) %}
      {% endfor %}
    {% endfor %}
    {% for constraint in model.constraints if constraint.type == kind %}
      {% for name in constraint.columns %}
        {% set column = model.columns.get(name, {}) %}
        {% do found.append(adapter.quote(name) if column.quote else name) %}
      {% endfor %}
    {% endfor %}
  {% endif %}
  {{ return(found) }}
{% endmacro %}

{# A text as a literal of SQL, whatever standard_conforming_strings is. #}
{% macro literal(text) %}
  {% set doubled = text | string | replace("'", "''") %}
  {% if '\\' in doubled %}
    {{ return("E'" ~ doubled | replace('\\', '\\\\') ~ "'") }}
  {% endif %}
  {{ return("'" ~ doubled ~ "'") }}
{% endmacro %}

{# The name as pgtrickle's functions take it. #}
{% macro name_of(relation) %}
  {{ return(pgtrickle.literal(relation.include(database=false).render())) }}
{% endmacro %}
