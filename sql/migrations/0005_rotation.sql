-- What the rotation of generations needs. Claims write to `generation`, to `next_generation` as well
-- while that is set, and look into those from `oldest_generation` on.
alter table onceonly.pipeline
    add column oldest_generation int not null default 0,
    add column next_generation int,
    add constraint pipeline_generations_in_order check (
        oldest_generation between 0 and generation and next_generation = generation + 1
    );

-- Where each partition stood when a generation had begun to hold every id that is claimed: the
-- records from here on have theirs in this generation or a younger one.
create table onceonly.generation_birth (
    pipeline_id int not null,
    generation int not null,
    -- The partition's `position.id`.
    source int not null,
    next_offset bigint not null check (next_offset >= 0),
    primary key (pipeline_id, generation, source),
    foreign key (pipeline_id, generation) references onceonly.generation on delete cascade
);

-- Drops a generation that no claim looks into any more. It runs with the rights of whoever
-- migrated, who owns the tables.
create function onceonly.drop_generation(pipeline int, number int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform pg_advisory_xact_lock(hashtextextended('onceonly.add_generation', 0));
    if not exists (
        select from onceonly.pipeline p where p.id = pipeline and number < p.oldest_generation
    ) then
        raise exception 'generation % of pipeline % is in use', number, pipeline;
    end if;
    delete from onceonly.generation where pipeline_id = pipeline and generation = number;
    -- The view must let go of the table first.
    perform onceonly.show_generations();
    execute format('drop table onceonly.%I', format('ledger_%s_%s', pipeline, number));
end
$$;
