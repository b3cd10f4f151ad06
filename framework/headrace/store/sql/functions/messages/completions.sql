-- completions: what consumers have done with their messages, kept for as long as their setting `history` says.
--
-- A message is completed for a consumer by an ack, by its expiry, by a failure that makes it a dead letter or drops it, or
-- by a cancellation that ends its handler. The record is written in the transaction that completes it, so the history has what was acked and nothing else.
-- It has no content and no key of a message, only its seq.
--
-- A row has the messages of one settle call whose seqs have the same upper bits, their bucket. A message is found by its
-- bucket, and old rows are found by time. There is no foreign key, because it would lock the consumer's row at each ack.

-- A message that is completed. `seconds`: how long its handler took, or how long a client had the message, null if that
-- is not known.
create type headrace_internal.completed_message as (
    seq      bigint,
    attempt  int,
    seconds  real,
    outcome  text       -- acked, expired, dropped, dead_letter or cancelled
);

-- The report of a worker process about messages that it settles, in parallel arrays. `expired`: those that expired before
-- their handler began.
create type headrace_internal.handling_report as (
    process  text,      -- host:pid
    seqs     bigint[],
    seconds  real[],
    expired  bigint[]
);

-- Record messages that a process has completed, or a client if p_process is null.
create or replace function headrace_internal.record_completions(
    p_consumer int, p_process text, p_messages headrace_internal.completed_message[], p_now timestamptz
) returns void
language plpgsql as $$
begin
    insert into headrace_internal.completions (consumer_id, at, bucket, outcome, process, places, attempts, seconds)
        select p_consumer, p_now, seq >> 10, outcome, left(p_process, 500), array_agg((seq & 1023)::smallint),
               case when max(attempt) > 1 then array_agg(attempt) end, case when count(seconds) > 0 then array_agg(seconds) end
        from unnest(p_messages) group by seq >> 10, outcome;
end $$;

-- Record acked messages of leases, which the caller has locked.
-- p_whole: leases of which all messages are acked. p_leases, p_seqs: single messages.
-- p_report: of the worker process. Null for a client, of which the time since the lease was given is known.
-- p_new: whether transactions have acked none of them before. Otherwise those are left out, since they are recorded.
create or replace function headrace_internal.record_acks(
    p_consumer int, p_whole bigint[], p_leases bigint[], p_seqs bigint[], p_report headrace_internal.handling_report, p_new boolean,
    p_now timestamptz
) returns void
-- Arrays of thousands of messages are joined, and the planner takes them for ten.
language plpgsql set enable_nestloop = off set enable_mergejoin = off as $$
declare
    v_acked  headrace_internal.completed_message[];
begin
    select array_agg(row(
               m.seq, coalesce(m.attempt, 1),
               case when p_report.seqs is not null then r.seconds
                    when isfinite(l.since) then greatest(extract(epoch from p_now - l.since), 0) end,
               case when m.seq = any (p_report.expired) then 'expired' else 'acked' end)::headrace_internal.completed_message)
        into v_acked
        from headrace_internal.leases as l
        cross join unnest(l.seqs, l.attempts) as m(seq, attempt)
        left join unnest(p_report.seqs, p_report.seconds) as r(seq, seconds) on r.seq = m.seq
        where l.consumer_id = p_consumer and l.lease_id = any (p_whole || p_leases) and m.seq > 0   -- a hold has no messages
          and (l.lease_id = any (p_whole) or (l.lease_id, m.seq) in (select * from unnest(p_leases, p_seqs)))
          and (p_new or (l.lease_id, m.seq) not in (select * from headrace_internal.acked_messages(p_consumer, p_whole || p_leases)));
    if v_acked is not null then
        perform headrace_internal.record_completions(p_consumer, p_report.process, v_acked, p_now);
    end if;
end $$;

-- Return the time from which on the completions of a consumer count, or null if it keeps none.
create or replace function headrace_internal.completions_since(p_consumer int, p_now timestamptz) returns timestamptz
language plpgsql as $$
begin
    return (select p_now - make_interval(secs => c.history) from headrace_internal.consumers as c where c.id = p_consumer);
end $$;

