-- What there is of effects, to be compared with what must be: each id once, and its own payload.
select
    count(*) as effects,
    count(distinct event_id) as ids,
    coalesce(sum(('x' || translate(event_id, '-', ''))::bit(60)::bigint), 0)::text as id_sum,
    count(*) filter (where payload->>'id' is distinct from event_id) as strange
from bench_schema.event
