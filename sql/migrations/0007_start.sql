-- Where reading of a partition began: records before it were never this pipeline's. Null where that
-- was not recorded yet.
alter table onceonly.position
    add column start_offset bigint check (start_offset >= 0);
