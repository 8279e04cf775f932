select source from onceonly.generation_birth
where pipeline_id = $1 and generation = $2
order by source
