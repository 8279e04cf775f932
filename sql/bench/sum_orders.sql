-- The same where a user's statement has the effects.
select
    count(*) as effects,
    count(distinct id) as ids,
    coalesce(sum(('x' || translate(id::text, '-', ''))::bit(60)::bigint), 0)::text as id_sum,
    0::bigint as strange
from bench_schema.bench_order
