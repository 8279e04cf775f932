-- Which of these bodies is not the one that came with its id first.
select e.ordinal
from unnest($1::uuid[], $2::bigint[]) with ordinality as e(event_key, body_hash, ordinal)
join onceonly.ledger_every l on l.event_key = e.event_key
where l.body_hash <> e.body_hash
