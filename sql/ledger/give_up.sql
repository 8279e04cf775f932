rollback to savepoint hope;
release savepoint hope
