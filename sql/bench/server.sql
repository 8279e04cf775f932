-- What of a server decides its speed.
select
    pg_backend_pid() as backend,
    current_setting('server_version') as version,
    current_setting('fsync') as fsync,
    current_setting('full_page_writes') as full_page_writes,
    current_setting('synchronous_commit') as synchronous_commit,
    current_setting('shared_buffers') as shared_buffers,
    current_setting('max_wal_size') as max_wal_size
