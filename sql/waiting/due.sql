-- Rows that another worker has in hand are passed over.
select
    event_key, event_id, attempts, kafka_topic, kafka_partition, kafka_offset,
    (extract(epoch from kafka_timestamp) * 1000)::bigint as timestamp_ms, kafka_key, payload,
    array(select h.name from unnest(headers) with ordinality h order by h.ordinality) as names,
    array(select h.value from unnest(headers) with ordinality h order by h.ordinality) as values
from onceonly.waiting
where pipeline_id = $1 and due_at <= now()
order by due_at, kafka_topic, kafka_partition, kafka_offset
limit $2
for update skip locked
