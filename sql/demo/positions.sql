-- Where each partition stands, and who has it.
select partition, owner_name, next_offset, stopped
from demo_schema.position
order by partition
