savepoint hope
