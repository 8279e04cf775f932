-- Never the database's default isolation: a racing id would be a serialization failure.
-- Assigning the transaction's number at once lets the end see whether it is still the same.
begin isolation level read committed read write;
select
    pg_current_xact_id()::text as xid,
    (extract(epoch from now()) * 1000000)::bigint - 946684800000000 as began_at_us
