-- A person's decision: the owner is fenced, and the next one records topic and cluster afresh.
-- In another log ($5) nothing was committed yet, and no id of its records can be forgotten.
with another_log as (
    delete from onceonly.generation_birth b
    using onceonly.position p
    where $5 and p.pipeline_id = $1 and p.topic = $2 and p.partition = $3
        and b.pipeline_id = p.pipeline_id and b.source = p.id
)
update onceonly.position p
set next_offset = $4,
    high_water = case when $5 then $4 else greatest(p.high_water, $4) end,
    horizon = case when $5 then 0 else p.horizon end,
    -- One that is not known stays so.
    start_offset = case when $5 or $4 < p.start_offset then $4 else p.start_offset end,
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
