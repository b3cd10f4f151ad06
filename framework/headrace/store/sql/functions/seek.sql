-- seek: move a consumer to any place, forward or back. What was in flight ends: its leases are deleted, and with them every
-- ack that is still on its way. One cursor row, whatever the length of the history.

-- p_position: the next message delivered is the first one above; null for the end, that is only what commits from now on.
create function headrace.seek(p_consumer int, p_position bigint) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream  headrace.streams;
    v_cursor  headrace.cursors;
    v_next    headrace.cursors;
    v_low     bigint;
begin
    perform headrace.require_read_committed('headrace.seek');
    -- Nothing is removed meanwhile: retention would not count it as missed, since it took the consumer to be past it. Retention takes this lock
    -- before those of consumers, too.
    perform pg_advisory_xact_lock_shared(1212498510, stream_id) from headrace.consumers where id = p_consumer;
    perform pg_advisory_xact_lock(1212498508, p_consumer);
    select s.* into v_stream
        from headrace.consumers as c join headrace.streams as s on s.id = c.stream_id where c.id = p_consumer;
    if not found then
        raise exception using errcode = 'HR002', message = 'The consumer no longer exists: declare it again.';
    end if;
    select * into v_cursor from headrace.cursors where consumer_id = p_consumer order by version desc limit 1;
    perform headrace.end_leases(p_consumer);
    delete from headrace.parked where consumer_id = p_consumer;
    delete from headrace.tails where consumer_id = p_consumer;
    delete from headrace.replays where consumer_id = p_consumer;
    delete from headrace.frozen_holes where consumer_id = p_consumer;
    update headrace.dead_letters set blocks = false where consumer_id = p_consumer and blocks;

    v_next := v_cursor;
    v_next.holes := '{}';
    v_next.holders := null;
    v_next.frozen := '{}';
    v_next.mark := null;
    v_next.mark_stamp := null;
    v_next.suspects := null;
    v_next.suspects_at := null;
    v_next.replay_floor := null;
    v_next.lease_floor := headrace.new_lease_id();
    v_next.position := p_position;
    v_next.parked_floor := p_position;
    v_next.blocked_floor := p_position;
    v_next.ready_floor := p_position;
    if p_position is null then
        -- The end, and the holes below it: who has drawn a seq there commits after now, and so is wanted. Holes can only be open
        -- while somebody holds the lock of an insert. The lock is asked for after the end was read, never before, or who took it
        -- in between would be forgotten; what he draws from then on lies above that end.
        execute format('select coalesce(max(seq), 0) from %s', v_stream.relation) into v_next.position;
        perform headrace.require_one_by_one(v_stream);
        v_low := least(headrace.lowest_open(v_stream, v_next.position), v_next.position + 1);
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
    v_next.sought := case when p_position > headrace.drawn(v_stream) then p_position end;
    perform headrace.move(v_cursor, v_next);
    perform headrace.wake(v_stream.id);
    return v_next.position;
end $$;

-- From which seq on a transaction that is open now may still commit messages; null if there is no such transaction.
--
-- A stream of millions must not be walked for its holes just because somebody publishes to it, so two things bound them from
-- below. What the stream's consumers know to be settled: no open transaction has a seq there. And, where that leaves much, the
-- time: an open transaction has drawn its seqs after it began, so they lie above all that was written before. The times are of
-- the server's clock, which may be set back; an hour is left for that. Without either (nobody has ever read the stream; a
-- prepared transaction, or one of a user whose statistics we may not see) the walk is as long as the stream: some seconds for
-- ten million messages.
create function headrace.lowest_open(p_stream headrace.streams, p_end bigint) returns bigint
language plpgsql as $$
declare
    c_many    constant int := 200000;   -- messages that are walked in less time than it takes to think
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
        from headrace.consumers as c
        cross join lateral (select settled from headrace.cursors where consumer_id = c.id order by version desc limit 1) as u
        where c.stream_id = p_stream.id;
    if p_end - v_low > c_many and v_open.since > '-infinity' then
        v_before := headrace.last_before(p_stream, v_open.since - interval '1 hour');
        v_low := greatest(v_low, coalesce(v_before, 0) + 1);
    end if;
    return v_low;
end $$;

