-- Which server process answers.
select pg_backend_pid()::text as backend_pid
