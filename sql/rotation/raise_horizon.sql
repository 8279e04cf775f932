-- One partition at a time, committed by itself: no writer waits for another's row.
update onceonly.position p
set horizon = greatest(p.horizon, b.next_offset)
from onceonly.generation_birth b
where b.pipeline_id = $1 and b.generation = $2 and b.source = $3
    and p.pipeline_id = $1 and p.id = b.source
