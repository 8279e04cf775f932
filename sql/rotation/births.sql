select b.source, p.topic, p.partition
from onceonly.generation_birth b
join onceonly.position p on p.id = b.source
where b.pipeline_id = $1 and b.generation = $2
order by b.source
