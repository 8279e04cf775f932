-- Nobody writes to the current generation alone any more: the next one takes its place, and where
-- the partitions stand now is where its memory begins to be complete.
with born as (
    insert into onceonly.generation_birth (pipeline_id, generation, source, next_offset)
    select p.pipeline_id, l.next_generation, p.id, p.next_offset
    from onceonly.position p
    join onceonly.pipeline l on l.id = p.pipeline_id
    where l.id = $1 and l.next_generation is not null
)
update onceonly.pipeline
set generation = next_generation, next_generation = null, updated_at = now()
where id = $1 and next_generation is not null
