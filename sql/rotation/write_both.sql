-- The next generation, and the step in which claims write to both. All in one transaction: who sees
-- the step sees the table.
update onceonly.pipeline
set next_generation = onceonly.add_generation(id), updated_at = now()
where id = $1 and next_generation is null
