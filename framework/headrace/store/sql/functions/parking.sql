-- Where messages go that are neither done nor deliverable now: they are parked, join the tail of their key, or become
-- dead letters.
--
-- The first message of a waiting key is parked. The rest is the key's tail, which costs a lease call nothing until it
-- takes the first message. Then the next message of the tail is parked. So the lowest message of a key is never in
-- its tail, except while a dead letter blocks the key. A message that is put back is parked, too, also without the
-- consumer's lock. Tails are changed only under that lock.
--
--   leased --ack--> done             leased --release--> parked, due now, the attempt not counted
--   leased --retry, expiry--> parked, due later   ... or, after max_deliver attempts: dead | blocked | dropped
--   leased --reject, invalid--> dead

-- Expire the leases past their time, and with them every lease of their owners. An owner may hold a run of one key
-- across several leases, and parts of a run must not go to another owner while it works on the rest. So an owner also
-- keeps all its leases, for now, if one of them is locked. A lease locked by a settle is left to the settle, and a
-- lease locked by an ack is left to the ack.
--
-- One of the messages may have crashed the owner, and at first it is unknown which one. So all of them count as
-- crashed once, and that attempt counts. From then on an owner that starts one of these messages records that first
-- (headrace.mark_started). When the next owner crashes, neither an attempt nor a crash is counted for those that it
-- had not started. So only the culprit goes on to its last attempt.
create function headrace.expire(
    p_consumer headrace.consumers, p_stream headrace.streams, p_floor bigint, p_now timestamptz
) returns void
language plpgsql as $$
declare
    v_leases  bigint[];
    v_back    record;
begin
    with late as materialized (
        select lease_id, owner from headrace.leases
        where consumer_id = p_consumer.id and lease_id >= p_floor and owner in (
            select owner from headrace.leases
            where consumer_id = p_consumer.id and lease_id >= p_floor and expires_at <= p_now)
    ), locked as materialized (
        -- These rows are the newest versions. An owner that extended its lease in the meantime is no longer late.
        select lease_id, owner, expires_at from headrace.leases
        where consumer_id = p_consumer.id and lease_id = any (array(select lease_id from late))
        for update skip locked
    )
    select array_agg(lease_id) into v_leases from locked
        where owner in (select owner from locked where expires_at <= p_now)
          and owner not in (select owner from late where lease_id not in (select lease_id from locked));
    if v_leases is null then
        return;
    end if;
    -- Read the acks only now, in a statement that sees what was committed before the locks were granted.
    with ended as (
        delete from headrace.leases where consumer_id = p_consumer.id and lease_id = any (v_leases)
        returning lease_id, seqs, hashes, attempts, crashes, started
    ), held as (
        select m.seq, m.hash, coalesce(m.attempt, 1) as attempt, coalesce(m.crash, 0) as crash,
               coalesce(m.crash, 0) = 0 or coalesce(m.seq = any (ended.started), false) as suspect
        from ended cross join unnest(ended.seqs, ended.hashes, ended.attempts, ended.crashes) as m(seq, hash, attempt, crash)
        where (ended.lease_id, m.seq) not in (select * from headrace.acked(p_consumer.id, v_leases))
    )
    select array_agg(seq) as seqs, array_agg(hash) as hashes, array_agg(attempt) as attempts,
           array_agg(case when suspect then crash + 1 else crash end) as crashes,
           array_agg(case when suspect then 'retry' else 'release' end) as outcomes,
           array_agg(format('The lease expired: the process that worked on it died, froze, or lost its connection, %s in a row.',
                            headrace.counted(crash + 1, 'time'))) as errors
        into v_back from held;
    perform headrace.put_back(p_consumer, p_stream, v_back.seqs, v_back.hashes, v_back.attempts, v_back.crashes, v_back.outcomes,
                              null, v_back.errors, null, p_now);
    perform headrace.forget_acks(p_consumer.id, v_leases);
end $$;

-- Park messages again, or store them as dead letters.
-- p_outcomes: 'retry', 'release', 'reject' or 'invalid' for each message. p_crashes: how often in a row it has
-- crashed by now.
-- p_delays: seconds until it may be delivered again, or null for now. p_since: when their leases were given. No
-- message is due before that, since it would be below the cursor's due_floor, even if clocks differ.
create function headrace.put_back(
    p_consumer headrace.consumers, p_stream headrace.streams, p_seqs bigint[], p_hashes bigint[], p_attempts int[],
    p_crashes int[], p_outcomes text[], p_delays float8[], p_errors text[], p_tracebacks text[], p_now timestamptz,
    p_since timestamptz default '-infinity'
) returns void
language plpgsql as $$
declare
    v_dead  boolean;
    v_gone  record;
