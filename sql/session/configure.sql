-- Limits of the session: nothing of ours may wait, run or idle for ever, on either side.
select
    set_config('lock_timeout', $1, false),
    set_config('statement_timeout', $2, false),
    set_config('idle_in_transaction_session_timeout', $3, false),
    set_config('synchronous_commit', 'on', false),
    set_config('tcp_keepalives_idle', '10', false),
    set_config('tcp_keepalives_interval', '5', false),
    set_config('tcp_keepalives_count', '3', false)
