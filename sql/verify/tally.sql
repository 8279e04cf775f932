select state, count(*) as ids from pg_temp.onceonly_seen group by state
