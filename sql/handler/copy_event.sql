-- Where events land that no statement takes. `payload_text` or `payload_bytes` takes the place of
-- `payload` where handler.payload says so.
copy onceonly.event (
    event_id, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, kafka_key, headers, payload
) from stdin (format binary)
