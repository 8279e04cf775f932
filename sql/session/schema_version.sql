-- The newest migration applied.
select max(version) from onceonly._sqlx_migrations
