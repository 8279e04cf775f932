-- Dead letters, the latest first, without their payloads: those may be large.
select
    event_key, event_id, state, attempts, kafka_topic, kafka_partition, kafka_offset,
    (extract(epoch from kafka_timestamp) * 1000)::bigint as timestamp_ms,
    (extract(epoch from dead_at) * 1000000)::bigint as dead_at_us,
    errors::text as errors, length(payload) as payload_bytes
from onceonly.dead_letter
where pipeline_id = $1
    and state = 'dead'
    and ($2::text is null or event_id = $2)
    and (
        $3::text is null
        or errors -> -1 ->> 'code' = $3
        or strpos(lower(errors -> -1 ->> 'message'), lower($3)) > 0
    )
    and ($4::bigint is null or dead_at >= timestamptz 'epoch' + $4 * interval '1 microsecond')
    and ($5::text is null or kafka_topic = $5)
order by dead_at desc, event_key
limit $6
