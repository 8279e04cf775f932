-- Everything kept of the dead letters of an id. Under scope topic there may be several.
select
    event_key, event_id, state, attempts, kafka_topic, kafka_partition, kafka_offset,
    (extract(epoch from kafka_timestamp) * 1000)::bigint as timestamp_ms,
    (extract(epoch from dead_at) * 1000000)::bigint as dead_at_us,
    errors::text as errors, length(payload) as payload_bytes, kafka_key, payload,
    array(select h.name from unnest(headers) with ordinality h order by h.ordinality) as names,
    array(select h.value from unnest(headers) with ordinality h order by h.ordinality) as values
from onceonly.dead_letter
where pipeline_id = $1 and event_id = $2
order by kafka_topic, dead_at
