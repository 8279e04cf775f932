select to_regtype('bench_schema.header')::oid as header_type
