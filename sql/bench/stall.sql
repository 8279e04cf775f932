-- Nobody moves a position until this transaction ends; looking is free.
begin;
lock table bench_schema.position in exclusive mode
