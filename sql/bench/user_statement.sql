-- A user's statement, as in handler.statements.
insert into bench_schema.bench_order (id, customer, amount, express)
select event_id::uuid, payload->>'customer', (payload->>'amount')::numeric, (payload->>'express')::boolean
from batch
