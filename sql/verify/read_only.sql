-- From here on the session can write to its temporary tables alone, whatever a user's query tries.
select set_config('default_transaction_read_only', 'on', false)
