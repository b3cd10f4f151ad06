-- clock: remembered times have an upper bound, since the server's clock may be set back.
--
-- A time that was remembered before that lies in the future. Until the clock has caught up, it would count as newer than
-- all others, and what ends at such a time would last as much longer, so a time in the future counts as now. What is
-- read under a lock of its own is bounded where it is read: leases, retries and rate limits in headrace_internal.lease,
-- and the leader's term in headrace_internal.lead. The leader bounds the rest, as soon as it has seen the clock go back.
--
-- Times that a user has chosen are left as they are: those of scheduled messages, pauses, and tokens.

-- Return whether a remembered time lies in the future. Sessions read the clock and wait for locks before they use what
-- they have read, so a second doesn't count. The function is inlined where it is called.
create or replace function headrace_internal.is_ahead(p_time timestamptz, p_now timestamptz) returns boolean
language sql stable as $$
    select p_time > p_now + interval '1 second'
$$;

-- Bound what the processes of a database have remembered. `longest`: no such time is later than that from now. These are
-- CLAIM of jobs, LEASE_DURATION of captures, and longest_term of subscriptions.
create or replace function headrace_internal.follow_clock(p_now timestamptz) returns void
language plpgsql set enable_seqscan = off as $$
declare
    v_time  record;
begin
    for v_time in
        select * from (values
            ('workers', 'seen_at', interval '0'), ('schedules', 'seen_at', '0'), ('writes', 'touched_at', '0'),
            ('places', 'placed_at', '0'), ('jobs', 'finished_at', '0'), ('jobs', 'claimed_until', '20 seconds'),
            ('captures', 'held_until', '6 seconds'), ('waiting', 'until', '1 minute')) as t(relation, name, longest)
    loop
        execute format('update headrace_internal.%I set %2$I = $1 + $2 where headrace_internal.is_ahead(%2$I - $2, $1)', v_time.relation, v_time.name)
            using p_now, v_time.longest;
    end loop;
    with gone as (
        delete from headrace_internal.waits where headrace_internal.is_ahead(until - interval '1 minute', p_now) returning stream_id
    )
    insert into headrace_internal.waits (stream_id, until) select distinct stream_id, p_now + interval '1 minute' from gone on conflict do nothing;
    -- The first condition is one for the index.
    update headrace_internal.message_ids as m
        set published_at = p_now + headrace_internal.replayable_time(m.message_id, s.dedupe_window)
        from headrace_internal.streams as s
        where m.stream_id = s.id and m.published_at > p_now
          and headrace_internal.is_ahead(m.published_at - headrace_internal.replayable_time(m.message_id, s.dedupe_window), p_now);
    -- Of consumers that no lease call is made for any more. Last, since other statements may wait for locks.
    perform headrace_internal.bound_leases(c.id, 0, p_now) from headrace_internal.consumers as c;
end $$;
