select event_key, kafka_offset, applied_at, source, body_hash from onceonly.ledger_0
