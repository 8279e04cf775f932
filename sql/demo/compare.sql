-- Effects against what was produced, id by id: no counter has a say in it.
with effect as (
    select event_id, count(*) as times from demo_schema.effect group by event_id
)
select
    count(p.event_id) as produced,
    coalesce(sum(e.times), 0)::bigint as effects,
    count(*) filter (where e.event_id is null) as missing,
    count(*) filter (where e.times > 1) as repeated,
    count(*) filter (where p.event_id is null) as extra
from demo_schema.produced p
full join effect e on e.event_id = p.event_id
