-- Where in the pipeline's own time a generation was complete. Known once, it stays.
update onceonly.generation
set event_time = to_timestamp($3::bigint / 1000.0)
where pipeline_id = $1 and generation = $2 and event_time is null