-- Return the completions of messages in a consumer, of each message the newest p_each, in the order of p_seqs and from the
-- newest on. A redelivered message has several.
-- Granted: consume
create or replace function headrace_internal.completions_of_messages(
    p_consumer int, p_seqs bigint[], p_each int, p_now timestamptz default clock_timestamp()
) returns table (seq bigint, at timestamptz, outcome text, attempts int, seconds real, process text)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_since  timestamptz := headrace_internal.completions_since(p_consumer, p_now);
begin
    return query
        select a.seq, d.at, d.outcome, d.attempts, d.seconds, d.process
        from unnest(p_seqs) with ordinality as a(seq, turn)
        cross join lateral (
            select c.at, c.outcome, coalesce(m.attempt, 1) as attempts, m.seconds, c.process, c.id
            from headrace_internal.completions as c
            cross join unnest(c.places, c.attempts, c.seconds) as m(place, attempt, seconds)
            where c.consumer_id = p_consumer and c.bucket = a.seq >> 10 and c.at >= v_since and m.place = a.seq & 1023
            order by c.at desc, c.id desc limit p_each) as d
        order by a.turn, d.at desc, d.id desc;
end $$;

-- Return the newest completions of a consumer, those before the entry p_place of the row (p_at, p_id), or the first ones if
-- p_at is null.
-- Granted: consume
create or replace function headrace_internal.completion_page(
    p_consumer int, p_limit int, p_at timestamptz, p_id bigint, p_place bigint, p_now timestamptz default clock_timestamp()
) returns table (seq bigint, at timestamptz, outcome text, attempts int, seconds real, process text, id bigint, place bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_since  timestamptz := headrace_internal.completions_since(p_consumer, p_now);
begin
    return query
        select c.bucket << 10 | m.place, c.at, c.outcome, coalesce(m.attempt, 1), m.seconds, c.process, c.id, m.turn
        from (
            select * from headrace_internal.completions as r
            where r.consumer_id = p_consumer and r.at >= v_since and (r.at, r.id) <= (coalesce(p_at, 'infinity'), coalesce(p_id, 0))
            order by r.at desc, r.id desc limit p_limit + 1) as c
        cross join unnest(c.places, c.attempts, c.seconds) with ordinality as m(place, attempt, seconds, turn)
        where p_at is null or (c.at, c.id) <> (p_at, p_id) or m.turn < p_place
        order by c.at desc, c.id desc, m.turn desc limit p_limit;
end $$;

-- Return the consumers that have completions, deleted ones as well. It reads the newest ones, since the oldest may be dead
-- rows that an old snapshot keeps.
-- Granted: all
create or replace function headrace_internal.consumers_with_completions() returns int[]
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_consumer   int := 2147483647;
    v_consumers  int[] := '{}';
begin
    loop
        v_consumer := (select c.consumer_id from headrace_internal.completions as c where c.consumer_id < v_consumer
                       order by c.consumer_id desc, c.at desc, c.id desc limit 1);
        exit when v_consumer is null;
        v_consumers := v_consumers || v_consumer;
    end loop;
    return v_consumers;
end $$;

-- Delete the oldest completions of a consumer that no longer count, some thousand rows in one call. All of them are deleted
-- if the consumer keeps none, or was deleted.
-- p_floor: the time up to which earlier calls have deleted them, so that dead rows are not read again.
-- `reached`: the next p_floor. `more`: whether there may be more to delete.
-- Granted: all
create or replace function headrace_internal.delete_old_completions(
    p_consumer int, p_floor timestamptz, p_now timestamptz default clock_timestamp(), out removed int, out reached timestamptz, out more boolean
)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    c_limit   constant int := 5000;
    v_before  timestamptz := coalesce(headrace_internal.completions_since(p_consumer, p_now), 'infinity');
begin
    perform set_config('synchronous_commit', 'off', true);
    with old as materialized (
        select c.at, c.id from headrace_internal.completions as c
        where c.consumer_id = p_consumer and c.at >= p_floor and c.at < v_before order by c.at, c.id limit c_limit
    ), gone as (
        delete from headrace_internal.completions as c using old where c.consumer_id = p_consumer and c.at = old.at and c.id = old.id
    )
    select count(*), coalesce(max(old.at), p_floor) into removed, reached from old;
    more := removed = c_limit;
end $$;
