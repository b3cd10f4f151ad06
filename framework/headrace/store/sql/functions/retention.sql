-- retention: a stream keeps what its policy says. A janitor calls these functions, about once a second and for each stream; any
-- process may run one, and of those that come at the same time one does the work. Each call is a short transaction of its own, and
-- does a bounded part of what there is to do. Nothing breaks if nobody calls for a day: see segments.sql.
--
-- Whole segments are dropped, never row by row, except in the last open one. To drop one, or to make new ones ahead, the stream's
-- table is locked against everybody for some milliseconds. Who publishes holds a lock on it from before he draws a seq until his
-- end; so with the lock in hand nobody else is in flight, and a seq that is missing then is missing for good. The lock is
-- asked for with a short patience, and not at all while somebody has been in the table for more than a second: a request
-- that waits makes all others queue behind it. What could not be done is done at one of the next calls.
--
-- A consumer is not to find that something has vanished below it. So before anything is removed, in the same transaction, and
-- under the lock of each consumer that is behind: what it misses is counted, and its cursor moves past it. The consumers'
-- locks come before the table's, as everywhere. Leases stay as they are: an ack of what was removed does no harm.
--
-- No consumer misses anything by `interest`; nothing that is younger than retain_at_least goes at all.

-- The stream, if it is there and it is our turn: until the end of the transaction nobody else tends it.
create function headrace.tend(p_stream int) returns headrace.streams
language plpgsql as $$
declare
    v_stream  headrace.streams;
begin
    perform headrace.require_read_committed('Retention');
    if pg_try_advisory_xact_lock(1212498510, p_stream) then
        select * into v_stream from headrace.streams where id = p_stream;
    end if;
    return v_stream;
end $$;

create function headrace.drawn(p_stream headrace.streams) returns bigint
language sql as $$
    select coalesce(pg_sequence_last_value(p_stream.sequence::regclass), 0)
$$;

-- Whether it is no use to ask for a lock on one of these tables now: somebody has been in there for more than a second, and will
-- be for who knows how long. A prepared transaction has no process.
create function headrace.held_for_long(p_relations text[]) returns boolean
language sql as $$
    select exists (
        select from pg_locks as l left join pg_stat_activity as a on a.pid = l.pid
        where l.locktype = 'relation' and l.granted and l.relation = any (array(select to_regclass(name) from unnest(p_relations) as name))
          and l.database = (select oid from pg_database where datname = current_database())
          and l.pid is distinct from pg_backend_pid()
          and (l.pid is null or a.xact_start < clock_timestamp() - interval '1 second'))
$$;

-- Every lock is waited for no longer than that, from now to the end of the transaction; then lock_not_available is raised.
create function headrace.be_patient(p_patience int) returns void
language sql as $$
    select set_config('lock_timeout', p_patience || 'ms', true)
$$;

-- What may go

-- Bytes that count against max_storage. With one_message_per_key it is an estimate of what the live rows and their index
-- entries take, since the dead ones come and go.
create function headrace.storage(p_stream headrace.streams) returns bigint
language plpgsql as $$
declare
    c_few    constant int := 20000;
    v_rows   bigint;
    v_bytes  float8;
begin
    if not p_stream.one_message_per_key then
        return (select coalesce(sum(pg_total_relation_size(to_regclass(relation))), 0) from headrace.segments
                where stream_id = p_stream.id and lower <= headrace.drawn(p_stream));
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

-- The first seq that some consumer is not done with; null when there is no consumer. In one statement, since a message moves from
-- the cursor to a lease, from there to the parked ones and back, and must not slip past.
create function headrace.done_below(p_stream int) returns bigint
language sql stable as $$
    select min(least(
        u.position + 1, headrace.lowest_hole(u),
        (select min(lowest) from headrace.leases where consumer_id = c.id and lease_id >= u.lease_floor),
        (select seq from headrace.parked where consumer_id = c.id and seq >= u.parked_floor order by seq limit 1),
        (select min(seq) from headrace.replays where consumer_id = c.id and seq >= u.replay_floor),
        (select seq from headrace.tails where consumer_id = c.id order by seq limit 1),
        (select seq from headrace.dead_letters where consumer_id = c.id and (blocks, seq) >= (true, u.blocked_floor)
         order by blocks, seq limit 1)))
    from headrace.consumers as c
    cross join lateral (select * from headrace.cursors where consumer_id = c.id order by version desc limit 1) as u
    where c.stream_id = p_stream
$$;

-- Whether some consumer is not done with a segment, as it is now. Missing messages are not waited for here, nor need a consumer have
-- looked past the last of its messages: a stream that is full because of that would never be read on.
create function headrace.is_needed(p_stream headrace.streams, p_segment headrace.segments, p_newest bigint) returns boolean
language plpgsql as $$
declare
    v_first     bigint;
    v_consumer  record;
    v_late      boolean;
begin
    select min(lower) into v_first from headrace.segments where stream_id = p_stream.id;
    for v_consumer in
        select c.id, u.position >= p_newest as past,
               headrace.holes_of(u) * int8multirange(int8range(p_segment.lower, p_segment.upper)) as holes,
               least((select min(lowest) from headrace.leases where consumer_id = c.id and lease_id >= u.lease_floor),
                     (select seq from headrace.parked where consumer_id = c.id and seq >= greatest(u.parked_floor, v_first)
                      order by seq limit 1),
                     (select min(seq) from headrace.replays where consumer_id = c.id and seq >= v_first),
                     (select seq from headrace.tails where consumer_id = c.id and seq >= v_first order by seq limit 1),
                     (select seq from headrace.dead_letters
                      where consumer_id = c.id and (blocks, seq) >= (true, greatest(u.blocked_floor, v_first))
                      order by blocks, seq limit 1)) as lowest
        from headrace.consumers as c
        cross join lateral (select * from headrace.cursors where consumer_id = c.id order by version desc limit 1) as u
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
    return not found;       -- by nobody at all, or it waits for the first consumer
end $$;

-- Whether policy lets go of the oldest segment. p_excess: whether the stream is larger than max_storage.
create function headrace.is_removable(
    p_stream headrace.streams, p_segment headrace.segments, p_excess boolean, p_now timestamptz
) returns boolean
language plpgsql as $$
declare
    v_newest  record;
begin
    execute format('select seq, created_at from %s order by seq desc limit 1', p_segment.relation) into v_newest;
    if v_newest.seq is null then
        return true;
    elsif v_newest.created_at > p_now - p_stream.retain_at_least then
        return false;
    elsif p_stream.retention = 'interest' then
        return not headrace.is_needed(p_stream, p_segment, v_newest.seq);
    end if;
    return p_excess or coalesce(v_newest.created_at < p_now - p_stream.retain_up_to, false);
end $$;
