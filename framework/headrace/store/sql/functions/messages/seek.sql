-- seek: move a consumer to any position, forward or back. It writes one cursor row, whatever the length of the history.
--
-- A move forward passes over all that is not done: it ends what is in flight, and forgets what is parked, blocked or to be
-- replayed, and the holes. A move back loses nothing. What is above the new position is read again from the stream, so it
-- is forgotten here. What is below it and not done is kept: messages that are parked, that follow one of their key, or are
-- to be replayed, blocked keys and holes. A lease that holds a message above the new position ends, and what it holds below
-- is parked. Other leases continue. Acks of a lease that has ended have no effect.

-- Move a consumer. p_position: the next message read from the stream is the first one above it. Null is the end, so that
-- only messages that commit from now on are delivered.
-- Granted: admin
create or replace function headrace_internal.seek(p_consumer int, p_position bigint) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_consumer  headrace_internal.consumers;
    v_stream    headrace_internal.streams;
    v_cursor    headrace_internal.cursors;
    v_next      headrace_internal.cursors;
    v_kept      bigint := -1;       -- what is not done up to here is kept
    v_blocked   bigint[];
    v_low       bigint;
begin
    perform headrace_internal.require_read_committed('headrace_internal.seek');
    -- Retention removes no segment meanwhile. It would not count the messages as missed, because it read that the
    -- consumer was past them. Retention, too, takes this lock before those of consumers.
    perform pg_advisory_xact_lock_shared(1212498510, stream_id) from headrace_internal.consumers where id = p_consumer;
    v_consumer := headrace_internal.lock_consumer(p_consumer);
    select * into v_stream from headrace_internal.streams where id = v_consumer.stream_id;
    select * into v_cursor from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1;
    if p_position <= v_cursor.position then
        v_kept := p_position;
    end if;
    v_next := v_cursor;
    v_next.lease_floor := coalesce(headrace_internal.end_leases_above(v_consumer, v_stream, v_kept), headrace_internal.new_lease_id());
    v_next.cancelling := headrace_internal.move_cancellations(p_consumer, p_position);
    delete from headrace_internal.parked where consumer_id = p_consumer and seq > v_kept;
    delete from headrace_internal.tails where consumer_id = p_consumer and seq > v_kept;
    delete from headrace_internal.replays where consumer_id = p_consumer and seq > v_kept;
    if v_cursor.frozen <> '{}' then
        delete from headrace_internal.frozen_holes where consumer_id = p_consumer and lowest > v_kept;
        update headrace_internal.frozen_holes set highest = v_kept, holes = holes * int8multirange(int8range(null, v_kept + 1))
            where consumer_id = p_consumer and highest > v_kept;
        v_next.frozen := array(select distinct holder from headrace_internal.frozen_holes where consumer_id = p_consumer);
    end if;
    with freed as (
        update headrace_internal.dead_letters set blocks = false where consumer_id = p_consumer and blocks and seq > v_kept returning key_hash
    )
    select array_agg(key_hash) into v_blocked from freed;

    v_next.holes := v_cursor.holes * int8multirange(int8range(null, v_kept + 1));
    v_next.holders := null;
    v_next.mark := null;
    v_next.mark_stamp := null;
    v_next.suspects := null;
    v_next.suspects_at := null;
    v_next.replay_floor := case when v_cursor.replay_floor <= v_kept then v_cursor.replay_floor end;
    v_next.position := p_position;
    v_next.parked_floor := least(v_cursor.parked_floor, p_position);
    v_next.blocked_floor := least(v_cursor.blocked_floor, p_position);
    v_next.ready_floor := least(v_cursor.ready_floor, p_position, headrace_internal.promote_tails(p_consumer, v_blocked, null, v_next.parked_floor));
    if v_kept < 0 then
        v_next.parked_floor := coalesce(p_position, 0);
        v_next.blocked_floor := v_next.parked_floor;
        v_next.ready_floor := v_next.parked_floor;
    end if;
    if p_position is null then
        -- The end, and the holes below it. A transaction that drew a seq there and has not committed will commit
        -- after now, so its messages are wanted. Holes can be open only while a transaction holds the lock of an
        -- insert. The locks are read after the end, never before. In the other order, a transaction that took the
        -- lock in between would be missed. In this order, all seqs that it draws lie above the end.
        execute format('select coalesce(max(seq), 0) from %s', v_stream.relation) into v_next.position;
        perform headrace_internal.require_one_by_one(v_stream);
        v_low := least(headrace_internal.lowest_open_seq(v_stream, v_next.position), v_next.position + 1);
        if v_low is not null then
            execute format($sql$
                select coalesce(max(seq), $1 - 1), coalesce(range_agg(int8range(previous + 1, seq)) filter (where seq > previous + 1), '{}')
                from (select seq, lag(seq, 1, $1 - 1) over (order by seq) as previous from %s where seq >= $1) as s
                $sql$, v_stream.relation) into v_next.position, v_next.holes using v_low;
        end if;
        v_next.parked_floor := 0;
        v_next.blocked_floor := 0;
        v_next.ready_floor := 0;
    end if;
    v_next.sought := case when p_position > headrace_internal.last_drawn_seq(v_stream) then p_position end;
    perform headrace_internal.write_cursor(v_cursor, v_next);
    perform headrace_internal.notify_stream(v_stream.id);
    return v_next.position;
