-- Where messages go that are neither done nor deliverable now: they are parked, join the tail of their key, or become
-- dead letters.
--
-- The first message of a waiting key is parked. The rest is the key's tail, which costs a lease call nothing until it
-- takes the first message. Then the next message of the tail is parked, so the lowest message of a key is never in
-- its tail, except while a dead letter blocks the key. A message that is put back is parked, too, also without the
-- consumer's lock. Tails are changed only under that lock.
--
--   leased --ack--> done             leased --release--> parked, due now, the attempt not counted
--   leased --retry, expiry--> parked, due later   ... or, after max_deliver attempts: dead | blocked | dropped
--   leased --reject, invalid--> dead
--   leased --cancel, or anything but an ack once its cancellation is requested--> done

-- A message that its lease returns. outcome: 'retry', 'release', 'reject', 'invalid' or 'cancel'. crashes: how often in a
-- row it has crashed by now. delay: seconds until it may be delivered again, or null for now. seconds: how long its handler
-- took, null if that is not known.
create type headrace_internal.returned_message as (
    seq bigint, hash bigint, attempts int, crashes int, outcome text, delay float8, error text, error_type text, traceback text,
    process text, seconds real
);

-- Return whether a message is not delivered again.
create or replace function headrace_internal.is_final(p_message headrace_internal.returned_message, p_max_deliver int) returns boolean
language sql immutable as $$
    select p_message.outcome in ('reject', 'invalid')
           or p_message.outcome = 'retry' and p_max_deliver <> -1 and p_message.attempts >= p_max_deliver
$$;

-- Return a failed attempt as far as it is kept.
create or replace function headrace_internal.kept_failure(p_at timestamptz, p_error text, p_error_type text, p_process text) returns headrace_internal.failed_attempt
language sql immutable as $$
    select row(p_at, left(p_error, 2000), left(p_error_type, 500), left(p_process, 500))::headrace_internal.failed_attempt
$$;

-- Return a message of a lease as one that is released. attempt and crash are as in the lease.
create or replace function headrace_internal.released(p_seq bigint, p_hash bigint, p_attempt int, p_crash int) returns headrace_internal.returned_message
language sql immutable as $$
    select row(p_seq, p_hash, coalesce(p_attempt, 1), coalesce(p_crash, 0), 'release', null, null, null, null, null, null)::headrace_internal.returned_message
$$;

-- Expire the leases past their time, and with them every lease of their owners. An owner may hold a run of one key
-- across several leases, and parts of a run must not go to another owner while it works on the rest. So an owner also
-- keeps all its leases, for now, if one of them is locked. A lease locked by a settle is left to the settle, and a
-- lease locked by an ack is left to the ack.
--
-- One of the messages may have crashed the owner, and at first it is unknown which one, so all of them count as
-- crashed once, and that attempt counts. From then on an owner that starts one of these messages records that first
-- (headrace_internal.mark_started). When the next owner crashes, neither an attempt nor a crash is counted for those that it
-- had not started, so only the culprit gets to its last attempt.
create or replace function headrace_internal.expire_leases(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_floor bigint, p_now timestamptz
) returns void
language plpgsql as $$
declare
    v_leases  bigint[];
    v_back    headrace_internal.returned_message[];
begin
    with late as materialized (
        select lease_id, owner from headrace_internal.leases
        where consumer_id = p_consumer.id and lease_id >= p_floor and owner in (
            select owner from headrace_internal.leases
            where consumer_id = p_consumer.id and lease_id >= p_floor and expires_at <= p_now)
    ), locked as materialized (
        -- These rows are the newest versions. An owner that extended its lease in the meantime is no longer late.
        select lease_id, owner, expires_at from headrace_internal.leases
        where consumer_id = p_consumer.id and lease_id >= p_floor and lease_id = any (array(select lease_id from late))
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
        delete from headrace_internal.leases as l where consumer_id = p_consumer.id and headrace_internal.is_one_of(lease_id, v_leases)
        returning lease_id, owner, started, l as lease
    ), owners as (      -- no process has a share, and there may be many
        select o.owner, (select p.host || ':' || p.pid from headrace_internal.process_of_owner(o.owner) as p) as process
        from (select distinct owner from ended where owner <> headrace_internal.owner_of_share(lease_id)) as o
    ), held as (
        select m.seq, m.hash, o.process, m.attempt, m.crash,
               m.crash = 0 or coalesce(m.seq = any (ended.started), false) as counts
        from ended left join owners as o using (owner)
        cross join headrace_internal.messages_of_lease(ended.lease) as m
        where m.seq > 0     -- a hold has no messages, see check_in.sql
          and (ended.lease_id, m.seq) not in (select * from headrace_internal.acked_messages(p_consumer.id, v_leases))
    )
    select array_agg(row(
               seq, hash, attempt, case when counts then crash + 1 else crash end, case when counts then 'retry' else 'release' end, null,
               format('The lease expired: the process that worked on it died, froze, or lost its connection, %s in a row.',
                      headrace_internal.count_of(crash + 1, 'time')), 'LeaseExpired', null,
               process, null)::headrace_internal.returned_message)
        into v_back from held;
    perform headrace_internal.put_back(p_consumer, p_stream, v_back, p_now);
    perform headrace_internal.delete_ended_acks(p_consumer.id, v_leases);
