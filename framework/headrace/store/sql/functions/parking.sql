-- Where messages go that are neither done nor deliverable now: parked, blocked, or dead.
--
--   leased --ack--> done             leased --release--> parked, due now, the attempt not counted
--   leased --retry, expiry--> parked, due later   ... or, after max_deliver attempts: dead | blocked | dropped
--   leased --reject, invalid--> dead

-- End the leases past their time, and with them every lease of their owners: an owner may hold a run of one key across
-- several, and parts of a run must not go to somebody else while he works on the rest. So an owner also keeps them all, for now,
-- if one of them is locked: what a settle has in hand is left to the settle, and what is being acked to the ack.
--
-- One message may have killed him, and the others did not. Which one is not known at first: all of them have crashed once, and
-- that attempt counts. From then on whoever starts one of these says so before (headrace.mark_started), and of those that he had
-- not started neither an attempt nor a crash is counted. So only the culprit goes on to its last attempt.
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
        -- The locked rows are the newest there are: an owner who extended in the meantime is no longer late.
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
    -- Only now, in a statement that sees what was committed before the locks were given, the acks are read.
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

-- p_outcomes: 'retry', 'release', 'reject' or 'invalid' for each message; p_crashes: how often in a row it has crashed by now;
-- p_delays: seconds until it may be had again, or null for now.
create function headrace.put_back(
    p_consumer headrace.consumers, p_stream headrace.streams, p_seqs bigint[], p_hashes bigint[], p_attempts int[],
    p_crashes int[], p_outcomes text[], p_delays float8[], p_errors text[], p_tracebacks text[], p_now timestamptz
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
               case when delay is null then '-infinity' else p_now + make_interval(secs => delay) end
        from unnest(p_seqs, p_hashes, p_attempts, p_crashes, p_outcomes, p_delays) as m(seq, hash, attempts, crashes, outcome, delay)
        where outcome = 'release'
           or outcome = 'retry' and (p_consumer.max_deliver = -1 or attempts < p_consumer.max_deliver)
        on conflict do nothing;
    if p_stream.one_message_per_key then
        -- What has given way to a newer message must not hold that up, which may be parked behind it.
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
            ), blocked as (
                insert into headrace.blocked (consumer_id, key_hash, seq)
                select $8, hash, seq from dead where reason = 'exhausted' and $9 = 'block'
                on conflict do nothing
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
        -- With one message per key a newer one has taken its place, and that is delivered.
        if v_gone.count > 0 and not p_stream.one_message_per_key then
            perform headrace.miss(p_consumer.id, v_gone.count, v_gone.lowest, v_gone.highest + 1, p_now);
        end if;
    end if;
end $$;

-- Parked messages of blocked keys join their key. They got parked while a lease held it that then ended in a block.
create function headrace.set_aside(p_consumer int, p_floor bigint) returns void
language plpgsql as $$
begin
    with moved as (
        delete from headrace.parked as p
        where p.consumer_id = p_consumer and p.seq >= p_floor
          and exists (select from headrace.blocked as b where b.consumer_id = p_consumer and b.key_hash = p.key_hash)
        returning p.key_hash, p.seq
    )
    insert into headrace.blocked (consumer_id, key_hash, seq)
        select p_consumer, key_hash, seq from moved on conflict do nothing;
end $$;

create type headrace.picked as (
    seqs bigint[], hashes bigint[], attempts int[], crashes int[], keys text[], data json[], headers json[],
    created_at timestamptz[],
    removed int,    -- how many parked rows went, those included whose message retention has removed
    bytes bigint    -- how large the data is, as stored
);

-- Take parked messages that are due. In an ordered consumer only with all of their key before them, so that what is taken
-- of a key is always its beginning; and only up to p_until, if late arrivals or replayed messages have been parked only so far.
-- p_singly: only the very first of each key. p_known: see headrace.scan.
create function headrace.pick(
    p_consumer headrace.consumers, p_stream headrace.streams, p_floor bigint, p_limit int, p_bytes bigint, p_busy bigint[],
    p_until bigint, p_singly boolean, p_known int8multirange, p_now timestamptz
) returns headrace.picked
language plpgsql as $$
declare
    v_due      record;
    v_found    record;
    v_result   headrace.picked;
begin
    select array_agg(seq) as seqs, array_agg(key_hash) as hashes, array_agg(attempts + 1) as attempts, array_agg(crashes) as crashes
        into v_due
        from (
            select seq, key_hash, attempts, crashes from headrace.parked as p
            where consumer_id = p_consumer.id and seq >= p_floor and due_at <= p_now
              and not (p_consumer.ordered and (
                    coalesce(key_hash in (select unnest(p_busy)), false)
                    or coalesce(seq > p_until, false)
                    or exists (
                        select from headrace.parked as q
                        where q.consumer_id = p_consumer.id and q.key_hash = p.key_hash and q.seq < p.seq and q.seq >= p_floor
                          and (p_singly or q.due_at > p_now))))
            order by seq limit p_limit) as due;
    if v_due.seqs is null then
        v_result.removed := 0;
        v_result.bytes := 0;
        return v_result;
    end if;
    -- What has to be planned at each call, since the table is another for each stream, is kept small. Nobody else takes parked
    -- messages: the consumer's lock is held.
    execute format($sql$
        select array_agg(seq) as seqs, array_agg(case when seq <@ $4 then null else key end) as keys,
               array_agg(case when seq <@ $4 then null else data end) as data,
               array_agg(case when seq <@ $4 then null else headers end) as headers,
               array_agg(case when seq <@ $4 then null else created_at end) as created_at, array_agg(pg_column_size(data)) as sizes
        from (
            select seq, key, data, headers, created_at from %s
            where seq = any ($1) and seq between $2 and $3 order by seq) as m
        $sql$, headrace.source(p_stream, v_due.seqs[1], v_due.seqs[cardinality(v_due.seqs)]))
        into v_found using v_due.seqs, v_due.seqs[1], v_due.seqs[cardinality(v_due.seqs)], p_known;
    with found as materialized (
        select due.*, m.key, m.data, m.headers, m.created_at, m.size, m.size is not null as there,
               coalesce(sum(m.size) over (order by due.seq rows between unbounded preceding and 1 preceding), 0) as bytes_before
        from unnest(v_due.seqs, v_due.hashes, v_due.attempts, v_due.crashes) as due(seq, key_hash, attempt, crash)
        left join unnest(v_found.seqs, v_found.keys, v_found.data, v_found.headers, v_found.created_at, v_found.sizes)
            as m(seq, key, data, headers, created_at, size) on m.seq = due.seq
        order by due.seq
    ), taken as materialized (
        select * from found where bytes_before < p_bytes
    ), gone as (
        delete from headrace.parked where consumer_id = p_consumer.id and seq in (select seq from taken)
    )
    select array_agg(seq) filter (where there), array_agg(key_hash) filter (where there),
           array_agg(attempt) filter (where there), array_agg(crash) filter (where there), array_agg(key) filter (where there),
           array_agg(data) filter (where there), array_agg(headers) filter (where there), array_agg(created_at) filter (where there),
           count(*), coalesce(sum(size), 0)
        into v_result from taken;
    return v_result;
end $$;

-- one_message_per_key: what is parked of a key, and has no row any more, gave way to a newer message of it.
create function headrace.forget_outdated(p_consumer int, p_stream headrace.streams, p_hashes bigint[], p_floor bigint) returns void
language plpgsql as $$
begin
    execute format('delete from headrace.parked as p where consumer_id = $1 and key_hash = any ($2) and seq >= $3
                    and not exists (select from %s as m where m.seq = p.seq)', p_stream.relation)
        using p_consumer, p_hashes, p_floor;
end $$;

-- Retention removed messages that were to be delivered to a consumer: count them.
create function headrace.miss(p_consumer int, p_count bigint, p_lower bigint, p_upper bigint, p_now timestamptz) returns void
language sql as $$
    insert into headrace.gaps as g (consumer_id, messages, lower, upper, happened_at)
        values (p_consumer, p_count, p_lower, p_upper, p_now)
        on conflict (consumer_id) do update set messages = g.messages + excluded.messages, lower = excluded.lower,
            upper = excluded.upper, happened_at = excluded.happened_at
$$;

-- Replays: messages that are to be delivered apart from the cursor, a replay's or the last of each key. They may be many, and are
-- parked little by little; nothing fresh is read before they are.

-- Says that rows were added to headrace.replays, the first of them p_first. The caller's transaction holds the consumer's lock.
create function headrace.start_replay(p_consumer int, p_first bigint) returns void
language plpgsql as $$
declare
    v_cursor  headrace.cursors;
    v_next    headrace.cursors;
begin
    select * into v_cursor from headrace.cursors where consumer_id = p_consumer order by version desc limit 1;
    v_next := v_cursor;
    v_next.replay_floor := least(v_cursor.replay_floor, p_first);
    perform headrace.move(v_cursor, v_next);
end $$;

-- Park the next p_look of them. What is leased or parked already is on its way.
create function headrace.feed(p_consumer int, p_cursor headrace.cursors, p_look int) returns headrace.cursors
language plpgsql as $$
declare
    v_fed  record;
begin
    with fed as (
        delete from headrace.replays where consumer_id = p_consumer and seq in (
            select seq from headrace.replays where consumer_id = p_consumer and seq >= p_cursor.replay_floor order by seq limit p_look)
        returning seq, key_hash
    ), parked as (
        insert into headrace.parked (consumer_id, seq, key_hash, attempts, due_at)
        select p_consumer, seq, key_hash, 0, '-infinity' from fed
        where seq not in (select i.seq from headrace.in_flight(p_consumer, p_cursor.lease_floor) as i(seq))
        on conflict do nothing
    )
    select min(seq) as first, max(seq) as last, count(*) as count into v_fed from fed;
    p_cursor.parked_floor := least(p_cursor.parked_floor, v_fed.first);
    p_cursor.replay_floor := case when v_fed.count >= p_look then v_fed.last + 1 end;
    return p_cursor;
end $$;