end $$;

-- End the leases of a consumer that hold a message above p_kept, and park what they hold up to it, the attempts not counted.
-- Returns the lowest of the other leases, null if there is none. They are locked in the order of their ids, as a settle
-- locks them.
create or replace function headrace_internal.end_leases_above(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_kept bigint
) returns bigint
language plpgsql as $$
declare
    v_leases  bigint[];
    v_held    headrace_internal.returned_message[];
begin
    perform from headrace_internal.leases where consumer_id = p_consumer.id order by lease_id for update;
    perform headrace_internal.end_cancellations(u, clock_timestamp())
        from (select * from headrace_internal.cursors where consumer_id = p_consumer.id order by version desc limit 1) as u;
    v_leases := array(select lease_id from headrace_internal.leases as l
                      where consumer_id = p_consumer.id and exists (select from headrace_internal.messages_of_lease(l) as m where m.seq > p_kept));
    with ended as (
        delete from headrace_internal.leases as l where consumer_id = p_consumer.id and headrace_internal.is_one_of(lease_id, v_leases)
        returning lease_id, l as lease
    )
    select array_agg(headrace_internal.released(m.seq, m.hash, m.attempt, m.crash)) into v_held
        from ended cross join headrace_internal.messages_of_lease(ended.lease) as m
        where m.seq <= p_kept and (ended.lease_id, m.seq) not in (select * from headrace_internal.acked_messages(p_consumer.id, v_leases));
    perform headrace_internal.put_back(p_consumer, p_stream, v_held, clock_timestamp());
    perform headrace_internal.delete_ended_acks(p_consumer.id, v_leases);
    return (select min(lease_id) from headrace_internal.leases where consumer_id = p_consumer.id);
end $$;

-- Return the lowest seq at which a transaction that is open now may still commit messages. Null if there is no such
-- transaction.
--
-- A stream of millions must not be walked for its holes just because a transaction publishes to it, so two things
-- bound them from below. The first is what the stream's consumers know to be settled, since no open transaction has a
-- seq there. The second, where the first leaves many messages, is the time. An open transaction drew its seqs after
-- it began, so they lie above all that was written before. The times are of the server's clock, which may be set
-- back, so one hour is allowed for that. Without either bound the walk is as long as the stream, some seconds for ten
-- million messages. That is so if no consumer has ever read the stream, and the transaction is prepared, or the
-- statistics of its user are not visible.
create or replace function headrace_internal.lowest_open_seq(p_stream headrace_internal.streams, p_end bigint) returns bigint
language plpgsql as $$
declare
    c_many    constant int := 200000;   -- number of messages up to which the first bound suffices
    v_open    record;
    v_low     bigint;
    v_before  bigint;
begin
    select count(*) as count, min(coalesce(a.xact_start, '-infinity')) as since into v_open
        from pg_locks as l left join pg_stat_activity as a on a.pid = l.pid
        where l.locktype = 'relation' and l.mode = 'RowExclusiveLock' and l.granted and l.relation = p_stream.relation::regclass
          and l.database = (select oid from pg_database where datname = current_database());
    if v_open.count = 0 then
        return null;
    end if;
    select coalesce(max(u.settled), 0) + 1 into v_low
        from headrace_internal.consumers as c
        cross join lateral (select settled from headrace_internal.cursors where consumer_id = c.id order by version desc limit 1) as u
        where c.stream_id = p_stream.id;
    if p_end - v_low > c_many and v_open.since > '-infinity' then
        v_before := headrace_internal.last_seq_before(p_stream, v_open.since - interval '1 hour');
        v_low := greatest(v_low, coalesce(v_before, 0) + 1);
    end if;
    return v_low;
end $$;

-- Move a consumer to a seq, or else to a time. The next message delivered is the first one at or above it.
-- Granted: admin
create or replace function headrace_internal.seek_to(
    p_consumer int, p_seq bigint, p_time timestamptz, p_now timestamptz default clock_timestamp()
) returns bigint
language plpgsql as $$
declare
    v_stream  headrace_internal.streams;
begin
    select s.* into v_stream
        from headrace_internal.consumers as c join headrace_internal.streams as s on s.id = c.stream_id where c.id = p_consumer;
    if not found then
        perform headrace_internal.raise_consumer_gone();
    end if;
    return headrace_internal.seek(p_consumer, headrace_internal.position_to_seek(p_consumer, v_stream, p_seq, p_time, p_now));
end $$;

