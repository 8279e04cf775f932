-- Opens a transaction and tells which server process it runs in.
begin;
select pg_backend_pid()::text as backend_pid
