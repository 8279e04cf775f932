-- The type's number, which the binary form of an array carries, and the session's limit and path.
select
    to_regtype('onceonly.header')::oid as header_type,
    (
        select setting::bigint from pg_settings where name = 'statement_timeout'
    ) as statement_timeout_ms,
    current_setting('search_path') as search_path
