-- What the workers run for each batch of new events.
insert into demo_schema.effect (event_id, customer, amount)
select event_id, (payload->>'customer')::int, (payload->>'amount')::numeric from batch
