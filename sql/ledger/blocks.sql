select pg_relation_size('onceonly.ledger_0') / current_setting('block_size')::bigint as blocks
