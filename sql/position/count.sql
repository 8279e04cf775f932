-- The last statement of a batch. It counts only within the transaction that began: after a
-- handler's own commit it would otherwise commit by itself.
with tally as (
    select *
    from unnest(
        $3::text[], $4::int[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
        $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
        $15::bigint[], $16::bigint[]
    ) as t(
        topic, partition, applied, duplicate_batch, duplicate_position, duplicate_recent,
        duplicate_redis, duplicate_ledger, duplicate_waiting, duplicate_dead, retrying, dead,
        skipped, conflicts
    )
),
counted as (
    update onceonly.position p
    set applied = p.applied + t.applied,
        duplicate_batch = p.duplicate_batch + t.duplicate_batch,
        duplicate_position = p.duplicate_position + t.duplicate_position,
        duplicate_recent = p.duplicate_recent + t.duplicate_recent,
        duplicate_redis = p.duplicate_redis + t.duplicate_redis,
        duplicate_ledger = p.duplicate_ledger + t.duplicate_ledger,
        duplicate_waiting = p.duplicate_waiting + t.duplicate_waiting,
        duplicate_dead = p.duplicate_dead + t.duplicate_dead,
        retrying = p.retrying + t.retrying,
        dead = p.dead + t.dead,
        skipped = p.skipped + t.skipped,
        conflicts = p.conflicts + t.conflicts
    from tally t
    where p.pipeline_id = $1 and p.topic = t.topic and p.partition = t.partition
        and pg_current_xact_id()::text = $2
    returning 1
)
select pg_current_xact_id()::text as xid, (select count(*) from counted) as counted
