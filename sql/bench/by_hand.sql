-- The user's statement over a batch that is sent by hand.
insert into bench_schema.bench_order (id, customer, amount, express)
select event_id::uuid, payload->>'customer', (payload->>'amount')::numeric, (payload->>'express')::boolean
from (
    select event_id, json::jsonb as payload from unnest($1::text[], $2::text[]) as b(event_id, json)
) batch
