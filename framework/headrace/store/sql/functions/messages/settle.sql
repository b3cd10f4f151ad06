-- settle: record outcomes of leased messages, for many leases in one call. It takes no consumer lock.
--
-- The lease rows themselves are the fence. An outcome has an effect only while the lease that it names exists and
-- holds the message. A lease that expired, or that a seek ended, no longer exists, and no later lease has its id.
-- After a transaction has acked a message (headrace.ack), any other outcome of the message is lost. The message stays
-- in its lease, or the emptied lease stays, until its worker settles it here, too, or the lease expires.
--
-- Lock order: every statement that locks several leases locks all of them before it changes any, in the order of
-- their ids, so two calls that name the same leases take turns. In different orders they would wait for each other
-- until the deadlock detector ends one of them, a second later.

-- Settle messages.
-- p_whole: leases to ack with all messages that they still hold.
-- p_leases, p_seqs, p_failures: single messages. A failure is null for an ack, or {"kind", "delay", "error", "error_type",
-- "traceback", "process"}, all but the first optional. For the kinds see headrace_internal.returned_message.
--
-- p_report: of the worker process, for a consumer that keeps a history, see completions.sql.
--
-- p_timeline: the history in which the caller has these leases, see history.sql. After a rewind a lease may exist again,
-- with messages that its worker has settled and forgotten, so in another history nothing is settled.
--
-- Returns what could not be settled. lost_seq is null for a whole lease, and lost_lease is null for everything, in
-- another history. lease_gone is true if the lease was lost. Otherwise only the message was settled before.
-- Granted: consume
create or replace function headrace_internal.settle_outcomes(
    p_consumer int, p_whole bigint[], p_leases bigint[], p_seqs bigint[], p_failures json[],
    p_now timestamptz default clock_timestamp(), p_timeline uuid default null, p_report headrace_internal.handling_report default null
) returns table (lost_lease bigint, lost_seq bigint, lease_gone boolean)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan as $$
declare
    v_done    record;
    v_keeps   boolean;      -- whether the consumer keeps a history
    v_asked   bigint[] := p_whole || p_leases;
    v_lowest  bigint := headrace_internal.lowest_of(v_asked);     -- these bound joins, see is_one_of
    v_highest bigint := headrace_internal.highest_of(v_asked);
    v_back    bigint[];
    v_ended   bigint[];
    v_parked  bigint;
