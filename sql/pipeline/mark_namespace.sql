select mark_namespace from onceonly.pipeline where id = $1
