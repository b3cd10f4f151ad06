-- completions: what consumers have done with their messages, kept for as long as their setting `history` says.
--
-- A message is completed for a consumer by an ack, by its expiry, by a failure that makes it a dead letter or drops it, or
-- by a cancellation that ends its handler. The record is written in the transaction that completes it, so the history has what was acked and nothing else.
-- It has no content and no key of a message, only its seq.
--
-- A row has messages of one settle call whose seqs have the same upper bits, their bucket. A message is found by its
-- bucket, and old rows are found by time. There is no foreign key, because it would lock the consumer's row at each ack.

-- A message that is completed. `seconds`: how long its handler took, or how long a client had the message, null if that
-- is not known.
create type headrace_internal.completed_message as (
    seq      bigint,
    attempt  int,
    seconds  real,
    outcome  text       -- acked, expired, dropped, dead_letter or cancelled
);

-- The report of a worker process about messages that it settles. Of leases that are acked whole it has no seqs, since the
-- lease has them.
create type headrace_internal.handling_report as (
    process        text,        -- host:pid
    counts         int[],       -- for each whole lease, how many messages it has
    firsts         bigint[],    -- the first seq of each whose seqs follow one another and that had none expired, null for others
    whole_seconds  bytea,       -- how long the handlers of their messages took, lease after lease, in the order of the lease,
                                -- as in the column `seconds` of the table
    seqs           bigint[],    -- the messages that are settled one by one
    seconds        real[],      -- how long their handlers took
    expired        bigint[]     -- the messages that expired before their handler began
);

-- The bucket of a seq.
create or replace function headrace_internal.bucket(p_seq bigint) returns bigint
language sql immutable as $$
    select p_seq >> 10
$$;

-- Return an entry of the column `seconds`, by its place from 0 on. Null if it is not known. The entries are numbers of IEEE 754
-- binary32, as float4send makes them, since a driver spends many times as long on an array.
create or replace function headrace_internal.seconds_at(p_seconds bytea, p_place bigint) returns real
language sql immutable as $$
    select case when bits = 0 then 0
                when bits between 1 and 2139095039 then ((bits & 8388607 | 8388608) * power(2::float8, (bits >> 23) - 150))::real end
    from (select (get_byte(entry, 0) << 24) | (get_byte(entry, 1) << 16) | (get_byte(entry, 2) << 8) | get_byte(entry, 3) as bits
          from substring(p_seconds from p_place::int * 4 + 1 for 4) as entry where length(entry) = 4) as b
$$;

-- Return the places of the messages of a row. p_places: null if it has all from p_lower to p_upper.
create or replace function headrace_internal.places_between(p_lower bigint, p_upper bigint, p_places smallint[]) returns smallint[]
language sql immutable as $$
    select coalesce(p_places, array(select (seq & 1023)::smallint from generate_series(p_lower, p_upper) as seq))
$$;

-- Record messages that a process has completed, or a client if p_process is null.
create or replace function headrace_internal.record_completions(
    p_consumer int, p_process text, p_messages headrace_internal.completed_message[], p_now timestamptz
) returns void
language plpgsql as $$
begin
    insert into headrace_internal.completions (consumer_id, at, lower, upper, outcome, process, places, attempts, seconds)
        select p_consumer, p_now, min(seq), max(seq), outcome, left(p_process, 500), array_agg((seq & 1023)::smallint),
               case when max(attempt) > 1 then array_agg(attempt) end, case when count(seconds) > 0 then string_agg(float4send(coalesce(seconds, 'NaN')), '') end
        from unnest(p_messages) group by headrace_internal.bucket(seq), outcome;
end $$;

-- Return the whole leases of a report. `before`: how many messages the leases before it have, so where its durations begin.
create or replace function headrace_internal.reported_leases(p_whole bigint[], p_report headrace_internal.handling_report)
returns table (lease_id bigint, first bigint, count int, before int)
language sql immutable as $$
    select lease_id, first, count, (sum(count) over (order by place) - count)::int
    from unnest(p_whole, p_report.firsts, p_report.counts) with ordinality as w(lease_id, first, count, place)
$$;

-- Return how long the handlers of a report's single messages took. A message has one row, also if the report names it twice:
-- in a lease that was lost, and in a later one.
create or replace function headrace_internal.reported_seconds(p_report headrace_internal.handling_report)
returns table (seq bigint, seconds real)
language sql immutable as $$
    select seq, min(seconds) from unnest(p_report.seqs, p_report.seconds) as r(seq, seconds) group by seq
$$;

