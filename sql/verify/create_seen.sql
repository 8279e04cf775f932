-- Ids that were met, with the record that came first, and what was found out about them. Ends with
-- the session.
create temporary table onceonly_seen (
    event_key uuid primary key,
    event_id text not null,
    -- Null for an effect that no record belongs to.
    kafka_topic text collate "C",
    kafka_partition int,
    kafka_offset bigint,
    state text not null
)
