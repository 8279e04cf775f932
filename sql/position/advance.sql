-- The first statement of a batch after its transaction got its number, so it also reads which
-- generations the batch's ids are claimed in. A plain update promises no order of locking, so the rows are
-- locked first, by topic and partition, and moved only where the owner and its place still hold.
with move as (
    select *
    from unnest($2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
        as m(topic, partition, epoch, from_offset, to_offset, event_time_ms)
),
locked as (
    select p.id, m.epoch, m.from_offset, m.to_offset, m.event_time_ms
    from onceonly.position p
    join move m on m.topic = p.topic and m.partition = p.partition
    where p.pipeline_id = $1
    order by p.topic, p.partition
    for update of p
)
update onceonly.position p
set next_offset = l.to_offset,
    high_water = greatest(p.high_water, l.to_offset),
    -- Unset and absurd times, from before Kafka or from tomorrow, count as the one before.
    event_time = case
        when l.event_time_ms between 1262304000000
            and (extract(epoch from now()) * 1000)::bigint + 86400000
        then timestamptz '2000-01-01 00:00:00+00'
            + (l.event_time_ms - 946684800000) * interval '1 millisecond'
        else p.event_time
    end,
    updated_at = now()
from locked l
join onceonly.pipeline g on g.id = $1
where p.id = l.id and p.epoch = l.epoch and p.next_offset = l.from_offset
returning p.topic, p.partition, p.id, g.oldest_generation, g.generation, g.next_generation
