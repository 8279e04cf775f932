-- Notes ids with the first record of each. Returns how many were new.
with noted as (
    insert into pg_temp.onceonly_seen
        (event_key, event_id, kafka_topic, kafka_partition, kafka_offset, state)
    select *
    from unnest($1::uuid[], $2::text[], $3::text[], $4::int[], $5::bigint[], $6::text[])
    on conflict (event_key) do nothing
    returning 1
)
select count(*) as noted from noted
