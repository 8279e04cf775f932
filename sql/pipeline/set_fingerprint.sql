-- Records a fingerprint over the one before.
update onceonly.pipeline
set cluster = coalesce($2, cluster), consumer_group = $3, identity = $4, scope = $5,
    retention_ms = $6, handler_kind = $7, handler_hash = $8,
    mark_namespace = mark_namespace + $9, updated_at = now()
where id = $1
returning mark_namespace
