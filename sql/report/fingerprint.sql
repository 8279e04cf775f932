-- A pipeline's recorded fingerprint.
select name, cluster, consumer_group, identity, scope, retention_ms, handler_kind, handler_hash
from onceonly.pipeline
where id = $1