-- Record the messages of whole leases that a process has acked, which the caller has locked, where their seqs follow one
-- another and each is at its first attempt. Then no message is looked at. Returns the leases that are not recorded.
create or replace function headrace_internal.record_runs(
    p_consumer int, p_whole bigint[], p_report headrace_internal.handling_report, p_now timestamptz
) returns bigint[]
language plpgsql as $$
declare
    v_recorded  bigint[];
begin
    if exists (select from headrace_internal.acks where consumer_id = p_consumer and headrace_internal.is_one_of(lease_id, p_whole)) then
        return p_whole;     -- transactions have acked and recorded some of them
    end if;
    with runs as materialized (
        select l.lease_id, r.first, r.first + r.count - 1 as last, r.before - r.first as shift
        from headrace_internal.reported_leases(p_whole, p_report) as r
        join headrace_internal.leases as l on l.consumer_id = p_consumer and l.lease_id = r.lease_id and headrace_internal.is_one_of(l.lease_id, p_whole)
        where r.first >= l.lowest and l.held = r.count and l.attempts is null
    ), recorded as (
        insert into headrace_internal.completions (consumer_id, at, lower, upper, outcome, process, seconds)
            select p_consumer, p_now, b.lower, b.upper, 'acked', left(p_report.process, 500), 
                   substring(p_report.whole_seconds from (b.lower + shift)::int * 4 + 1 for (b.upper - b.lower + 1)::int * 4)
            from runs
            cross join generate_series(headrace_internal.bucket(first), headrace_internal.bucket(last)) as bucket
            cross join lateral (select greatest(first, bucket << 10) as lower, least(last, (bucket << 10) + 1023) as upper) as b
    )
    select array_agg(lease_id) into v_recorded from runs;
    return array(select lease_id from unnest(p_whole) as lease_id where lease_id <> all (coalesce(v_recorded, '{}')));
end $$;

-- Record acked messages of leases, which the caller has locked, or acks afterwards.
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
    v_whole  bigint[] := p_whole;
    v_acked  headrace_internal.completed_message[];
begin
    if cardinality(p_report.counts) > 0 then
        v_whole := headrace_internal.record_runs(p_consumer, p_whole, p_report, p_now);
        if v_whole = '{}' and p_leases is null then
            return;
        end if;
    end if;
    select array_agg(row(
               m.seq, m.attempt,
               case when p_report.process is not null then coalesce(headrace_internal.seconds_at(p_report.whole_seconds, w.before + m.place - 1), r.seconds)
                    when isfinite(l.since) then greatest(extract(epoch from p_now - l.since), 0) end,
               case when m.seq = any (p_report.expired) then 'expired' else 'acked' end)::headrace_internal.completed_message)
        into v_acked
        from headrace_internal.leases as l
        left join headrace_internal.reported_leases(p_whole, p_report) as w on w.lease_id = l.lease_id and w.count = l.held
        cross join headrace_internal.messages_of_lease(l) as m
        left join headrace_internal.reported_seconds(p_report) as r on r.seq = m.seq
        where l.consumer_id = p_consumer and headrace_internal.is_one_of(l.lease_id, v_whole || p_leases) and m.seq > 0   -- a hold has no messages
          and (l.lease_id = any (v_whole) or (l.lease_id, m.seq) in (select * from unnest(p_leases, p_seqs)))
          and (p_new or (l.lease_id, m.seq) not in (select * from headrace_internal.acked_messages(p_consumer, v_whole || p_leases)));
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
        select a.seq, d.at, d.outcome, d.attempts, headrace_internal.seconds_at(d.seconds, d.turn - 1), d.process
        from unnest(p_seqs) with ordinality as a(seq, turn)
        cross join lateral (
            select c.at, c.outcome, coalesce(m.attempt, 1) as attempts, c.seconds, m.turn, c.process, c.id
            from headrace_internal.completions as c
            cross join unnest(headrace_internal.places_between(c.lower, c.upper, c.places), c.attempts)
                with ordinality as m(place, attempt, turn)
            where c.consumer_id = p_consumer and headrace_internal.bucket(c.lower) = headrace_internal.bucket(a.seq) and c.at >= v_since
              and a.seq between c.lower and c.upper and m.place = a.seq & 1023
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
        select headrace_internal.bucket(c.lower) << 10 | m.place, c.at, c.outcome, coalesce(m.attempt, 1),
               headrace_internal.seconds_at(c.seconds, m.turn - 1), c.process, c.id, m.turn
        from (
            select * from headrace_internal.completions as r
            where r.consumer_id = p_consumer and r.at >= v_since and (r.at, r.id) <= (coalesce(p_at, 'infinity'), coalesce(p_id, 0))
            order by r.at desc, r.id desc limit p_limit + 1) as c
        cross join unnest(headrace_internal.places_between(c.lower, c.upper, c.places), c.attempts) with ordinality as m(place, attempt, turn)
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
