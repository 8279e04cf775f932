-- Whether the schema exists: creating one asks for rights on the database even if it does.
select exists (select from pg_namespace where nspname = $1)
