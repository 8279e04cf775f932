-- Where every partition stands, and what became of its records.
-- A producer's time may lie beyond what the reader's type holds, the years up to 9999.
select *,
    case when event_time is not null then
        (greatest(-62135596800, least(253402207200, extract(epoch from event_time))) * 1000000)
            ::bigint
    end as event_time_us,
    (extract(epoch from updated_at) * 1000000)::bigint as updated_at_us,
    (extract(epoch from clock_timestamp() - updated_at) * 1000000)::bigint as age_us,
    -- A member's sessions bear its name, as far as the server keeps it.
    exists (
        select from pg_stat_activity a
        where a.datname = current_database() and a.application_name = left(owner_name, 63)
    ) as owner_connected
from onceonly.position
where pipeline_id = $1
order by topic, partition
