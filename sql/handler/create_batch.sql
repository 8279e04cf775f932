-- The batch's new events, for the statements of a handler. One table a connection: creating it for
-- each batch would bloat the catalog. `text` or `bytea` takes the place of `jsonb` where
-- handler.payload says so.
create temporary table if not exists batch (
    event_id text not null,
    kafka_topic text not null,
    kafka_partition int not null,
    kafka_offset bigint not null,
    kafka_timestamp timestamptz,
    kafka_key bytea,
    headers onceonly.header[] not null,
    payload jsonb
) on commit delete rows
