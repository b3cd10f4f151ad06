-- retention: remove what a stream's policy does not keep. A janitor calls these functions about once a second for
-- each stream. Any process may call one, and of concurrent calls one does the work. Each call is a short transaction
-- of its own, and does a bounded part of the work. Nothing breaks if no process calls them for a day, see
-- segments.sql.
--
-- Whole segments are dropped, never row by row, except in the last open one. To drop a segment, or to create new ones
-- ahead, the stream's table is locked exclusively for some milliseconds. A publisher holds a lock on it from before
-- it draws a seq until it ends, so under the exclusive lock no publisher is in flight, and a seq that is missing then
-- is missing for good. The lock request has a short timeout, and is not made at all while a session has been using
-- the table for more than a second, because a waiting request makes all others queue behind it. One of the next calls
-- does what could not be done.
--
-- A consumer must not find that messages have vanished below it. So before anything is removed, in the same
-- transaction, and under the lock of each consumer that is behind, the messages it misses are counted, and its cursor
-- moves past them. The consumers' locks come before the table's, as everywhere. Leases are not changed, since an ack
-- of a removed message does no harm.
--
-- By `interest` no consumer misses anything. Nothing younger than retain_at_least is removed.

-- Return the stream, if it exists and its lock is free. No other call maintains the stream until the end of the
-- transaction.
create or replace function headrace_internal.lock_stream_for_maintenance(p_stream int) returns headrace_internal.streams
language plpgsql as $$
declare
    v_stream  headrace_internal.streams;
begin
    perform headrace_internal.require_read_committed('Retention');
    if pg_try_advisory_xact_lock(1212498510, p_stream) then
        select * into v_stream from headrace_internal.streams where id = p_stream;
    end if;
    return v_stream;
end $$;

create or replace function headrace_internal.last_drawn_seq(p_stream headrace_internal.streams) returns bigint
language sql as $$
    select coalesce(pg_sequence_last_value(p_stream.sequence::regclass), 0)
$$;

-- Return whether it is useless to request a lock on one of these tables now. That is so if a session has been using
-- one for more than a second, since it may continue for long. A prepared transaction counts, too. It has no process.
create or replace function headrace_internal.is_locked_for_long(p_relations text[]) returns boolean
language sql as $$
    select exists (
        select from pg_locks as l left join pg_stat_activity as a on a.pid = l.pid
        where l.locktype = 'relation' and l.granted and l.relation = any (array(select to_regclass(name) from unnest(p_relations) as name))
          and l.database = (select oid from pg_database where datname = current_database())
          and l.pid is distinct from pg_backend_pid()
          and (l.pid is null or a.xact_start < clock_timestamp() - interval '1 second'))
$$;

-- Limit the wait for each lock to p_lock_timeout milliseconds, until the end of the transaction. Then lock_not_available
-- is raised.
create or replace function headrace_internal.set_lock_timeout(p_lock_timeout int) returns void
language sql as $$
    select set_config('lock_timeout', p_lock_timeout || 'ms', true)
$$;

-- What may be removed.

-- Return the bytes that count against max_storage. With one_message_per_key this is an estimate of what the live rows
-- and their index entries take, since the number of dead ones fluctuates.
create or replace function headrace_internal.stored_bytes(p_stream headrace_internal.streams) returns bigint
language plpgsql as $$
declare
    c_few    constant int := 20000;
    v_rows   bigint;
    v_bytes  float8;
begin
    if not p_stream.one_message_per_key then
        return (select coalesce(sum(pg_total_relation_size(to_regclass(relation))), 0) from headrace_internal.segments
                where stream_id = p_stream.id and lower <= headrace_internal.last_drawn_seq(p_stream));
    end if;
    execute format('select (select count(*) from (select from %1$s limit $1 + 1) as few), (select avg(
                        1.4 * (56 + pg_column_size(key) + pg_column_size(data) + coalesce(pg_column_size(headers), 0)
                               + coalesce(pg_column_size(digest), 0))
                        + 48 + pg_column_size(key)) from (select * from %1$s order by seq limit 1000) as sample)', p_stream.relation)
        into v_rows, v_bytes using c_few;
    if v_rows > c_few then
        v_rows := greatest(v_rows, pg_stat_get_live_tuples(p_stream.relation::regclass));
    end if;
    return coalesce(v_rows * v_bytes, 0);
end $$;

