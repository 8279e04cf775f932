select id, generation from onceonly.pipeline where name = $1
