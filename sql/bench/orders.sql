-- What a user's statement fills.
drop table if exists bench_schema.bench_order;
create table bench_schema.bench_order (
    id uuid primary key,
    customer text not null,
    amount numeric not null,
    express boolean not null
)
