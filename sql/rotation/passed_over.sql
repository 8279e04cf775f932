-- Generations that no claim looks into any more.
select g.generation
from onceonly.generation g
join onceonly.pipeline p on p.id = g.pipeline_id
where p.id = $1 and g.generation < p.oldest_generation
order by g.generation
