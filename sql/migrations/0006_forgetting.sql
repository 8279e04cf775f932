-- What automatic forgetting needs: where in the pipeline's own time a generation began to hold every
-- id. Null until it is known; a later time only means a longer memory.
alter table onceonly.generation add column event_time timestamptz;

-- As before, and whoever may use the generation before may use the new one.
create or replace function onceonly.add_generation(pipeline int) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    number int;
    name text;
    allowed record;
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
    for allowed in
        select g.privilege_type, r.rolname, g.grantee
        from pg_class c
        cross join lateral aclexplode(c.relacl) g
        left join pg_roles r on r.oid = g.grantee
        where c.oid = to_regclass(
            format('onceonly.%I', format('ledger_%s_%s', pipeline, number - 1))
        ) and g.grantee <> c.relowner
    loop
        execute format(
            'grant %s on onceonly.%I to %s', allowed.privilege_type, name,
            case when allowed.grantee = 0 then 'public' else quote_ident(allowed.rolname) end
        );
    end loop;
    perform onceonly.show_generations();
    return number;
end
$$;

comment on view onceonly.ledger is
    'The ids that every pipeline remembers. In the midst of a rotation an id can be in two generations.';
