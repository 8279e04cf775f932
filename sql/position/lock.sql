-- Locks rows in one order everywhere, so that no two workers wait for each other in a circle.
select id, topic, partition, epoch, next_offset, high_water, horizon, topic_id, cluster_id, stopped
from onceonly.position
where pipeline_id = $1
    and (topic, partition) in (select * from unnest($2::text[], $3::int[]))
order by topic, partition
for update
