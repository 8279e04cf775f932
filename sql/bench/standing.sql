-- How often partitions were claimed, how far they are together, and why one of them stands still.
select
    coalesce(sum(epoch), 0)::bigint as claims,
    coalesce(sum(next_offset), 0)::bigint as consumed,
    min(stopped) as stopped
from bench_schema.position