-- Return the first seq that some consumer is not done with. Null when there is no consumer. It is one statement,
-- since a message moves from the cursor to a lease, from there to the parked messages and back, and must not be
-- overlooked in between.
create or replace function headrace_internal.first_unfinished_seq(p_stream int) returns bigint
language sql as $$
    select min(least(
        u.position + 1, (select * from headrace_internal.cursor_lowest_hole(u)),
        (select min(lowest) from headrace_internal.leases where consumer_id = c.id and lease_id >= u.lease_floor),
        (select seq from headrace_internal.first_parked(c.id, u.parked_floor) as seq),
        (select min(seq) from headrace_internal.replays where consumer_id = c.id and seq >= u.replay_floor),
        (select seq from headrace_internal.tails where consumer_id = c.id order by seq limit 1),
        (select seq from headrace_internal.first_blocking(c.id, u.blocked_floor) as seq)))
    from headrace_internal.consumers as c
    cross join lateral (select * from headrace_internal.cursors where consumer_id = c.id order by version desc limit 1) as u
    where c.stream_id = p_stream
$$;

-- Return whether some consumer still needs a segment, as it is now. This does not wait for missing messages, and a
-- consumer need not have read past the segment's last message. Otherwise a stream that is full for that reason would
-- never continue.
create or replace function headrace_internal.is_segment_needed(p_stream headrace_internal.streams, p_segment headrace_internal.segments, p_newest bigint) returns boolean
language plpgsql as $$
declare
    v_first     bigint;
    v_consumer  record;
    v_late      boolean;
begin
    select min(lower) into v_first from headrace_internal.segments where stream_id = p_stream.id;
    for v_consumer in
        select c.id, u.position >= p_newest as past,
               (select * from headrace_internal.cursor_holes(u)) * int8multirange(int8range(p_segment.lower, p_segment.upper)) as holes,
               least((select min(lowest) from headrace_internal.leases where consumer_id = c.id and lease_id >= u.lease_floor),
                     (select seq from headrace_internal.first_parked(c.id, greatest(u.parked_floor, v_first)) as seq),
                     (select min(seq) from headrace_internal.replays where consumer_id = c.id and seq >= v_first),
                     (select seq from headrace_internal.tails where consumer_id = c.id and seq >= v_first order by seq limit 1),
                     (select seq from headrace_internal.first_blocking(c.id, greatest(u.blocked_floor, v_first)) as seq)) as lowest
        from headrace_internal.consumers as c
        cross join lateral (select * from headrace_internal.cursors where consumer_id = c.id order by version desc limit 1) as u
        where c.stream_id = p_stream.id
    loop
        if not v_consumer.past or v_consumer.lowest < p_segment.upper then
            return true;
        elsif v_consumer.holes <> '{}' then
            execute format('select exists (select from unnest($1) as hole cross join lateral (
                                select from %s where seq >= lower(hole) and seq < upper(hole) limit 1) as m)', p_segment.relation)
                into v_late using v_consumer.holes;
            if v_late then
                return true;
            end if;
        end if;
    end loop;
    return not found;       -- true if there is no consumer: the segment is kept for the first one
end $$;

-- Return when the newest message of a segment was published at the latest. Its own time, p_time, lies in the future, because
-- the clock was set back since. But it is older than the messages of later segments.
create or replace function headrace_internal.published_before(p_stream int, p_lower bigint, p_time timestamptz, p_now timestamptz) returns timestamptz
language plpgsql as $$
declare
    v_relation  text;
    v_later     timestamptz;
begin
    for v_relation in select relation from headrace_internal.segments where stream_id = p_stream and lower > p_lower order by lower loop
        execute format('select created_at from %s order by seq desc limit 1', v_relation) into v_later;
        p_time := least(p_time, v_later);
        exit when not headrace_internal.is_ahead(p_time, p_now);
    end loop;
    return p_time;
end $$;

-- Return whether the policy lets the oldest segment go. p_too_large: whether the stream is larger than max_storage.
create or replace function headrace_internal.is_segment_removable(
    p_stream headrace_internal.streams, p_segment headrace_internal.segments, p_too_large boolean, p_now timestamptz
) returns boolean
language plpgsql as $$
declare
    v_newest  record;
begin
    execute format('select seq, created_at from %s order by seq desc limit 1', p_segment.relation) into v_newest;
    if v_newest.seq is null then
        return true;
    end if;
    if headrace_internal.is_ahead(v_newest.created_at, p_now) then
        v_newest.created_at := headrace_internal.published_before(p_stream.id, p_segment.lower, v_newest.created_at, p_now);
    end if;
    if v_newest.created_at > p_now - p_stream.retain_at_least then
        return false;
    elsif p_stream.retention = 'interest' then
        return not headrace_internal.is_segment_needed(p_stream, p_segment, v_newest.seq);
    end if;
    return p_too_large or coalesce(v_newest.created_at < p_now - p_stream.retain_up_to, false);
end $$;
