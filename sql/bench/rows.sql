-- The least that keeps an event once: its effect beside a unique key, in one table.
create table bench_schema.bench_row (
    event_key uuid primary key,
    event_id text not null,
    kafka_topic text not null,
    kafka_partition int not null,
    kafka_offset bigint not null,
    kafka_timestamp timestamptz,
    kafka_key bytea,
    headers bench_schema.header[] not null,
    payload jsonb
)