end $$;

-- Park messages again, or store them as dead letters.
-- p_since: when their leases were given. No message is due before that, since it would be below the cursor's due_floor,
-- even if clocks differ.
create or replace function headrace_internal.put_back(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_messages headrace_internal.returned_message[], p_now timestamptz,
    p_since timestamptz default '-infinity'
) returns void
language plpgsql as $$
declare
    v_cancelled  bigint[];
    v_dead       boolean;
begin
    if p_messages is null then
        return;
    end if;
    perform headrace_internal.lock_out_erasures(p_stream.id);
    with ended as (
        update headrace_internal.cancellations set ended_at = p_now, outcome = 'cancelled'
        where consumer_id = p_consumer.id and ended_at is null and seq = any (array(select seq from unnest(p_messages))) returning seq
    )
    select array_agg(seq) into v_cancelled from ended;
    if v_cancelled is not null then
        if p_consumer.history is not null then
            perform headrace_internal.record_completions(p_consumer.id, d.process, d.messages, p_now)
                from (
                    select m.process, array_agg(row(m.seq, m.attempts, m.seconds, 'cancelled')::headrace_internal.completed_message) as messages
                    from unnest(p_messages) as m where m.seq = any (v_cancelled) group by m.process) as d;
        end if;
        p_messages := array(select m from unnest(p_messages) as m where m.seq <> all (v_cancelled));
    end if;
    insert into headrace_internal.parked (consumer_id, seq, key_hash, attempts, crashes, due_at, delay, failure)
        select p_consumer.id, seq, hash,
               case outcome when 'release' then attempts - 1 else attempts end, crashes,
               case when delay is null then '-infinity' else greatest(p_now + make_interval(secs => delay), p_since) end, delay,
               case when error is not null then headrace_internal.kept_failure(p_now, error, error_type, process) end
        from unnest(p_messages) as m
        where (outcome = 'release' or outcome = 'retry' and (p_consumer.max_deliver = -1 or attempts < p_consumer.max_deliver))
          and not headrace_internal.is_erased(p_stream.id, seq)
        -- One that is to be delivered again may be parked already: it is retried as it would be otherwise.
        on conflict (consumer_id, seq) do update set attempts = excluded.attempts, crashes = excluded.crashes, due_at = excluded.due_at,
            delay = excluded.delay, failure = excluded.failure;
    if p_stream.one_message_per_key then
        -- An outdated message must not hold up a newer message of its key, which may be parked behind it.
        perform headrace_internal.delete_outdated_parked(p_consumer.id, p_stream, array(select hash from unnest(p_messages)),
                                                         (select min(seq) from unnest(p_messages)));
    end if;

    select coalesce(bool_or(headrace_internal.is_final(m, p_consumer.max_deliver)), false) into v_dead from unnest(p_messages) as m;
    if v_dead then
        perform headrace_internal.insert_dead_letters(p_consumer, p_stream, p_messages, p_now);
    end if;
end $$;

-- Let the retries of a consumer begin their delays now, if they are due later than that, because the clock was set back.
-- p_due_next: when the first of those is due that are not due. The caller has the consumer's lock. Returns when the first
-- is due then. That may be below the cursor's due_floor.
create or replace function headrace_internal.bound_retries(p_cursor headrace_internal.cursors, p_due_next timestamptz, p_now timestamptz) returns timestamptz
language plpgsql as $$
declare
    v_delay  float8;
