-- Which ids an older generation holds.
select o.event_key from onceonly.ledger_older o where o.event_key = any($1::uuid[])