begin
    if p_seqs is null then
        return;
    end if;
    insert into headrace.parked (consumer_id, seq, key_hash, attempts, crashes, due_at)
        select p_consumer.id, seq, hash,
               case outcome when 'release' then attempts - 1 else attempts end, crashes,
               case when delay is null then '-infinity' else greatest(p_now + make_interval(secs => delay), p_since) end
        from unnest(p_seqs, p_hashes, p_attempts, p_crashes, p_outcomes, p_delays) as m(seq, hash, attempts, crashes, outcome, delay)
        where outcome = 'release'
           or outcome = 'retry' and (p_consumer.max_deliver = -1 or attempts < p_consumer.max_deliver)
        on conflict do nothing;
    if p_stream.one_message_per_key then
        -- An outdated message must not hold up a newer message of its key, which may be parked behind it.
        perform headrace.forget_outdated(p_consumer.id, p_stream, p_hashes, (select min(seq) from unnest(p_seqs) as seq));
    end if;

    select coalesce(bool_or(outcome in ('reject', 'invalid')
                            or outcome = 'retry' and p_consumer.max_deliver <> -1 and attempts >= p_consumer.max_deliver), false)
        into v_dead from unnest(p_outcomes, p_attempts) as m(outcome, attempts);
    if v_dead then
        execute format($sql$
            with failed as materialized (
                select seq, hash, attempts, error, traceback,
                       case outcome when 'reject' then 'rejected' when 'invalid' then 'invalid' else 'exhausted' end as reason
                from unnest($1, $2, $3, $4, $5, $6) as m(seq, hash, attempts, outcome, error, traceback)
                where outcome in ('reject', 'invalid') or outcome = 'retry' and $7 <> -1 and attempts >= $7
            ), dead as materialized (
                -- Of a message that is no longer in its stream nothing is left to keep, and it must not block its key: nobody could
                -- free it. Only the count says that it was there.
                select * from failed join %s as message using (seq) where reason <> 'exhausted' or $9 <> 'drop'
            ), kept as (
                insert into headrace.dead_letters (consumer_id, seq, key_hash, key, data, headers, created_at, attempts, reason,
                                                   error, traceback, blocks, died_at)
                select $8, seq, hash, key, data, headers, created_at, attempts, reason, error, traceback,
                       reason = 'exhausted' and $9 = 'block', $10
                from dead order by seq      -- as a redrive locks them
                on conflict (consumer_id, seq) do update
                    set attempts = excluded.attempts, reason = excluded.reason, error = excluded.error,
                        traceback = excluded.traceback, blocks = excluded.blocks, died_at = excluded.died_at
            )
            select count(*) as count, min(seq) as lowest, max(seq) as highest from failed
            where (reason <> 'exhausted' or $9 <> 'drop') and seq not in (select seq from dead)
            $sql$, headrace.source(p_stream, (select min(seq) from unnest(p_seqs) as seq), (select max(seq) from unnest(p_seqs) as seq)))
            into v_gone
            using p_seqs, p_hashes, p_attempts, p_outcomes, p_errors, p_tracebacks, p_consumer.max_deliver, p_consumer.id,
                  p_consumer.on_exhausted, p_now;
        -- With one message per key, a newer message has replaced it and is delivered.
        if v_gone.count > 0 and not p_stream.one_message_per_key then
            perform headrace.miss(p_consumer.id, v_gone.count, v_gone.lowest, v_gone.highest + 1, p_now);
        end if;
    end if;
end $$;

create type headrace.parked_state as (
    lowest    bigint,       -- the lowest of all that are parked
    ready     bigint,       -- the lowest of those that are due at once
    due_at    timestamptz,  -- the earliest time of the others that are due
    due_next  timestamptz,  -- the earliest time of those that are not due
    blocked   bigint        -- the lowest message that blocks its key
);

-- How parked messages, tails and dead letters are looked up.
--
-- Each lookup must read its own index from a floor up, because below it there may be very many dead rows. The
-- planner's statistics can't be relied on for that. These tables are empty at one moment and hold a hundred thousand
-- rows at the next, so all indexes of a table seem to cost the same. So each lookup asks for an order that only one
-- index has, written as a comparison of rows, and the functions turn sorting off.

-- Return the state of the parked messages. p_lowest is the first parked message, and p_blocked the first message that
-- blocks its key. Each value is the first entry of an index from its floor up.
create function headrace.parked_state(p_cursor headrace.cursors, p_lowest bigint, p_blocked bigint, p_now timestamptz)
returns headrace.parked_state
language plpgsql set enable_sort = off as $$
declare
    v_state  headrace.parked_state;
