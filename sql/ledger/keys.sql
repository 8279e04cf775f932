-- The ids in a range of the table's blocks.
select coalesce(array_agg(event_key), '{}') as keys
from onceonly.ledger_0
where ctid >= format('(%s,0)', $1::bigint)::tid and ctid < format('(%s,0)', $2::bigint)::tid
