{# Asking the service for something, and waiting until it is done. #}

{% macro begin() %}
  {% call statement('pgtrickle_begin') %}select 1{% endcall %}
{% endmacro %}

{% macro run_sql_header() %}
  {% set header = config.get('sql_header') %}
  {% if header is not none and header | trim %}
    {% call statement('pgtrickle_header') %}{{ header }}{% endcall %}
  {% endif %}
{% endmacro %}

{# The first value of a query that answers in JSON. #}
{% macro answer(query, auto_begin=false) %}
  {% call statement('pgtrickle_answer', fetch_result=true, auto_begin=auto_begin) %}{{ query }}{% endcall %}
  {{ return(fromjson(load_result('pgtrickle_answer')['data'][0][0])) }}
{% endmacro %}

{# Refuses to go on without a catalog, or where no running service would take the requests of this role. #}
{% macro require_ready() %}
  {% if not pgtrickle.answer("select to_json(to_regprocedure('pgtrickle_internal.serves(oid, oid)') is not null)::text") %}
    {% do exceptions.raise_database_error(
      "pgtrickle is not installed in this database, or this role may not use it.\n"
      ~ "  Hint: start the service (pgtrickle run), or run `pgtrickle install`; then GRANT pgtrickle_user to this role.") %}
  {% endif %}
  {% set patience = pgtrickle.interval_of('service_timeout', 10) %}
  {% if not pgtrickle.is_served() %}
    {% do pgtrickle.sleep_until_served(patience) %}
    {% if not pgtrickle.is_served() %}
      {% do exceptions.raise_database_error(
        "no running pgtrickle service serves the role " ~ pgtrickle.answer("select to_json(current_user)::text")
        ~ ", so stream tables can be neither made nor changed. Nothing was done.\n"
        ~ "  Hint: start one with the login of that role: pgtrickle run. It was waited for " ~ patience
        ~ " (config: service_timeout).") %}
    {% endif %}
  {% endif %}
{% endmacro %}

{% macro is_served() %}
  {{ return(pgtrickle.answer('select to_json(exists (' ~ pgtrickle.serving() ~ '))::text')) }}
{% endmacro %}

{% macro serving() %}
  select from pgtrickle.pgt_leaders as l
  join pg_catalog.pg_roles as s on s.rolname = l.role_name
  join pg_catalog.pg_roles as me on me.rolname = current_user
  where l.purpose = 'service' and l.connected and l.beats and pgtrickle_internal.serves(s.oid, me.oid)
{% endmacro %}

{% macro sleep_until_served(patience) %}
  {% call statement('pgtrickle_sleep', auto_begin=false) %}
    do $pgtrickle$
    begin
      while not exists ({{ pgtrickle.serving() }})
            and clock_timestamp() < statement_timestamp() + {{ patience }} loop
        perform pg_catalog.pg_sleep(0.2);
        perform pg_catalog.pg_stat_clear_snapshot();
      end loop;
    end
    $pgtrickle$
  {% endcall %}
{% endmacro %}

{# Makes a request by this call of a function, commits it, and waits for it. What came of it: state, error_code, error,
   hint, result. #}
{% macro ask(call) %}
  {% set request = pgtrickle.answer('select to_json(pgtrickle.' ~ call ~ ')::text', auto_begin=true) %}
  {% do adapter.commit() %}
  {# From here on there is no transaction, so the block may end its own again and again. #}
  {% call statement('pgtrickle_wait', auto_begin=false) %}
    do $pgtrickle$
    declare
      request pgtrickle.pgt_requests;
      patience constant timestamptz := clock_timestamp() + {{ pgtrickle.interval_of('wait_timeout', '1 hour') }};
      served_at timestamptz := clock_timestamp();
    begin
      loop
        select * into request from pgtrickle.pgt_requests where id = {{ request }};
        exit when request.id is null or request.state in ('DONE', 'FAILED') or clock_timestamp() >= patience;
        if pgtrickle.why_waiting({{ request }}) is null then
          served_at := clock_timestamp();
        end if;
        exit when clock_timestamp() >= served_at + {{ pgtrickle.interval_of('service_timeout', 10) }};
        commit;
        perform pg_catalog.pg_sleep(0.05);
      end loop;
    end
    $pgtrickle$
  {% endcall %}
  {% set outcome = pgtrickle.answer(
    "select coalesce((select jsonb_build_object('id', r.id, 'state', r.state, 'code', r.error_code, 'error', r.error,"
    ~ " 'hint', r.hint, 'result', coalesce(r.result, '{}'), 'waits', pgtrickle.why_waiting(r.id))"
    ~ " from pgtrickle.pgt_requests as r where r.id = " ~ request ~ "), '{}')::text") %}
  {% do log('pgtrickle: ' ~ call.split('(')[0] ~ ' of ' ~ this ~ ': request ' ~ request ~ ' is ' ~ outcome.get('state')) %}
  {{ return(outcome) }}
{% endmacro %}

{# The same, and raises its error. #}
{% macro ask_for(call) %}
  {% set outcome = pgtrickle.ask(call) %}
  {% do pgtrickle.require_done(outcome) %}
  {{ return(outcome['result']) }}
{% endmacro %}

{% macro require_done(outcome) %}
  {% if outcome.get('state') == 'FAILED' %}
    {% do exceptions.raise_database_error(
      (outcome['code'] or 'PT000') ~ ': ' ~ outcome['error'] ~ ('\n  Hint: ' ~ outcome['hint'] if outcome['hint'] else '')) %}
  {% elif outcome.get('state') != 'DONE' %}
    {% do exceptions.raise_database_error(
      'request ' ~ outcome.get('id') ~ ' is still ' ~ outcome.get('state')
      ~ (': ' ~ outcome['waits'] if outcome.get('waits') else '')
      ~ '\n  Hint: a service carries it out once it can; pgtrickle.pgt_requests tells how it ends. To wait longer, set'
      ~ ' wait_timeout.') %}
  {% endif %}
{% endmacro %}
