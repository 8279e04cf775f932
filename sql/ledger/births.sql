-- When each generation was made. Of two histories of a database, no two make one at the same instant.
select generation, (extract(epoch from born_at) * 1000000)::bigint as born_at_us
from onceonly.generation
where pipeline_id = $1