begin
    select delay into v_delay from headrace_internal.parked where consumer_id = p_cursor.consumer_id and due_at = p_due_next order by due_at, seq limit 1;
    if headrace_internal.is_ahead(p_due_next - make_interval(secs => v_delay), p_now) then
        update headrace_internal.parked set due_at = p_now + make_interval(secs => delay)
            where consumer_id = p_cursor.consumer_id and seq >= p_cursor.parked_floor
              and headrace_internal.is_ahead(due_at - make_interval(secs => delay), p_now);
        p_due_next := (select due_at from headrace_internal.parked where consumer_id = p_cursor.consumer_id and due_at > p_now order by due_at limit 1);
    end if;
    return p_due_next;
end $$;

-- Store those of these messages as dead letters that were rejected, are invalid, or failed too often, unless the
-- consumer drops the latter. All of them are completed.
create or replace function headrace_internal.insert_dead_letters(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_messages headrace_internal.returned_message[], p_now timestamptz
) returns void
language plpgsql as $$
declare
    v_removed  record;
begin
    execute format($sql$
        with failed as materialized (
            select seq, hash, attempts, headrace_internal.kept_failure($5, error, error_type, process) as failure, traceback,
                   case outcome when 'reject' then 'rejected' when 'invalid' then 'invalid' else 'exhausted' end as reason
            from unnest($1) as m where headrace_internal.is_final(m, $2)
        ), dead as materialized (
            -- Of a message that is no longer in its stream nothing is left to keep, and it must not block its key: nobody could
            -- free it. Only the count says that it was there.
            select * from failed join %s as message using (seq) where reason <> 'exhausted' or $4 <> 'drop'
        ), kept as (
            insert into headrace_internal.dead_letters (consumer_id, seq, key_hash, key, data, headers, created_at, attempts, reason,
                                               error, error_type, traceback, blocks, died_at)
            select $3, seq, hash, key, data, headers, created_at, attempts, reason, (failure).error, (failure).error_type, left(traceback, 16000),
                   reason = 'exhausted' and $4 = 'block', $5
            from dead order by seq      -- as a redrive locks them
            on conflict (consumer_id, seq) do update
                set attempts = excluded.attempts, reason = excluded.reason, error = excluded.error,
                    error_type = excluded.error_type, traceback = excluded.traceback, blocks = excluded.blocks, died_at = excluded.died_at
        )
        select count(*) as count, min(seq) as lowest, max(seq) as highest, (select array_agg(seq) from dead) as dead from failed
        where (reason <> 'exhausted' or $4 <> 'drop') and seq not in (select seq from dead) and not headrace_internal.is_erased($6, seq)
        $sql$, headrace_internal.table_of_range(p_stream, (select min(seq) from unnest(p_messages)), (select max(seq) from unnest(p_messages))))
        into v_removed
        using p_messages, p_consumer.max_deliver, p_consumer.id, p_consumer.on_exhausted, p_now, p_stream.id;
    -- With one message per key, a newer message has replaced it and is delivered.
    if v_removed.count > 0 and not p_stream.one_message_per_key then
        perform headrace_internal.record_gap(p_consumer.id, v_removed.count, v_removed.lowest, v_removed.highest + 1, p_now);
    end if;
    if p_consumer.history is not null then
        perform headrace_internal.record_completions(p_consumer.id, d.process, d.messages, p_now)
            from (
                select m.process, array_agg(row(m.seq, m.attempts, m.seconds, case when m.seq = any (v_removed.dead) then 'dead_letter' else 'dropped' end)
                                            ::headrace_internal.completed_message) as messages
                from unnest(p_messages) as m where headrace_internal.is_final(m, p_consumer.max_deliver) group by m.process) as d;
    end if;
end $$;

-- Add messages of waiting keys: park the first message of each key, due at once, and add the others to its tail. An
-- unordered consumer parks all. With one message per key, all are parked except those of blocked keys, because only
-- one message of a key counts.
create or replace function headrace_internal.park_by_key(
    p_consumer int, p_seqs bigint[], p_hashes bigint[], p_floor bigint, p_ordered boolean, p_one_per_key boolean
) returns void
language plpgsql set enable_sort = off as $$
begin
    with waiting as materialized (
        select seq, hash, p_ordered and (
                   not p_one_per_key and (
                       row_number() over (partition by hash order by seq) > 1
                       or coalesce((select first < w.seq from headrace_internal.first_parked_of_key(p_consumer, w.hash, p_floor) as first), false))
                   or coalesce((select true from headrace_internal.first_blocking_of_key(p_consumer, w.hash, 0)), false)) as behind
        from unnest(p_seqs, p_hashes) as w(seq, hash)
    ), behind as (
        insert into headrace_internal.tails (consumer_id, key_hash, seq)
            select p_consumer, hash, seq from waiting where behind on conflict do nothing
    )
    insert into headrace_internal.parked (consumer_id, seq, key_hash, attempts, due_at)
        select p_consumer, seq, hash, 0, '-infinity' from waiting where not behind on conflict do nothing;
