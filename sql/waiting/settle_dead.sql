-- Failed for good. The first error and the latest are kept.
with gone as (
    delete from onceonly.waiting w
    using unnest($2::uuid[], $3::int[], $4::text[], $5::text[])
        as s(event_key, attempts, code, message)
    where w.pipeline_id = $1 and w.event_key = s.event_key and w.attempts = s.attempts
    returning w.*, s.code, s.message
)
insert into onceonly.dead_letter (
    pipeline_id, event_key, attempts, event_id, kafka_topic, kafka_partition, kafka_offset,
    kafka_timestamp, kafka_key, headers, payload, errors
)
select
    pipeline_id, event_key, attempts + 1, event_id, kafka_topic, kafka_partition, kafka_offset,
    kafka_timestamp, kafka_key, headers, payload,
    case when jsonb_array_length(errors) >= 20 then errors - 1 else errors end
        || jsonb_build_object(
            'attempt', attempts + 1, 'code', code, 'message', message, 'at', clock_timestamp()
        )
from gone
