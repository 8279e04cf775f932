-- How often partitions were claimed, how far they are together, how long ago the transaction began that
-- moved one first, and why one of them stands still.
select
    coalesce(sum(epoch), 0)::bigint as claims,
    coalesce(sum(next_offset), 0)::bigint as consumed,
    extract(
        epoch from clock_timestamp() - min(updated_at) filter (where next_offset > 0)
    )::float8 as seconds_since,
    min(stopped) as stopped
from bench_schema.position
