select onceonly.add_generation($1)
