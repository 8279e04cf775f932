-- A person's decision: the owner is fenced, and the next one records topic and cluster afresh.
update onceonly.position p
set next_offset = $4,
    high_water = greatest(p.high_water, $4),
    epoch = p.epoch + 1,
    owner = null,
    owner_name = null,
    topic_id = null,
    cluster_id = null,
    stopped = null,
    updated_at = now()
from onceonly.position old
where p.pipeline_id = $1 and p.topic = $2 and p.partition = $3 and old.id = p.id
returning old.next_offset as before, old.stopped as stopped_before, p.epoch
