-- The claim where older generations are still looked into. Nobody writes to those any more who could
-- be met here, so this statement's snapshot has all of their ids.
with claimed as (
    insert into onceonly.ledger_0 (event_key, kafka_offset, applied_at, source, body_hash)
    select e.event_key, e.kafka_offset, now(), e.source, e.body_hash
    from unnest($1::uuid[], $2::bigint[], $3::int[], $4::bigint[])
        as e(event_key, kafka_offset, source, body_hash)
    where not exists (select from onceonly.ledger_older o where o.event_key = e.event_key)
    order by e.event_key
    on conflict (event_key) do nothing
    returning event_key
)
select coalesce(array_agg(event_key), '{}') from claimed
