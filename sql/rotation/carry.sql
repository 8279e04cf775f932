-- Ids of events that wait or are dead outlive their generation.
insert into onceonly.ledger_0 (event_key, kafka_offset, applied_at, source, body_hash)
select o.event_key, o.kafka_offset, o.applied_at, o.source, o.body_hash
from onceonly.ledger_oldest o
where exists (
        select from onceonly.waiting w where w.pipeline_id = $1 and w.event_key = o.event_key
    )
    or exists (
        select from onceonly.dead_letter d where d.pipeline_id = $1 and d.event_key = o.event_key
    )
on conflict (event_key) do nothing