-- To a seq, or else a time: the next message delivered is the first one at or above it.
create function headrace.seek_to(
    p_consumer int, p_seq bigint, p_time timestamptz, p_now timestamptz default clock_timestamp()
) returns bigint
language plpgsql as $$
declare
    v_stream  headrace.streams;
    v_last    bigint;
begin
    select s.* into v_stream
        from headrace.consumers as c join headrace.streams as s on s.id = c.stream_id where c.id = p_consumer;
    if not found then
        raise exception using errcode = 'HR002', message = 'The consumer no longer exists: declare it again.';
    elsif p_time > p_now then
        raise exception using errcode = 'HR004', message = format(
            'The time %s lies in the future, it is %s now: take a time that has passed, or "end" for what comes from now on.',
            p_time at time zone 'utc', p_now at time zone 'utc');
    elsif p_time is not null then
        return headrace.seek(p_consumer, headrace.position_at(v_stream.name, p_time));
    end if;
    v_last := coalesce(pg_sequence_last_value(v_stream.sequence::regclass), 0);
    if p_seq > v_last then
        raise exception using errcode = 'HR004', message = format(
            'The seq %s lies past the end of the stream %L, whose last one is %s: take one up to that, or "end" for what comes from now on.',
            p_seq, v_stream.name, v_last);
    end if;
    return headrace.seek(p_consumer, greatest(p_seq, 1) - 1);
end $$;

-- The first seq whose message was published at p_time or later; null when there is none.
create function headrace.seq_at(p_stream text, p_time timestamptz) returns bigint
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream  headrace.streams;
    v_found   bigint;
begin
    select * into v_stream from headrace.streams where name = p_stream;
    -- Nearly in the order of their seqs, so a bit earlier by halving, and from there exactly.
    execute format('select seq from %s where seq >= $1 and created_at >= $2 order by seq limit 1', v_stream.relation)
        into v_found using headrace.seq_near(v_stream, p_time - interval '1 minute'), p_time;
    return v_found;
end $$;

-- The position below the first message that was published at p_time or later; null, the end, when there is none. It is that of the
-- message before, and not just one less: what lies between is missing, and may yet come.
create function headrace.position_at(p_stream text, p_time timestamptz) returns bigint
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream    headrace.streams;
    v_seq       bigint := headrace.seq_at(p_stream, p_time);
    v_position  bigint;
begin
    if v_seq is null then
        return null;
    end if;
    select * into v_stream from headrace.streams where name = p_stream;
    execute format('select seq from %s where seq < $1 order by seq desc limit 1', v_stream.relation) into v_position using v_seq;
    return coalesce(v_position, 0);
end $$;

-- The last message of before p_time; null if there is none. Who has begun since has drawn only larger seqs. Not the seq in front of the first message
-- of that time or later: those in between may be missing, and have been drawn later. And its own time is asked for, since what commits
-- while this looks may be in front of that one, too.
create function headrace.last_before(p_stream headrace.streams, p_time timestamptz) returns bigint
language plpgsql stable as $$
declare
    v_found  bigint;
begin
    execute format('select seq from %s where seq < $1 and created_at < $2 order by seq desc limit 1', p_stream.relation)
        into v_found using headrace.seq_near(p_stream, p_time), p_time;
    return v_found;
end $$;

-- A seq about where the messages of p_time begin, by halving: there is no index on their times. created_at rises with seq, but for
-- what was held up between drawing the one and reading the clock.
create function headrace.seq_near(p_stream headrace.streams, p_time timestamptz) returns bigint
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_low     bigint;   -- all below are earlier ...
    v_high    bigint;   -- ... and all from here on are not
    v_middle  bigint;
    v_found   record;
begin
    execute format('select coalesce(min(seq), 1), coalesce(max(seq), 0) + 1 from %s', p_stream.relation) into v_low, v_high;
    while v_low < v_high loop
        v_middle := v_low + (v_high - v_low) / 2;
        execute format('select seq, created_at from %s where seq >= $1 and seq < $2 order by seq limit 1',
                       headrace.source(p_stream, v_middle, v_high - 1))
            into v_found using v_middle, v_high;
        if v_found.created_at < p_time then
            v_low := v_found.seq + 1;
        else
            v_high := v_middle;
        end if;
    end loop;
    return v_low;
end $$;
