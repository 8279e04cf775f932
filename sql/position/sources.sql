-- The short names of partitions in the ledger.
select id, topic, partition
from onceonly.position
where pipeline_id = $1
    and (topic, partition) in (select * from unnest($2::text[], $3::int[]))
