-- The generations that claims look into, from the oldest to the current one. How many ids they hold
-- is an estimate, since counting reads them all.
select
    g.generation,
    (extract(epoch from g.event_time) * 1000)::bigint as event_time_ms,
    (extract(epoch from g.born_at) * 1000000)::bigint as born_at_us,
    coalesce(pg_total_relation_size(c.oid), 0) as bytes,
    coalesce(greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid), 0), 0) as ids
from onceonly.pipeline p
join onceonly.generation g
    on g.pipeline_id = p.id and g.generation between p.oldest_generation and p.generation
left join pg_class c on c.oid = to_regclass(
    format('onceonly.%I', format('ledger_%s_%s', g.pipeline_id, g.generation))
)
where p.id = $1
order by g.generation
