-- Corrects what was noted of ids.
update pg_temp.onceonly_seen s
set state = n.state
from unnest($1::uuid[], $2::text[]) as n(event_key, state)
where s.event_key = n.event_key