-- Return what headrace_internal.place_to_seek does. But if nothing was published at p_time or later, a consumer that has read
-- all there is stays where it is. It is moved to a time that has passed, so nothing is passed over.
create or replace function headrace_internal.position_to_seek(
    p_consumer int, p_stream headrace_internal.streams, p_seq bigint, p_time timestamptz, p_now timestamptz
) returns bigint
language plpgsql as $$
declare
    v_place  bigint := headrace_internal.place_to_seek(p_stream, p_seq, p_time, p_now);
begin
    if v_place is null and p_time is not null then
        select position into v_place
            from (select position from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1) as u
            where position >= coalesce(headrace_internal.last_message_seq(p_stream), 0);
    end if;
    return v_place;
end $$;

-- Return the position below a seq, or else below the first message of a time. Null is the end. Raises for a place ahead of
-- the stream.
create or replace function headrace_internal.place_to_seek(
    p_stream headrace_internal.streams, p_seq bigint, p_time timestamptz, p_now timestamptz
) returns bigint
language plpgsql as $$
declare
    v_last  bigint := coalesce(pg_sequence_last_value(p_stream.sequence::regclass), 0);
begin
    if p_time > p_now then
        raise exception using errcode = 'HR004', message = format(
            'The time %s lies in the future, it is %s now: take a time that has passed, or "end" for what comes from now on.',
            p_time at time zone 'utc', p_now at time zone 'utc');
    elsif p_time is not null then
        return headrace_internal.position_at(p_stream.name, p_time);
    elsif p_seq > v_last then
        raise exception using errcode = 'HR004', message = format(
            'The seq %s lies past the end of the stream %L, whose last one is %s: take one up to that, or "end" for what comes from now on.',
            p_seq, p_stream.name, v_last);
    end if;
    return case when p_seq is not null then greatest(p_seq, 1) - 1 end;     -- greatest() would ignore a null
end $$;

-- The seq of the first message that was published at p_time or later. Null when there is none.
create or replace function headrace_internal.seq_at(p_stream text, p_time timestamptz) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream  headrace_internal.streams;
    v_found   bigint;
begin
    select * into v_stream from headrace_internal.streams where name = p_stream;
    -- Times are nearly in the order of the seqs. So find a seq a little earlier by binary search, and the exact one
    -- from there.
    execute format('select seq from %s where seq >= $1 and created_at >= $2 order by seq limit 1', v_stream.relation)
        into v_found using headrace_internal.seq_near(v_stream, p_time - interval '1 minute'), p_time;
    return v_found;
end $$;

-- The position below the first message that was published at p_time or later. Null, the end, when there is none. It
-- is the seq of the message before, and not just one less. The seqs in between are missing, and may still be filled.
create or replace function headrace_internal.position_at(p_stream text, p_time timestamptz) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream    headrace_internal.streams;
    v_seq       bigint := headrace_internal.seq_at(p_stream, p_time);
    v_position  bigint;
begin
    if v_seq is null then
        return null;
    end if;
    select * into v_stream from headrace_internal.streams where name = p_stream;
    execute format('select seq from %s where seq < $1 order by seq desc limit 1', v_stream.relation) into v_position using v_seq;
    return coalesce(v_position, 0);
end $$;

-- The last message that was published before p_time. Null if there is none. A transaction that began since then has
-- drawn only larger seqs. The result is not the seq before the first message of p_time or later, because seqs in
-- between may be missing, and may have been drawn later. The message's own time is compared, since a message that
-- commits during the search may precede that first one, too.
create or replace function headrace_internal.last_seq_before(p_stream headrace_internal.streams, p_time timestamptz) returns bigint
language plpgsql as $$
declare
    v_found  bigint;
begin
    execute format('select seq from %s where seq < $1 and created_at < $2 order by seq desc limit 1', p_stream.relation)
        into v_found using headrace_internal.seq_near(p_stream, p_time), p_time;
    return v_found;
end $$;

-- Return a seq near the first message of p_time, by binary search, because there is no index on the times. created_at
-- rises with seq, except where a transaction was delayed between drawing the seq and reading the clock.
create or replace function headrace_internal.seq_near(p_stream headrace_internal.streams, p_time timestamptz) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_low     bigint;   -- all messages below are earlier
    v_high    bigint;   -- no message from here on is earlier
    v_middle  bigint;
    v_found   record;
begin
    execute format('select coalesce(min(seq), 1), coalesce(max(seq), 0) + 1 from %s', p_stream.relation) into v_low, v_high;
    while v_low < v_high loop
        v_middle := v_low + (v_high - v_low) / 2;
        execute format('select seq, created_at from %s where seq >= $1 and seq < $2 order by seq limit 1',
                       headrace_internal.table_of_range(p_stream, v_middle, v_high - 1))
            into v_found using v_middle, v_high;
        if v_found.created_at < p_time then
            v_low := v_found.seq + 1;
        else
            v_high := v_middle;
        end if;
    end loop;
    return v_low;
end $$;