begin
    if current_setting('transaction_isolation') <> 'read committed' then     -- the acks are read after the leases are locked
        perform headrace_internal.require_read_committed('headrace_internal.settle_outcomes');
    end if;
    if p_timeline is not null and p_timeline is distinct from (
        select headrace_internal.fence_identity(id, xmin, p_timeline) from headrace_internal.history order by id limit 1) then
        return query select null::bigint, null::bigint, true;
        return;
    end if;
    v_keeps := (select c.history is not null from headrace_internal.consumers as c where c.id = p_consumer);
    if v_keeps then
        -- Waits for transactions that have acked a message of these leases, and recorded it.
        perform from headrace_internal.leases where consumer_id = p_consumer and headrace_internal.is_one_of(lease_id, v_asked)
            order by lease_id for update;
        perform headrace_internal.record_acks(
            p_consumer, p_whole, array_agg(a.lease_id), array_agg(a.seq), p_report, false, p_now)
            from unnest(p_leases, p_seqs, p_failures) as a(lease_id, seq, failure) where a.failure is null;
    elsif cardinality(p_leases) > 0 or cardinality(p_whole) > 1 then
        perform from headrace_internal.leases where consumer_id = p_consumer and headrace_internal.is_one_of(lease_id, v_asked)
            order by lease_id for no key update;
    end if;
    if cardinality(p_whole) > 0 then
        with ended as (
            delete from headrace_internal.leases where consumer_id = p_consumer and headrace_internal.is_one_of(lease_id, p_whole) returning lease_id
        )
        select array_agg(lease_id) into v_ended from ended;
        if cardinality(v_ended) is distinct from cardinality(p_whole) then
            return query select lease_id, null::bigint, true from unnest(p_whole) as lease_id where lease_id <> all (coalesce(v_ended, '{}'));
        end if;
    end if;
    if cardinality(p_leases) > 0 then
        -- A message that is put back must not be acked by a transaction that commits at the same moment, so this
        -- waits for the transactions that have acked a message of its lease. They are at their COMMIT, so the wait is
        -- short. In all other cases settling and acking don't block each other.
        v_back := array(select distinct lease_id from unnest(p_leases, p_failures) as a(lease_id, failure) where failure is not null);
        if v_back <> '{}' then
            perform from headrace_internal.leases where consumer_id = p_consumer and headrace_internal.is_one_of(lease_id, v_back) order by lease_id for update;
        end if;
        with asked as materialized (
            select a.lease_id, a.seq, coalesce(a.failure ->> 'kind', 'ack') as outcome, a.failure, r.seconds
            from unnest(p_leases, p_seqs, p_failures) as a(lease_id, seq, failure)
            left join headrace_internal.reported_seconds(p_report) as r on v_keeps and r.seq = a.seq
        ), locked as materialized (
            select l.lease_id, l.since, l as lease from headrace_internal.leases as l
            where l.consumer_id = p_consumer and headrace_internal.is_one_of(l.lease_id, p_leases)
        ), held as materialized (
            select l.lease_id, m.seq, m.hash, m.attempt, m.crash, m.place,
                   a.outcome, a.failure, a.seconds, case when a.outcome <> 'ack' then (     -- an index lookup: a join compares each with each
                       select true from headrace_internal.acks as k
                       where k.consumer_id = p_consumer and k.lease_id = l.lease_id and k.seq = m.seq limit 1) end is true as acked
            from locked as l
            cross join headrace_internal.messages_of_lease(l.lease) as m
            left join asked as a on a.lease_id = l.lease_id and a.seq = m.seq
        ), kept as materialized (
            select lease_id, count(*)::int as held, array_agg(seq order by place) as seqs, array_agg(hash order by place) as hashes,
                   case when max(attempt) > 1 then array_agg(attempt order by place) end as attempts,
                   case when max(crash) > 0 then array_agg(crash order by place) end as crashes
            from held where outcome is null group by lease_id
        ), shrunk as (
            update headrace_internal.leases as l
            set held = kept.held, seqs = kept.seqs, hashes = kept.hashes, attempts = kept.attempts, crashes = kept.crashes
            from kept where l.consumer_id = p_consumer and l.lease_id = kept.lease_id and l.lease_id between v_lowest and v_highest
        ), ended as (
            delete from headrace_internal.leases where consumer_id = p_consumer and lease_id between v_lowest and v_highest
               and lease_id in (select lease_id from locked except select lease_id from kept)
        )
        select array_agg(row(seq, hash, attempt, case outcome when 'release' then crash else 0 end, outcome, (failure ->> 'delay')::float8,
                             failure ->> 'error', failure ->> 'error_type', failure ->> 'traceback',
                             failure ->> 'process', seconds)::headrace_internal.returned_message) as messages,
               (select max(since) from locked) as since,
               (select array_agg(array[a.lease_id, a.seq, (a.lease_id not in (select lease_id from locked))::int]) from asked as a
                where not exists (select from held as h where h.lease_id = a.lease_id and h.seq = a.seq
                                                  and (a.outcome = 'ack' or not h.acked))
                  -- a transaction has acked the whole lease
                  and not (a.outcome = 'ack' and a.lease_id in (select lease_id from locked where (lease).held = 0))) as lost
            into v_done from held where outcome <> 'ack' and not acked;
        if v_done.messages is not null then
            perform headrace_internal.put_back(c, s, v_done.messages, p_now, v_done.since)
                from headrace_internal.consumers as c join headrace_internal.streams as s on s.id = c.stream_id where c.id = p_consumer;
        end if;
        if v_done.lost is not null then
            return query select v_done.lost[i][1], v_done.lost[i][2], v_done.lost[i][3] = 1 from generate_subscripts(v_done.lost, 1) as i;
        end if;
    end if;
    -- As headrace_internal.delete_ended_acks. Parked messages may have waited for exactly these keys, and their consumers wait for
    -- a notification. Mostly nothing is parked, and one lookup says so, in the same statement.
    with gone as (
        delete from headrace_internal.acks as a
        where a.consumer_id = p_consumer and headrace_internal.is_one_of(a.lease_id, v_asked)
          and a.lease_id not in (select l.lease_id from headrace_internal.leases as l
                                 where l.consumer_id = p_consumer and headrace_internal.is_one_of(l.lease_id, v_asked))
    )
    select seq into v_parked
        from (select parked_floor from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1) as u
        cross join lateral headrace_internal.first_parked(p_consumer, u.parked_floor) as seq;
    if v_parked is not null then
        perform headrace_internal.notify_stream(c.stream_id)
            from headrace_internal.consumers as c
            cross join lateral (
                select * from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1) as u
            where c.id = p_consumer and coalesce(
                (select true from headrace_internal.parked_ready(p_consumer, u.ready_floor) limit 1),
                (select true from headrace_internal.parked_due(p_consumer, u.due_floor, p_now) limit 1));
    end if;
