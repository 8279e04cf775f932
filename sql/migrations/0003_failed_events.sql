-- Events that failed and wait for another attempt. Their ids are in the ledger.
create table onceonly.waiting (
    pipeline_id int not null references onceonly.pipeline,
    event_key uuid not null,
    -- Attempts made. A row changes only by compare-and-set on it.
    attempts int not null check (attempts >= 0),
    due_at timestamptz not null,
    waiting_since timestamptz not null default now(),
    event_id text not null,
    kafka_topic text collate "C" not null,
    kafka_partition int not null,
    kafka_offset bigint not null,
    kafka_timestamp timestamptz,
    kafka_key bytea,
    headers onceonly.header[] not null,
    payload bytea,
    -- Of each attempt: attempt, code, message, at.
    errors jsonb not null default '[]'
        check (jsonb_typeof(errors) = 'array' and jsonb_array_length(errors) <= 20),
    primary key (pipeline_id, event_key)
);

create index waiting_due on onceonly.waiting (pipeline_id, due_at);

-- Events that failed for good, until a person decides. Their ids are in the ledger.
create table onceonly.dead_letter (
    pipeline_id int not null references onceonly.pipeline,
    event_key uuid not null,
    state text not null default 'dead' check (state in ('dead', 'discarded')),
    attempts int not null check (attempts >= 0),
    dead_at timestamptz not null default now(),
    event_id text not null,
    kafka_topic text collate "C" not null,
    kafka_partition int not null,
    kafka_offset bigint not null,
    kafka_timestamp timestamptz,
    kafka_key bytea,
    headers onceonly.header[] not null,
    payload bytea,
    errors jsonb not null default '[]'
        check (jsonb_typeof(errors) = 'array' and jsonb_array_length(errors) <= 20),
    primary key (pipeline_id, event_key)
);

create index dead_letter_dead_at on onceonly.dead_letter (pipeline_id, dead_at);
