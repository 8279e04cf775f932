-- The select fails in an aborted transaction, in which a commit would quietly roll back.
select 1;
commit
