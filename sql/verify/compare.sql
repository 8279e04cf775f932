-- Ids whose effects are not as their state asks. Computed at once and kept by the server, on disk
-- where it is much, so that no transaction stays open while they are fetched.
declare onceonly_suspects no scroll cursor with hold for
select s.event_key, s.event_id, s.state
from pg_temp.onceonly_seen s
left join (
    select e.event_id::text as event_id, count(*) as copies
    from (select null::text where false) as e(event_id)
    group by 1
) e on e.event_id = s.event_id
where
    case s.state
        when 'applied' then coalesce(e.copies, 0) <> 1
        else coalesce(e.copies, 0) <> 0
    end
