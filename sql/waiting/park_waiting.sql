-- Failed events whose time is to come. Headers arrive as one flat list that names each one's event.
with header as (
    select h.event, array_agg(row(h.name, h.value)::onceonly.header order by h.ordinal) as headers
    from unnest($12::bigint[], $13::text[], $14::bytea[])
        with ordinality as h(event, name, value, ordinal)
    group by h.event
)
insert into onceonly.waiting (
    pipeline_id, event_key, attempts, due_at, event_id, kafka_topic, kafka_partition, kafka_offset,
    kafka_timestamp, kafka_key, headers, payload, errors
)
select
    $1, e.event_key, 1, clock_timestamp() + e.delay_us * interval '1 microsecond', e.event_id,
    e.topic, e.partition, e.kafka_offset,
    timestamptz '2000-01-01 00:00:00+00'
        + (e.timestamp_ms - 946684800000) * interval '1 millisecond',
    e.kafka_key,
    coalesce(h.headers, '{}'), e.payload,
    jsonb_build_array(jsonb_build_object(
        'attempt', 1, 'code', e.code, 'message', e.message, 'at', clock_timestamp()
    ))
from unnest(
    $2::uuid[], $3::text[], $4::text[], $5::int[], $6::bigint[], $7::bigint[], $8::bytea[],
    $9::bytea[], $10::text[], $11::text[], $15::bigint[]
) with ordinality as e(
    event_key, event_id, topic, partition, kafka_offset, timestamp_ms, kafka_key, payload, code,
    message, delay_us, ordinal
)
left join header h on h.event = e.ordinal
