-- Fails at the start where the default sink is not as `copy` needs it. A copy cannot be prepared.
select event_id, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, kafka_key, headers,
    payload, payload_text, payload_bytes
from onceonly.event
limit 0
