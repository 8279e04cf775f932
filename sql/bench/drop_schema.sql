drop schema if exists bench_schema cascade
