-- What the tables know of ids, and how many effects they have, in one snapshot.
with effect as materialized (
    select e.event_id::text as event_id, count(*) as copies
    from (select null::text where false) as e(event_id)
    where e.event_id::text = any($3::text[])
    group by 1
)
select
    array(
        select event_key from onceonly.ledger
        where pipeline_id = $1 and event_key = any($2::uuid[])
    ) as in_ledger,
    array(
        select event_key from onceonly.waiting
        where pipeline_id = $1 and event_key = any($2::uuid[])
    ) as waiting,
    array(
        select event_key from onceonly.dead_letter
        where pipeline_id = $1 and event_key = any($2::uuid[])
    ) as dead,
    array(select event_id from effect order by event_id) as effects,
    array(select copies from effect order by event_id) as copies
