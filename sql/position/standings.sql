select id, topic, partition, epoch, next_offset, high_water, topic_id
from onceonly.position
where pipeline_id = $1
order by topic, partition
