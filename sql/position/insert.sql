-- Of two first claimers the first one's start counts. In order, as every lock.
insert into onceonly.position (pipeline_id, topic, partition, next_offset, high_water, start_offset)
select $1, $2, start.partition, start.next_offset, start.next_offset, start.next_offset
from unnest($3::int[], $4::bigint[]) as start(partition, next_offset)
order by start.partition
on conflict (pipeline_id, topic, partition) do nothing
