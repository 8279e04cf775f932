-- The first ids whose effects are not one.
with effect as (
    select event_id, count(*) as times from demo_schema.effect group by event_id
)
select
    coalesce(p.event_id, e.event_id) as event_id,
    p.event_id is not null as produced,
    coalesce(e.times, 0) as times
from demo_schema.produced p
full join effect e on e.event_id = p.event_id
where p.event_id is null or e.times is distinct from 1
order by 1
limit $1
