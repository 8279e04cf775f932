copy bench_schema.bench_row (
    event_key, event_id, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, kafka_key,
    headers, payload
) from stdin (format binary)
