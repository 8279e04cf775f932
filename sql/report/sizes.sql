-- How much a pipeline has in each table. The ledger's rows are the planner's estimate, since
-- counting them reads them all; -1 where it has none yet.
select
    (
        select coalesce(sum(c.reltuples), 0)::bigint
        from onceonly.generation g
        join pg_class c on c.oid = to_regclass(
            format('onceonly.%I', format('ledger_%s_%s', g.pipeline_id, g.generation))
        )
        where g.pipeline_id = $1
    ) as ledger_rows,
    (
        select coalesce(sum(pg_total_relation_size(to_regclass(
            format('onceonly.%I', format('ledger_%s_%s', g.pipeline_id, g.generation))
        ))), 0)::bigint
        from onceonly.generation g
        where g.pipeline_id = $1
    ) as ledger_bytes,
    (select count(*) from onceonly.generation where pipeline_id = $1) as generations,
    (select count(*) from onceonly.waiting where pipeline_id = $1) as waiting,
    (
        select (extract(epoch from min(due_at)) * 1000000)::bigint
        from onceonly.waiting where pipeline_id = $1
    ) as next_due_us,
    (
        select count(*) from onceonly.dead_letter where pipeline_id = $1 and state = 'dead'
    ) as dead,
    (
        select count(*) from onceonly.dead_letter where pipeline_id = $1 and state = 'discarded'
    ) as discarded
