-- A new owner: the epoch rises, and with it everything older is fenced. The rows are locked.
update onceonly.position p
set epoch = p.epoch + 1,
    owner = $2,
    owner_name = $3,
    next_offset = t.next_offset,
    high_water = greatest(p.high_water, t.next_offset),
    -- One that is not known stays so.
    start_offset = case
        when t.next_offset < p.start_offset then t.next_offset else p.start_offset
    end,
    topic_id = t.topic_id,
    cluster_id = t.cluster_id,
    stopped = t.stopped,
    updated_at = now()
from unnest($4::text[], $5::int[], $6::bigint[], $7::uuid[], $8::text[], $9::text[])
    as t(topic, partition, next_offset, topic_id, cluster_id, stopped)
where p.pipeline_id = $1 and p.topic = t.topic and p.partition = t.partition
returning p.topic, p.partition, p.epoch
