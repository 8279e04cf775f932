-- The first start of a pipeline records its fingerprint.
insert into onceonly.pipeline
    (name, cluster, consumer_group, identity, scope, retention_ms, handler_kind, handler_hash)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (name) do nothing
