-- Every transaction before this number has ended.
select pg_snapshot_xmin(pg_current_snapshot())::text::bigint as xmin