end $$;

-- Park the first message of the tail of each of these keys, unless the key is blocked or has an earlier parked
-- message.
-- p_after: for each key, a seq up to which its tail has been read and emptied. The index holds dead rows there.
-- Returns the lowest seq that was parked.
create or replace function headrace_internal.promote_tails(p_consumer int, p_hashes bigint[], p_after bigint[], p_floor bigint) returns bigint
language plpgsql set enable_sort = off as $$
declare
    v_lowest  bigint;
begin
    with next as materialized (
        select k.hash, t.seq
        from (select hash, max(coalesce(after, 0)) as after from unnest(p_hashes, p_after) as k(hash, after) group by hash) as k
        cross join lateral (
            select seq from headrace_internal.tails
            where consumer_id = p_consumer and (key_hash, seq) > (k.hash, k.after) and key_hash <= k.hash
            order by key_hash, seq limit 1) as t
        where (select first < t.seq from headrace_internal.first_parked_of_key(p_consumer, k.hash, p_floor) as first) is not true
          and (select true from headrace_internal.first_blocking_of_key(p_consumer, k.hash, 0)) is null
    ), gone as (
        delete from headrace_internal.tails as t using next where t.consumer_id = p_consumer and t.key_hash = next.hash and t.seq = next.seq
    ), parked as (
        insert into headrace_internal.parked (consumer_id, seq, key_hash, attempts, due_at)
            select p_consumer, seq, hash, 0, '-infinity' from next on conflict do nothing
    )
    select min(seq) into v_lowest from next;
    return v_lowest;
end $$;

-- Remove those of these messages that are parked, in a tail or to be replayed, and with p_letters those that are dead
-- letters. The keys continue. Returns their seqs, and the next cursor. The caller has the consumer's lock.
create or replace function headrace_internal.remove_waiting(
    p_cursor headrace_internal.cursors, p_seqs bigint[], p_letters boolean, out removed bigint[], out next headrace_internal.cursors
)
language plpgsql as $$
declare
    v_lowest  bigint;
    v_keys    bigint[];
begin
    with letters as (
        delete from headrace_internal.dead_letters where p_letters and consumer_id = p_cursor.consumer_id and headrace_internal.is_one_of(seq, p_seqs) returning seq, key_hash
    ), parked as (
        delete from headrace_internal.parked where consumer_id = p_cursor.consumer_id and headrace_internal.is_one_of(seq, p_seqs) returning seq, key_hash
    ), tails as (
        delete from headrace_internal.tails where consumer_id = p_cursor.consumer_id and headrace_internal.is_one_of(seq, p_seqs) returning seq, key_hash
    ), replays as (
        delete from headrace_internal.replays where consumer_id = p_cursor.consumer_id and headrace_internal.is_one_of(seq, p_seqs) returning seq, key_hash
    )
    select array_agg(seq), min(seq), array_agg(key_hash) into removed, v_lowest, v_keys
        from (select * from letters union all select * from parked union all select * from tails union all select * from replays) as gone;
    next := p_cursor;
    if removed is not null then
        next.parked_floor := least(v_lowest, p_cursor.parked_floor);
        next.parked_floor := least(next.parked_floor, headrace_internal.promote_tails(p_cursor.consumer_id, v_keys, null, next.parked_floor));
        next.ready_floor := least(next.ready_floor, next.parked_floor);
    end if;
end $$;

-- one_message_per_key: delete the parked messages of these keys that no longer have a row, because a newer message of
-- the key replaced it.
create or replace function headrace_internal.delete_outdated_parked(p_consumer int, p_stream headrace_internal.streams, p_hashes bigint[], p_floor bigint) returns void
language plpgsql as $$
begin
    execute format('delete from headrace_internal.parked as p where consumer_id = $1 and key_hash = any ($2) and seq >= $3
                    and not exists (select from %s as m where m.seq = p.seq)', p_stream.relation)
        using p_consumer, p_hashes, p_floor;
end $$;
