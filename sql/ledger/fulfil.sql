release savepoint hope
