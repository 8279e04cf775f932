-- Effects of ids that no record of the range has; kept as the suspects are.
declare onceonly_strangers no scroll cursor with hold for
select e.event_id::text as event_id
from (select null::text where false) as e(event_id)
where e.event_id is not null
    and not exists (
        select from pg_temp.onceonly_seen s where s.event_id = e.event_id::text
    )
group by 1
