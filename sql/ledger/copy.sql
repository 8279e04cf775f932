-- Claims ids that are hoped to be new. One that is known makes it fail; the savepoint before it keeps
-- the transaction.
copy onceonly.ledger_0 (event_key, kafka_offset, applied_at, source, body_hash)
from stdin (format binary)
