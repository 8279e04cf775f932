-- The history of positions begins with the row, in this database: a schema that was made anew, and a
-- copy in another database, have histories of their own.
select
    p.id,
    p.generation,
    p.incarnation::text || '/' || d.oid::text as history
from onceonly.pipeline p, pg_database d
where p.name = $1 and d.datname = current_database()
