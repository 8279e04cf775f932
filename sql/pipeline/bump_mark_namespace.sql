update onceonly.pipeline
set mark_namespace = mark_namespace + 1, updated_at = now()
where id = $1
returning mark_namespace
