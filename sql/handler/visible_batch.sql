-- A table of the user's that the name `batch` means already.
select n.nspname::text as schema
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where c.relname = 'batch' and n.nspname = any(current_schemas(false))
limit 1