begin
    v_state.lowest := p_lowest;
    v_state.blocked := p_blocked;
    select (select seq from headrace.parked
            where consumer_id = p_cursor.consumer_id and (due_at, seq) >= ('-infinity', p_cursor.ready_floor) and due_at <= '-infinity'
            order by due_at, seq limit 1),
           (select due_at from headrace.parked
            where consumer_id = p_cursor.consumer_id and due_at > '-infinity' and due_at >= p_cursor.due_floor and due_at <= p_now
            order by due_at, seq limit 1),
           (select due_at from headrace.parked
            where consumer_id = p_cursor.consumer_id and due_at > '-infinity' and due_at > p_now order by due_at, seq limit 1)
        into v_state.ready, v_state.due_at, v_state.due_next;
    -- a message of a blocked key never falls due
    if v_state.blocked is not null and v_state.due_next is not null then
        v_state.due_next := (
            select due_at from headrace.parked as p
            where consumer_id = p_cursor.consumer_id and due_at > '-infinity' and due_at > p_now and (
                select true from headrace.dead_letters as d
                where d.consumer_id = p_cursor.consumer_id and d.blocks and (d.key_hash, d.seq) >= (p.key_hash, p_cursor.blocked_floor)
                  and d.key_hash <= p.key_hash
                order by d.key_hash, d.seq limit 1) is null
            order by due_at, seq limit 1);
    end if;
    return v_state;
end $$;

-- Return the number of parked messages, counted up to p_most.
create function headrace.parked_up_to(p_cursor headrace.cursors, p_most int) returns int
language plpgsql set enable_sort = off as $$
begin
    return (select count(*) from (
        select from headrace.parked
        where consumer_id = p_cursor.consumer_id and seq >= p_cursor.parked_floor order by seq limit p_most) as few);
end $$;

-- Return whether a parked message is due.
create function headrace.is_due(p_cursor headrace.cursors, p_now timestamptz) returns boolean
language plpgsql set enable_sort = off as $$
begin
    return coalesce(
        (select true from headrace.parked
         where consumer_id = p_cursor.consumer_id and (due_at, seq) >= ('-infinity', p_cursor.ready_floor) and due_at <= '-infinity'
         order by due_at, seq limit 1),
        (select true from headrace.parked
         where consumer_id = p_cursor.consumer_id and due_at > '-infinity' and due_at >= p_cursor.due_floor and due_at <= p_now
         order by due_at, seq limit 1), false);
end $$;

-- Return those of these keys that have a parked message (if p_parked) or are blocked (if p_blocked).
create function headrace.keys_that_wait(
    p_hashes bigint[], p_consumer int, p_parked boolean, p_blocked boolean, p_parked_floor bigint, p_blocked_floor bigint
) returns bigint[]
language plpgsql stable set enable_sort = off as $$
begin
    return array(
        select hash from unnest(p_hashes) as hash
        where p_parked and (
            select true from headrace.parked
            where consumer_id = p_consumer and (key_hash, seq) >= (hash, p_parked_floor) and key_hash <= hash
            order by key_hash, seq limit 1)
           or p_blocked and (
            select true from headrace.dead_letters
            where consumer_id = p_consumer and blocks and (key_hash, seq) >= (hash, p_blocked_floor) and key_hash <= hash
            order by key_hash, seq limit 1));
end $$;

-- The number of waiting keys up to which they are listed.
create function headrace.few_keys() returns int language sql immutable as 'select 50';

create type headrace.waiting_keys as (
    hashes   bigint[],  -- the listed keys, if there are few
    parked   boolean,   -- whether each key must be looked up among the parked messages instead
    blocked  boolean    -- whether each key must be looked up among the blocked keys instead
);

-- Return the keys that are parked or blocked, so that their fresh messages must wait. A list of a few keys is cheaper
-- than a lookup for each key of a batch.
create function headrace.waiting_keys(
    p_consumer headrace.consumers, p_stream headrace.streams, p_cursor headrace.cursors, p_parked boolean, p_blocked boolean
) returns headrace.waiting_keys
language plpgsql set enable_sort = off as $$
declare
    c_few     constant int := headrace.few_keys();
    v_hashes  bigint[];
    v_result  headrace.waiting_keys;
