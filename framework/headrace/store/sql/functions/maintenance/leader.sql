-- Leader election: one process of all at a database does the maintenance, which is retention, the schedule, and the
-- check for missed notifications.
--
-- The leader renews its term repeatedly. When a term ends without renewal, another process takes over. Two processes
-- may believe that they lead at the same time, if one was frozen or a clock was set, so all maintenance is safe to
-- run concurrently.

-- Become the leader, or stay it, for a term. `again_in`: seconds until the process should ask again.
-- Granted: all
create or replace function headrace_internal.lead(
    p_candidate uuid, p_term interval, p_now timestamptz default clock_timestamp(), out leads boolean, out again_in float8
)
language plpgsql as $$
declare
    v_last  headrace_internal.leaders;
begin
    perform set_config('synchronous_commit', 'off', true);
    select * into v_last from headrace_internal.leaders order by version desc limit 1;
    if v_last.version is null or headrace_internal.is_ahead(v_last.until - p_term, p_now) then
        perform headrace_internal.follow_clock(p_now);
    elsif v_last.until > p_now and v_last.candidate <> p_candidate then
        leads := false;
        again_in := extract(epoch from v_last.until - p_now);
        return;
    end if;
    insert into headrace_internal.leaders (version, candidate, until) values (coalesce(v_last.version, 0) + 1, p_candidate, p_now + p_term)
        on conflict do nothing;
    leads := found;     -- false if another process was quicker
    again_in := extract(epoch from p_term) / 2;
    delete from headrace_internal.leaders where version <= v_last.version;
end $$;

-- End the term, so that the next process doesn't have to wait.
-- Granted: all
create or replace function headrace_internal.resign(p_leader uuid) returns void
language sql as $$
    delete from headrace_internal.leaders where candidate = p_leader
$$;

-- Check p_limit of the waiting consumers above p_after, and notify those that have something to lease. They missed
-- their notification if the process that should have sent it died, or if one notification stood for several messages
-- and came before the last was committed.
-- `reached`: the last consumer that was checked, null at the end. `notified`: how many had something to lease.
-- Granted: all
create or replace function headrace_internal.notify_waiting(
    p_after int default 0, p_limit int default 1000, p_now timestamptz default clock_timestamp(), out reached int, out notified int
)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_row      record;
    v_count    int := 0;
    v_streams  int[] := '{}';
    v_there    boolean;
begin
    notified := 0;
    for v_row in
        select w.consumer_id as id, s as stream, u.cursor, c.paused_until, headrace_internal.last_drawn_seq(s) as drawn
        from headrace_internal.waiting as w
        join headrace_internal.consumers as c on c.id = w.consumer_id
        join headrace_internal.streams as s on s.id = c.stream_id
        cross join lateral (
            select k as cursor from headrace_internal.cursors as k where k.consumer_id = c.id order by k.version desc limit 1) as u
        where w.consumer_id > p_after and w.until > p_now
        order by w.consumer_id limit p_limit
    loop
        v_count := v_count + 1;
        reached := v_row.id;
        continue when v_row.paused_until > p_now;
        v_there := (v_row.cursor).replay_floor is not null or headrace_internal.has_due_message(v_row.cursor, p_now) or exists (
            select from headrace_internal.leases
            where consumer_id = v_row.id and lease_id >= (v_row.cursor).lease_floor and expires_at <= p_now);
        if not v_there and v_row.drawn > (v_row.cursor).position then
            execute format('select exists (select from %s where seq > $1)', (v_row.stream).relation)
                into v_there using (v_row.cursor).position;
        end if;
        if v_there then
            notified := notified + 1;
            if (v_row.stream).id <> all (v_streams) then
                v_streams := v_streams || (v_row.stream).id;
                perform headrace_internal.notify_stream((v_row.stream).id);
            end if;
        end if;
    end loop;
    if v_count < p_limit then
        reached := null;
    end if;
end $$;
