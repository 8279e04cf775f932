-- What became of the records, as counted in the transactions that committed them.
select
    coalesce(sum(applied), 0)::bigint as applied,
    coalesce(sum(duplicate_batch), 0)::bigint as duplicate_batch,
    coalesce(sum(duplicate_position), 0)::bigint as duplicate_position,
    coalesce(sum(duplicate_recent), 0)::bigint as duplicate_recent,
    coalesce(sum(duplicate_redis), 0)::bigint as duplicate_redis,
    coalesce(sum(duplicate_ledger), 0)::bigint as duplicate_ledger,
    coalesce(sum(duplicate_waiting), 0)::bigint as duplicate_waiting,
    coalesce(sum(duplicate_dead), 0)::bigint as duplicate_dead,
    coalesce(sum(retrying), 0)::bigint as retrying,
    coalesce(sum(dead), 0)::bigint as dead,
    coalesce(sum(skipped), 0)::bigint as skipped
from demo_schema.position
