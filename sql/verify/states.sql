-- What the tables know of ids, in one snapshot.
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
    ) as dead
