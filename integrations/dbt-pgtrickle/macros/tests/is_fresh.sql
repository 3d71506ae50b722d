{# A test of a model that is a stream table: it is refreshed, and its data is no older than `within`.

     data_tests:
       - pgtrickle.is_fresh:
           arguments: {within: 5 minutes}
#}
{% test is_fresh(model, within='5 minutes') %}
select coalesce(p.status, 'it is no stream table') as status, p.last_error, t.data_timestamp
from (select pg_catalog.to_regclass({{ pgtrickle.literal(model) }}) as relid) as m
left join pgtrickle.pgt_stream_tables as t on t.pgt_relid = m.relid
left join pgtrickle.pgt_present as p using (pgt_id)
where (p.status = 'ACTIVE' and t.is_populated
       and (t.effective_mode = 'IMMEDIATE'
            or t.data_timestamp >= now() - interval {{ pgtrickle.literal(within) }})) is not true
{% endtest %}
