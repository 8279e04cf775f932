fetch 5000 from onceonly_suspects
