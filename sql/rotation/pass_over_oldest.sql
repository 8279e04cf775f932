-- Claims look into the oldest generation no more.
update onceonly.pipeline
set oldest_generation = oldest_generation + 1, updated_at = now()
where id = $1 and oldest_generation = $2 and oldest_generation < generation
