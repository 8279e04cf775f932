insert into onceonly.audit (pipeline_id, action, member, detail)
values ($1, $2, $3, $4::text::jsonb)
