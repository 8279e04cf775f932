-- Where every partition stands, and what became of its records.
-- A producer's time may lie beyond what the reader's type holds, the years up to 9999.
select *,
    case when event_time is not null then
        (greatest(-62135596800, least(253402207200, extract(epoch from event_time))) * 1000000)
            ::bigint
    end as event_time_us,
    (extract(epoch from updated_at) * 1000000)::bigint as updated_at_us
from onceonly.position
where pipeline_id = $1
order by topic, partition
