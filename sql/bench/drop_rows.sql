drop table if exists bench_schema.bench_row
