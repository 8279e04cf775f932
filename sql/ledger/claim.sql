-- The keys come sorted, and are inserted in that order: two batches never wait for each other in a
-- circle. Who meets an id of an open transaction waits for its end. For one generation that nobody
-- looks beyond.
with claimed as (
    insert into onceonly.ledger_0 (event_key, kafka_offset, applied_at, source, body_hash)
    select e.event_key, e.kafka_offset, now(), e.source, e.body_hash
    from unnest($1::uuid[], $2::bigint[], $3::int[], $4::bigint[])
        as e(event_key, kafka_offset, source, body_hash)
    on conflict (event_key) do nothing
    returning event_key
)
select coalesce(array_agg(event_key), '{}') from claimed
