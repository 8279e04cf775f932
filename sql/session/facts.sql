-- What must be known of a server before it is used. As text: it is asked in the simple protocol,
-- which works through any proxy.
select
    pg_backend_pid()::text as backend_pid,
    case when pg_is_in_recovery() then 'standby' else 'primary' end as role,
    current_setting('server_version_num') as server_version,
    current_setting('server_encoding') as server_encoding
