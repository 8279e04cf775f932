-- `batch` means the temporary table and nothing else, whatever the search path of the user says or an
-- earlier statement made of it. Set before each statement, for this transaction.
select set_config('search_path', concat_ws(', ', 'pg_temp', nullif($1, '')), true)
