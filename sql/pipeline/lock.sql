-- The recorded fingerprint, held against another start that compares or changes it.
select id, name, cluster, consumer_group, identity, scope, retention_ms, handler_kind, handler_hash,
    mark_namespace, generation,
    exists (select from onceonly.generation g where g.pipeline_id = p.id) as has_ledger
from onceonly.pipeline p
where name = $1
for update