begin
    v_result.parked := p_parked and p_consumer.ordered and not p_stream.one_message_per_key;
    v_result.blocked := p_blocked and p_consumer.ordered;
    if v_result.parked then
        v_hashes := array(select key_hash from headrace.parked
                          where consumer_id = p_consumer.id and seq >= p_cursor.parked_floor order by seq limit c_few + 1);
        if cardinality(v_hashes) <= c_few then
            v_result.hashes := v_hashes;
            v_result.parked := false;
        end if;
    end if;
    if v_result.blocked then
        v_hashes := array(select key_hash from headrace.dead_letters
                          where consumer_id = p_consumer.id and (blocks, seq) >= (true, p_cursor.blocked_floor)
                          order by blocks, seq limit c_few + 1);
        if cardinality(v_hashes) <= c_few then
            v_result.hashes := v_result.hashes || v_hashes;
            v_result.blocked := false;
        end if;
    end if;
    return v_result;
end $$;

-- Add messages of waiting keys: park the first message of each key, due at once, and add the others to its tail. An
-- unordered consumer parks all. With one message per key, all are parked except those of blocked keys, because only
-- one message of a key counts.
create function headrace.line_up(
    p_consumer int, p_seqs bigint[], p_hashes bigint[], p_floor bigint, p_ordered boolean, p_one_per_key boolean
) returns void
language sql set enable_sort = off as $$
    with waiting as materialized (
        select seq, hash, p_ordered and (
                   not p_one_per_key and (
                       row_number() over (partition by hash order by seq) > 1
                       or coalesce((select p.seq < w.seq from headrace.parked as p
                                    where p.consumer_id = p_consumer and (p.key_hash, p.seq) >= (w.hash, p_floor) and p.key_hash <= w.hash
                                    order by p.key_hash, p.seq limit 1), false))
                   or coalesce((select true from headrace.dead_letters as d
                                where d.consumer_id = p_consumer and d.blocks and (d.key_hash, d.seq) >= (w.hash, 0)
                                  and d.key_hash <= w.hash
                                order by d.key_hash, d.seq limit 1), false)) as behind
        from unnest(p_seqs, p_hashes) as w(seq, hash)
    ), behind as (
        insert into headrace.tails (consumer_id, key_hash, seq)
            select p_consumer, hash, seq from waiting where behind on conflict do nothing
    )
    insert into headrace.parked (consumer_id, seq, key_hash, attempts, due_at)
        select p_consumer, seq, hash, 0, '-infinity' from waiting where not behind on conflict do nothing
$$;

-- Park the first message of the tail of each of these keys, unless the key is blocked or has an earlier parked
-- message.
-- p_after: for each key, a seq up to which its tail has been read and emptied. The index holds dead rows there.
-- Returns the lowest seq that was parked.
create function headrace.promote(p_consumer int, p_hashes bigint[], p_after bigint[], p_floor bigint) returns bigint
language sql set enable_sort = off as $$
    with next as materialized (
        select k.hash, t.seq
        from (select hash, max(coalesce(after, 0)) as after from unnest(p_hashes, p_after) as k(hash, after) group by hash) as k
        cross join lateral (
            select seq from headrace.tails
            where consumer_id = p_consumer and (key_hash, seq) > (k.hash, k.after) and key_hash <= k.hash
            order by key_hash, seq limit 1) as t
        where (select p.seq < t.seq from headrace.parked as p
               where p.consumer_id = p_consumer and (p.key_hash, p.seq) >= (k.hash, p_floor) and p.key_hash <= k.hash
               order by p.key_hash, p.seq limit 1) is not true
          and (select true from headrace.dead_letters as d
               where d.consumer_id = p_consumer and d.blocks and (d.key_hash, d.seq) >= (k.hash, 0) and d.key_hash <= k.hash
               order by d.key_hash, d.seq limit 1) is null
    ), gone as (
        delete from headrace.tails as t using next where t.consumer_id = p_consumer and t.key_hash = next.hash and t.seq = next.seq
    ), parked as (
        insert into headrace.parked (consumer_id, seq, key_hash, attempts, due_at)
            select p_consumer, seq, hash, 0, '-infinity' from next on conflict do nothing
    )
    select min(seq) from next
$$;

-- one_message_per_key: delete the parked messages of these keys that no longer have a row, because a newer message of
-- the key replaced it.
create function headrace.forget_outdated(p_consumer int, p_stream headrace.streams, p_hashes bigint[], p_floor bigint) returns void
language plpgsql as $$
begin
    execute format('delete from headrace.parked as p where consumer_id = $1 and key_hash = any ($2) and seq >= $3
                    and not exists (select from %s as m where m.seq = p.seq)', p_stream.relation)
        using p_consumer, p_hashes, p_floor;
end $$;
