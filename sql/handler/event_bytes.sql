-- Where events land that no statement takes, with handler.payload = "bytes".
insert into onceonly.event (
    event_id, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, kafka_key, headers,
    payload_bytes
)
select
    event_id, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp, kafka_key, headers,
    payload
from batch
