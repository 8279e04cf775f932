-- Of known keys those that were not applied. A statement of its own, since the claim's snapshot is
-- older than the transactions that it waited for.
select event_key, 'waiting' as fate
from onceonly.waiting
where pipeline_id = $1 and event_key = any($2::uuid[])
union all
select event_key, 'dead'
from onceonly.dead_letter
where pipeline_id = $1 and event_key = any($2::uuid[])
