-- A record's header: names may repeat, values may be null.
create type onceonly.header as (name text, value bytea);

-- A pipeline and its fingerprint: what must not change under ids that are already known.
create table onceonly.pipeline (
    id int generated always as identity primary key,
    name text collate "C" not null unique check (name <> ''),
    -- Null until a broker tells.
    cluster text,
    consumer_group text not null,
    identity text not null,
    scope text not null check (scope in ('pipeline', 'topic')),
    retention_ms bigint not null check (retention_ms > 0),
    handler_kind text not null,
    -- Recorded so that a deploy can be told from another; never compared.
    handler_hash text not null,
    -- Names this history of the pipeline: marks of another one prove nothing here.
    incarnation uuid not null default gen_random_uuid(),
    mark_namespace int not null default 0 check (mark_namespace >= 0),
    generation int not null default 0 check (generation >= 0),
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
) with (fillfactor = 70);

-- Where each partition stands. Hot rows: room on the page keeps their updates off the indexes.
create table onceonly.position (
    pipeline_id int not null references onceonly.pipeline,
    topic text collate "C" not null,
    partition int not null check (partition >= 0),
    -- Short name of the partition in the ledger.
    id int generated always as identity unique,
    epoch bigint not null default 0 check (epoch >= 0),
    owner uuid,
    owner_name text,
    next_offset bigint not null check (next_offset >= 0),
    high_water bigint not null,
    horizon bigint not null default 0 check (horizon >= 0),
    topic_id uuid,
    cluster_id text,
    stopped text check (stopped <> ''),
    event_time timestamptz,
    updated_at timestamptz not null default now(),
    applied bigint not null default 0 check (applied >= 0),
    duplicate_batch bigint not null default 0 check (duplicate_batch >= 0),
    duplicate_position bigint not null default 0 check (duplicate_position >= 0),
    duplicate_recent bigint not null default 0 check (duplicate_recent >= 0),
    duplicate_redis bigint not null default 0 check (duplicate_redis >= 0),
    duplicate_ledger bigint not null default 0 check (duplicate_ledger >= 0),
    duplicate_waiting bigint not null default 0 check (duplicate_waiting >= 0),
    duplicate_dead bigint not null default 0 check (duplicate_dead >= 0),
    retrying bigint not null default 0 check (retrying >= 0),
    dead bigint not null default 0 check (dead >= 0),
    skipped bigint not null default 0 check (skipped >= 0),
    conflicts bigint not null default 0 check (conflicts >= 0),
    primary key (pipeline_id, topic, partition),
    constraint position_below_high_water check (next_offset <= high_water)
) with (
    fillfactor = 30,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000
);

-- What people did to a pipeline.
create table onceonly.audit (
    id bigint generated always as identity primary key,
    at timestamptz not null default now(),
    pipeline_id int not null references onceonly.pipeline,
    action text not null,
    -- The database's user, and the name that the command gave itself.
    role text not null default session_user,
    member text not null,
    detail jsonb not null
);
