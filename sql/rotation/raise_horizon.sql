-- One partition at a time, committed by itself: no writer waits for another's row. A partition that was
-- taken back behind the new horizon still needs the ids that are about to be forgotten.
update onceonly.position p
set horizon = greatest(p.horizon, b.next_offset)
from onceonly.generation_birth b
where b.pipeline_id = $1 and b.generation = $2 and b.source = $3
    and p.pipeline_id = $1 and p.id = b.source and p.next_offset >= b.next_offset
returning p.topic
