-- Where each partition stands, in its log and in time.
select topic, partition, next_offset, (extract(epoch from event_time) * 1000)::bigint as event_time_ms
from onceonly.position
where pipeline_id = $1
order by topic, partition
