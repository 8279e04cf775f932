-- Failed again. The first error and the latest are kept.
update onceonly.waiting w
set attempts = w.attempts + 1,
    due_at = clock_timestamp() + s.delay_us * interval '1 microsecond',
    errors = case when jsonb_array_length(w.errors) >= 20 then w.errors - 1 else w.errors end
        || jsonb_build_object(
            'attempt', w.attempts + 1, 'code', s.code, 'message', s.message,
            'at', clock_timestamp()
        )
from unnest($2::uuid[], $3::int[], $4::text[], $5::text[], $6::bigint[])
    as s(event_key, attempts, code, message, delay_us)
where w.pipeline_id = $1 and w.event_key = s.event_key and w.attempts = s.attempts
