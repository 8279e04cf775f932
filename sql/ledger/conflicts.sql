-- Of known keys those whose body was another when they were first seen.
select l.event_key
from unnest($1::uuid[], $2::bigint[]) as e(event_key, body_hash)
join onceonly.ledger_0 l on l.event_key = e.event_key
where l.body_hash <> e.body_hash
