-- Transactions with a higher number began after what was committed before this statement. A
-- snapshot's xmax would not do: it is the number after the last one that ended, and those that run
-- already may have higher ones.
select pg_current_xact_id()::text::bigint as number