end $$;

-- Extend these leases to the consumer's ack_wait from now. Returns those that still exist. None ends sooner than before: its
-- owner may not know yet that ack_wait is shorter now.
-- Granted: consume
create or replace function headrace_internal.extend_leases(p_consumer int, p_leases bigint[], p_now timestamptz default clock_timestamp()) returns bigint[]
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_leases  bigint[];
begin
    perform set_config('synchronous_commit', 'off', true);
    v_leases := array(
        select lease_id from headrace_internal.leases where consumer_id = p_consumer and headrace_internal.is_one_of(lease_id, p_leases)
        order by lease_id for no key update);
    update headrace_internal.leases as l set expires_at = greatest(l.expires_at, p_now + c.ack_wait)
        from headrace_internal.consumers as c
        where c.id = p_consumer and l.consumer_id = p_consumer and headrace_internal.is_one_of(l.lease_id, v_leases);
    return v_leases;
end $$;

-- Record which messages are being started, of those that crashed before. See headrace_internal.expire_leases. Returns the leases that
-- are lost. A crash of the server can lose only the record that a message was started.
-- Granted: consume
create or replace function headrace_internal.mark_started(p_consumer int, p_leases bigint[], p_seqs bigint[]) returns bigint[]
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_leases  bigint[];
begin
    perform set_config('synchronous_commit', 'off', true);
    v_leases := array(
        select lease_id from headrace_internal.leases where consumer_id = p_consumer and headrace_internal.is_one_of(lease_id, p_leases)
        order by lease_id for no key update);
    update headrace_internal.leases as l
        set started = l.started || array(select seq from unnest(p_leases, p_seqs) as m(lease_id, seq) where m.lease_id = l.lease_id)
        where l.consumer_id = p_consumer and headrace_internal.is_one_of(l.lease_id, v_leases);
    return array(select lease_id from unnest(p_leases) as lease_id except select unnest(v_leases));
end $$;

-- Return the owner of the leases that a process holds while messages of theirs wait to be delivered again, see
-- repeat_in_flight. It makes no lease calls, so the keys of these leases are busy for their own process, too. It is its own
-- repeating owner, since messages of these leases may wait to be delivered again once more. No owner has this version of a UUID.
create or replace function headrace_internal.repeating_owner(p_owner uuid) returns uuid
language sql immutable as $$
    select overlay(p_owner::text placing '8' from 15 for 1)::uuid
$$;

-- Release the leases that an owner holds without knowing it, because the response to its lease call was lost.
-- p_known: the leases that the owner knows. Waits for a lease call that is still running. Returns the number of
-- messages released.
-- Granted: consume
create or replace function headrace_internal.reclaim(p_consumer int, p_owner uuid, p_known bigint[]) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_floor   bigint;
    v_leases  bigint[];
    v_lost    headrace_internal.returned_message[];
begin
    perform headrace_internal.require_read_committed('headrace_internal.reclaim');
    perform pg_advisory_xact_lock(1212498508, p_consumer);
    select lease_floor into v_floor from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1;
    v_leases := array(
        select lease_id from headrace_internal.leases
        where consumer_id = p_consumer and lease_id >= v_floor and owner in (p_owner, headrace_internal.repeating_owner(p_owner)) and lease_id <> all (p_known)
        order by lease_id for update);
    with ended as (
        delete from headrace_internal.leases as l where consumer_id = p_consumer and headrace_internal.is_one_of(lease_id, v_leases)
        returning lease_id, l as lease
    )
    select array_agg(headrace_internal.released(m.seq, m.hash, m.attempt, m.crash)) into v_lost
        from ended cross join headrace_internal.messages_of_lease(ended.lease) as m
        where m.seq > 0 and (ended.lease_id, m.seq) not in (select * from headrace_internal.acked_messages(p_consumer, v_leases));
    perform headrace_internal.delete_ended_acks(p_consumer, v_leases);
    if v_lost is not null then
        perform headrace_internal.put_back(c, s, v_lost, clock_timestamp())
            from headrace_internal.consumers as c join headrace_internal.streams as s on s.id = c.stream_id where c.id = p_consumer;
    end if;
    return coalesce(cardinality(v_lost), 0);
end $$;
