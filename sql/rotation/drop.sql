select onceonly.drop_generation($1, $2)
