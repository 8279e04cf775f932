-- Generations of each pipeline's ledger: one plain table each, named ledger_<pipeline>_<generation>,
-- so that forgetting ids is dropping a table.
create table onceonly.generation (
    pipeline_id int not null references onceonly.pipeline,
    generation int not null check (generation >= 0),
    born_at timestamptz not null default now(),
    primary key (pipeline_id, generation)
);

-- The ledger of all pipelines, to look at. Writers use the tables, so that replacing this view
-- waits for no writer.
create view onceonly.ledger as
select
    null::int as pipeline_id,
    null::int as generation,
    null::uuid as event_key,
    null::text collate "C" as kafka_topic,
    null::int as kafka_partition,
    null::bigint as kafka_offset,
    null::timestamptz as applied_at,
    null::bigint as body_hash
where false;

create function onceonly.show_generations() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    branches text;
begin
    select string_agg(
        format(
            'select %s as pipeline_id, %s as generation, l.event_key, p.topic as kafka_topic, '
            'p.partition as kafka_partition, l.kafka_offset, l.applied_at, l.body_hash '
            'from onceonly.%I l left join onceonly.position p on p.id = l.source',
            pipeline_id, generation, format('ledger_%s_%s', pipeline_id, generation)
        ),
        ' union all ' order by pipeline_id, generation
    )
    into branches
    from onceonly.generation;
    execute 'create or replace view onceonly.ledger as ' || branches;
end
$$;

-- Creates a pipeline's next generation and returns its number. It runs with the rights of whoever
-- migrated, so that the role of a running pipeline needs no right to create anything.
create function onceonly.add_generation(pipeline int) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    number int;
    name text;
begin
    -- One at a time: two replacements of the view would fail each other.
    perform pg_advisory_xact_lock(hashtextextended('onceonly.add_generation', 0));
    select coalesce(max(generation) + 1, 0) into number
    from onceonly.generation where pipeline_id = pipeline;
    name := format('ledger_%s_%s', pipeline, number);
    insert into onceonly.generation (pipeline_id, generation) values (pipeline, number);
    -- Columns from wide to narrow: no padding between them, 64 bytes a row.
    execute format(
        'create table onceonly.%I ('
        'event_key uuid primary key, '
        'kafka_offset bigint not null, '
        'applied_at timestamptz not null, '
        'source int not null, '
        'body_hash bigint)',
        name
    );
    execute format('grant select, insert, delete on onceonly.%I to %I', name, session_user);
    perform onceonly.show_generations();
    return number;
end
$$;

revoke all on function onceonly.show_generations() from public;
