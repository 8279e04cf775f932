update onceonly.position
set stopped = $5, updated_at = now()
where pipeline_id = $1 and topic = $2 and partition = $3 and epoch = $4
