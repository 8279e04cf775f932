select exists (select from onceonly.position where pipeline_id = $1 and topic = $2)
