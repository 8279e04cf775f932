-- Limits of the session: nothing of ours may wait, run or idle for ever, on either side.
select
    set_config('lock_timeout', $1, false),
    set_config('statement_timeout', $2, false),
    set_config('idle_in_transaction_session_timeout', $3, false),
    set_config('synchronous_commit', 'on', false),
    -- Locks of a client that vanished in the middle of a statement; where the server can look.
    case when version() like '%linux%' then
        set_config('client_connection_check_interval', '2000', false)
    end,
    set_config('tcp_keepalives_idle', '10', false),
    set_config('tcp_keepalives_interval', '5', false),
    set_config('tcp_keepalives_count', '3', false)
