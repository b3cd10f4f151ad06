-- Waking up. NOTIFY takes a lock across the whole database from before the commit until after it, so one per publish would
-- cap a server at some hundreds of commits a second. Two things keep it rare: publishers notify only while somebody has
-- said that he waits, and of the publishers to one stream that are in flight at one time only one notifies. What that
-- one's notification comes too early for is found by the waiter's poll a few milliseconds later.

create function headrace.wake(p_stream int) returns void
language plpgsql as $$
begin
    if exists (select from headrace.waiting where stream_id = p_stream and until > clock_timestamp())
       and pg_try_advisory_xact_lock(1212498509, p_stream) then
        perform pg_notify('headrace', p_stream::text);
    end if;
end $$;

-- Says that a consumer waits, for `p_for` from now. Called again and again while it does, at half that time.
create function headrace.wait(p_consumer int, p_for interval) returns void
language plpgsql as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into headrace.waiting (consumer_id, stream_id, until)
        select id, stream_id, clock_timestamp() + p_for from headrace.consumers where id = p_consumer
        on conflict (consumer_id) do update set until = excluded.until;
end $$;
