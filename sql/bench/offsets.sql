select partition, next_offset from bench_schema.position
