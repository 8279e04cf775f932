-- What the demo produces, and what takes effect. An effect is a plain row without any key, so that
-- one applied twice shows.
create table demo_schema.produced (
    event_id text primary key
);

create table demo_schema.effect (
    event_id text not null,
    customer int not null,
    amount numeric not null
);
