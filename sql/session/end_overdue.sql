-- A server process that waits for its client's rows obeys no statement_timeout, and a client that
-- was frozen in the middle of a copy would hold its positions for ever. Ends processes of this user
-- that hold positions and have waited so for longer than a statement may take.
select count(pg_terminate_backend(a.pid)) as ended
from pg_stat_activity a
where
    a.datname = current_database()
    and a.usename = current_user
    and a.pid <> pg_backend_pid()
    and a.state = 'active'
    and a.wait_event = 'ClientRead'
    and a.query_start < now() - current_setting('statement_timeout')::interval
    and current_setting('statement_timeout') <> '0'
    and exists (
        select from pg_locks l
        where l.pid = a.pid and l.granted and l.relation = 'onceonly.position'::regclass
    )
