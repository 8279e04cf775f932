-- One member rotates at a time. The lock ends with the connection.
select pg_try_advisory_lock(hashtextextended('onceonly.rotation ' || $1::int, 0)) as locked
