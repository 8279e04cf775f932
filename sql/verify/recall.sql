-- Ids that look missing, of those that a record before the horizon had already: they are forgotten.
update pg_temp.onceonly_seen
set state = 'forgotten'
where state = 'missing' and event_key = any($1::uuid[])
