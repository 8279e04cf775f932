-- Where events land when a pipeline has no statement of its own. No key: the ledger keeps them
-- unique, and an index would cost every event. Add what your queries need.
create table onceonly.event (
    event_id text not null,
    kafka_topic text not null,
    kafka_partition int not null,
    kafka_offset bigint not null,
    kafka_timestamp timestamptz,
    kafka_key bytea,
    headers onceonly.header[] not null,
    -- The one that handler.payload names is set; none for a tombstone.
    payload jsonb,
    payload_text text,
    payload_bytes bytea,
    check (num_nonnulls(payload, payload_text, payload_bytes) <= 1)
);
