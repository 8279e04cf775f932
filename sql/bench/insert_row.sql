-- One event, one transaction.
insert into bench_schema.bench_row (
    event_key, event_id, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, kafka_key,
    headers, payload
)
values (
    $1, $2, $3, $4, $5, now(), $6, array[row('event-id', convert_to($2, 'UTF8'))::bench_schema.header],
    $7::text::jsonb
)
on conflict (event_key) do nothing
