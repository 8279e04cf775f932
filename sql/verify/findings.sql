-- The first ids of these states, state by state.
select event_key, event_id, kafka_topic, kafka_partition, kafka_offset, state
from pg_temp.onceonly_seen
where state = any($1::text[])
order by array_position($1::text[], state), kafka_topic, kafka_partition, kafka_offset, event_id
limit $2
