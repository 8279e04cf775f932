-- Applied at last: the ledger alone remembers.
delete from onceonly.waiting w
using unnest($2::uuid[], $3::int[]) as s(event_key, attempts)
where w.pipeline_id = $1 and w.event_key = s.event_key and w.attempts = s.attempts
