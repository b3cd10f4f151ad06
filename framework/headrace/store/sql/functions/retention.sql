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
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using errcode = 'HR003', message =
            'Retention must run under read committed: what it reads after it got a lock must be the newest state.';
    end if;
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

-- ---------------------------------------------------------------------------------------------------------------------------
-- Segments made ahead

-- How many seqs a segment should have: a sixteenth of what the stream may hold, so that what is dropped at once is little. But no
-- less than ten seconds of publishing, as far as that is not more than an eighth: making and dropping has its price, too.
-- Measured on the newest segments: bytes of a message, and messages a second (`rate`). `again_in`: seconds in which, at this pace, a
-- sixteenth of max_storage is published.
create function headrace.wanted_width(
    p_stream headrace.streams, p_drawn bigint, p_now timestamptz, out width bigint, out rate float8, out again_in float8
) language plpgsql as $$
declare
    c_share    constant int := 16;
    c_empty    constant int := 24576;       -- bytes of an empty segment
    v_segment  headrace.segments;
    v_ends     record;
    v_since    timestamptz;
    v_seqs     bigint := 0;
    v_bytes    bigint := 0;
    v_by_size  float8;
    v_by_time  float8;
begin
    for v_segment in
        select * from headrace.segments where stream_id = p_stream.id and lower <= p_drawn order by lower desc limit 3
    loop
        width := coalesce(width, v_segment.upper - v_segment.lower);
        execute format('select (select seq from %1$s order by seq desc limit 1) as last,
                               (select created_at from %1$s order by seq limit 1) as since', v_segment.relation) into v_ends;
        continue when v_ends.last is null;
        v_since := v_ends.since;
        v_seqs := v_seqs + v_ends.last - v_segment.lower + 1;
        v_bytes := v_bytes + greatest(pg_total_relation_size(v_segment.relation::regclass) - c_empty, 0);
    end loop;
    rate := 0;
    if v_seqs < 100 then        -- nothing to go by: as it was laid out
        width := coalesce(width, 100000);
        return;
    end if;
    rate := v_seqs / greatest(extract(epoch from p_now - v_since), 1);
    v_by_size := p_stream.max_storage::float8 / c_share * v_seqs / greatest(v_bytes, v_seqs);
    again_in := v_by_size / rate;
    v_by_time := least(rate * extract(epoch from p_stream.retain_up_to) / c_share,
                       case when p_stream.retention = 'interest' then rate * 60 end);
    width := least(greatest(coalesce(least(v_by_size, v_by_time), 1000000), rate * 10), v_by_size * 2, 10000000);
    width := greatest(width, 1000);
end $$;

-- Have segments of the wanted width ahead of the sequence. Those that it has not reached, and that are too wide, are replaced.
-- `again_in`: by then it should be looked at again, if it is known.
--
-- The one without a bound is reached only when nobody has come here for long. It becomes a segment with a bound, so that it can be
-- dropped one day, while it is small: the server reads it whole for that, under the lock. A larger one stays the open segment for
-- good, and is trimmed row by row.
create function headrace.plan_segments(
    p_stream int, p_patience int default 50, p_now timestamptz default clock_timestamp(),
    out made int, out busy boolean, out again_in float8
) language plpgsql set enable_seqscan = off as $$
declare
    c_small    constant bigint := 256 * 1024 * 1024;
    v_stream   headrace.streams;
    v_segment  headrace.segments;
    v_wanted   record;
    v_drawn    bigint;
    v_from     bigint;      -- what is above is to be replaced
    v_count    int;
    v_found    boolean;
begin
    made := 0;
    busy := false;
    v_stream := headrace.tend(p_stream);
    v_drawn := headrace.drawn(v_stream);
    if v_stream.id is null or v_stream.one_message_per_key or v_drawn = 0 then
        return;
    end if;
    v_wanted := headrace.wanted_width(v_stream, v_drawn, p_now);
    again_in := v_wanted.again_in;
    select min(lower) into v_from from headrace.segments
        where stream_id = p_stream and lower > v_drawn and (upper is null or upper - lower > 2 * v_wanted.width);
    if v_from is null then
        select * into v_segment from headrace.segments where stream_id = p_stream and upper is null;
        if pg_total_relation_size(v_segment.relation::regclass) > c_small then
            return;
        end if;
    elsif v_from - 1 - v_drawn >= greatest(v_wanted.width, v_wanted.rate * 3) then
        return;
    end if;
    if headrace.held_for_long(array[v_stream.relation]) then
        busy := true;
        return;
    end if;

    perform headrace.be_patient(p_patience);
    execute format('lock table only %s in access exclusive mode', v_stream.relation);
    v_drawn := headrace.drawn(v_stream);
    if v_from is null then
        v_from := v_drawn + 1;
        execute format('alter table %s detach partition %s', v_stream.relation, v_segment.relation);
        execute format('alter table %s attach partition %s for values from (%s) to (%s)',
                       v_stream.relation, v_segment.relation, v_segment.lower, v_from);
        update headrace.segments set upper = v_from where stream_id = p_stream and upper is null;
    else
        select min(lower) into v_from from headrace.segments where stream_id = p_stream and lower >= v_from and lower > v_drawn;
        if v_from is null then
            return;     -- the sequence was quicker
        end if;
    end if;
    for v_segment in select * from headrace.segments where stream_id = p_stream and lower >= v_from loop
        execute format('select exists (select from %s)', v_segment.relation) into v_found;
        if v_found then
            return;     -- somebody has written past the sequence, by hand
        end if;
    end loop;
    for v_segment in delete from headrace.segments where stream_id = p_stream and lower >= v_from returning * loop
        execute format('drop table %s', v_segment.relation);
    end loop;
    -- As many as will do for some seconds, in case they are small for the pace.
    v_count := least(greatest(ceil(v_wanted.rate * 6 / v_wanted.width), 2), 16);
    for i in 1 .. v_count - 1 loop
        perform headrace.add_segment(p_stream, v_from, v_from + v_wanted.width);
        v_from := v_from + v_wanted.width;
    end loop;
    perform headrace.lay_out(p_stream, v_from, v_wanted.width);
    made := v_count + 3;
exception when lock_not_available then
    made := 0;
    busy := true;
end $$;

-- Close the open segment before its time, when it alone is a large part of max_storage: draw the rest of its numbers. (The sequence
-- is never set: that could take it back.) Returns how many it drew.
create function headrace.close_early(p_stream int) returns int
language plpgsql as $$
declare
    c_share    constant int := 4;
    c_most     constant int := 200000;
    v_stream   headrace.streams;
    v_segment  headrace.segments;
    v_drawn    bigint;
begin
    v_stream := headrace.tend(p_stream);
    v_drawn := headrace.drawn(v_stream);
    select * into v_segment from headrace.segments
        where stream_id = v_stream.id and lower <= v_drawn and upper - 1 > v_drawn;
    if not found or v_stream.max_storage is null
       or pg_total_relation_size(v_segment.relation::regclass) <= v_stream.max_storage / c_share then
        return 0;
    end if;
    return (select count(nextval(v_stream.sequence::regclass)) from generate_series(1, least(v_segment.upper - 1 - v_drawn, c_most)));
end $$;

-- ---------------------------------------------------------------------------------------------------------------------------
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
        u.position + 1, lower(u.holes),
        (select min(lowest) from headrace.leases where consumer_id = c.id and lease_id >= u.lease_floor),
        (select min(seq) from headrace.parked where consumer_id = c.id and seq >= u.parked_floor),
        (select min(seq) from headrace.replays where consumer_id = c.id and seq >= u.replay_floor),
        (select min(seq) from headrace.blocked where consumer_id = c.id)))
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
               u.holes * int8multirange(int8range(p_segment.lower, p_segment.upper)) as holes,
               least((select min(lowest) from headrace.leases where consumer_id = c.id and lease_id >= u.lease_floor),
                     (select min(seq) from headrace.parked where consumer_id = c.id and seq >= greatest(u.parked_floor, v_first)),
                     (select min(seq) from headrace.replays where consumer_id = c.id and seq >= v_first),
                     (select min(seq) from headrace.blocked where consumer_id = c.id and seq >= v_first)) as lowest
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

-- ---------------------------------------------------------------------------------------------------------------------------
-- What consumers miss

-- Lock the consumers that have something to look at below p_upper, in the order of their ids. Returns them.
create function headrace.lock_behind(p_stream int, p_upper bigint) returns int[]
language plpgsql as $$
declare
    v_consumer  int;
    v_behind    int[] := '{}';
begin
    for v_consumer in
        select c.id from headrace.consumers as c
        cross join lateral (select * from headrace.cursors where consumer_id = c.id order by version desc limit 1) as u
        where c.stream_id = p_stream and (
            u.position < p_upper - 1 or lower(u.holes) < p_upper
            or exists (select from headrace.parked where consumer_id = c.id and seq >= u.parked_floor and seq < p_upper)
            or exists (select from headrace.replays where consumer_id = c.id and seq < p_upper)
            or exists (select from headrace.blocked where consumer_id = c.id and seq < p_upper))
        order by c.id
    loop
        perform pg_advisory_xact_lock(1212498508, v_consumer);
        v_behind := v_behind || v_consumer;
    end loop;
    return v_behind;
end $$;

-- Move a consumer over messages below p_upper that it will not get, at most p_look of them, and count them. What is missing among
-- them becomes holes, as when a lease looks at them. Returns up to where it has seen them all.
create function headrace.skim(
    p_stream headrace.streams, p_consumer int, p_upper bigint, p_look int, p_now timestamptz, out reached bigint, out missed bigint
) language plpgsql as $$
declare
    v_condition  text;
    v_before     headrace.cursors;
    v_after      headrace.cursors;
    v_seen       record;
begin
    reached := p_upper - 1;
    missed := 0;
    select condition into v_condition from headrace.consumers where id = p_consumer;
    select * into v_before from headrace.cursors where consumer_id = p_consumer order by version desc limit 1;
    if not found or v_before.position >= reached then
        return;
    end if;
    v_after := v_before;
    v_after.position := greatest(v_before.position,
                                 (select min(lower) - 1 from headrace.segments where stream_id = p_stream.id));
    execute format($sql$
        select count(*) as looked_at, max(seq) as last,
               count(*) filter (where wanted) as missed, min(seq) filter (where wanted) as lowest, max(seq) filter (where wanted) as highest,
               range_agg(int8range(previous + 1, seq)) filter (where seq > previous + 1) as missing
        from (
            select seq, (%2$s) as wanted, lag(seq, 1, $1) over (order by seq) as previous
            from (select * from %1$s where seq > $1 and seq < $2 order by seq limit $3) as m) as s
        $sql$, headrace.source(p_stream, v_after.position + 1, p_upper - 1), v_condition)
        into v_seen using v_after.position, p_upper, p_look;
    if v_seen.looked_at = 0 then
        return;
    elsif v_seen.looked_at = p_look then
        reached := v_seen.last;
    end if;
    v_after.position := v_seen.last;
    v_after.holes := (v_before.holes + coalesce(v_seen.missing, '{}')) * int8multirange(int8range(v_before.settled + 1, null));
    perform headrace.move(v_before, v_after);
    missed := v_seen.missed;
    if missed > 0 then
        perform headrace.miss(p_consumer, missed, v_seen.lowest, v_seen.highest + 1, p_now);
    end if;
end $$;

-- Count what a consumer has not got of the messages that are about to go: those below p_upper, of these only p_seqs if given. What is
-- parked, blocked or to be replayed of them is forgotten; only a message that blocks its key stays so, since the key waits for a
-- person, and that message's dead letter is complete. When all goes that is below p_upper, nobody can be in flight any more,
-- and the cursor moves there. Returns how many.
create function headrace.leave_behind(
    p_stream headrace.streams, p_consumer int, p_upper bigint, p_seqs bigint[], p_now timestamptz
) returns bigint
language plpgsql as $$
declare
    v_condition  text;
    v_before     headrace.cursors;
    v_after      headrace.cursors;
    v_lost       record;
begin
    select condition into v_condition from headrace.consumers where id = p_consumer;
    select * into v_before from headrace.cursors where consumer_id = p_consumer order by version desc limit 1;
    if not found then
        return 0;
    end if;
    execute format($sql$
        with unseen as (
            select m.seq from unnest($2) as place cross join lateral (
                select * from %1$s where seq >= lower(place) and seq < upper(place) and seq < $3
                                     and ($4 is null or seq = any ($4))) as m
            where %2$s
        ), parked as (
            delete from headrace.parked where consumer_id = $1 and seq >= $5 and seq < $3 and ($4 is null or seq = any ($4)) returning seq
        ), replays as (
            delete from headrace.replays where consumer_id = $1 and seq < $3 and ($4 is null or seq = any ($4)) returning seq
        ), blocked as (
            delete from headrace.blocked as b where consumer_id = $1 and seq < $3 and ($4 is null or seq = any ($4)) and not exists (
                select from headrace.dead_letters as d where d.consumer_id = $1 and d.seq = b.seq and d.blocks) returning seq
        )
        select count(*) as count, min(seq) as lowest, max(seq) as highest
        from (select seq from unseen union select seq from parked union select seq from replays union select seq from blocked) as lost
        $sql$, p_stream.relation, v_condition)
        into v_lost
        using p_consumer,
              (v_before.holes + int8multirange(int8range(v_before.position + 1, null))) * int8multirange(int8range(
                  (select min(lower) from headrace.segments where stream_id = p_stream.id), p_upper)),
              p_upper, p_seqs, v_before.parked_floor;
    if v_lost.count > 0 then
        perform headrace.miss(p_consumer, v_lost.count, v_lost.lowest, v_lost.highest + 1, p_now);
    end if;
    if p_seqs is null then
        v_after := v_before;
        v_after.position := greatest(v_before.position, p_upper - 1);
        v_after.settled := greatest(v_before.settled, p_upper - 1);
        v_after.holes := v_before.holes * int8multirange(int8range(p_upper, null));
        if v_before.mark < p_upper then
            v_after.mark := null;
            v_after.mark_stamp := null;
            v_after.suspects := null;
            v_after.suspects_at := null;
        end if;
        perform headrace.move(v_before, v_after);
    end if;
    return v_lost.count;
end $$;

-- ---------------------------------------------------------------------------------------------------------------------------
-- Removing

-- Drop the closed segments that policy lets go of, from the oldest on. Consumers that are far behind are first moved over what
-- goes, call by call, so that no call takes long.
-- `more`: another call right away will do more. `busy`: somebody was in the table, and nothing was done.
create function headrace.drop_segments(
    p_stream int, p_patience int default 50, p_now timestamptz default clock_timestamp(),
    out removed int, out missed bigint, out more boolean, out busy boolean
) language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    c_most      constant int := 16;
    c_look      constant int := 5000;
    v_stream    headrace.streams;
    v_segment   headrace.segments;
    v_leaving   headrace.segments[] := '{}';
    v_excess    bigint;
    v_large     boolean[] := '{}';
    v_upper     bigint;
    v_reached   bigint;
    v_drawn     bigint;
    v_behind    int[];
    v_consumer  int;
    v_skimmed   record;
begin
    removed := 0; missed := 0; more := false; busy := false;
    v_stream := headrace.tend(p_stream);
    if v_stream.id is null or v_stream.one_message_per_key then
        return;
    end if;
    v_drawn := headrace.drawn(v_stream);
    v_excess := coalesce(headrace.storage(v_stream) - v_stream.max_storage, 0);
    for v_segment in
        select * from headrace.segments where stream_id = p_stream and upper - 1 <= v_drawn order by lower limit c_most
    loop
        exit when not headrace.is_removable(v_stream, v_segment, v_excess > 0, p_now);
        v_leaving := v_leaving || v_segment;
        v_large := v_large || (v_excess > 0);
        v_excess := v_excess - pg_total_relation_size(v_segment.relation::regclass);
    end loop;
    if v_leaving = '{}' then
        return;
    elsif headrace.held_for_long(array(select relation from unnest(v_leaving)) || v_stream.relation) then
        busy := true;
        return;
    end if;
    more := cardinality(v_leaving) = c_most;

    perform headrace.be_patient(p_patience);
    v_upper := v_leaving[cardinality(v_leaving)].upper;
    v_behind := headrace.lock_behind(p_stream, v_upper);
    v_reached := v_upper - 1;
    foreach v_consumer in array v_behind loop
        v_skimmed := headrace.skim(v_stream, v_consumer, v_upper, c_look, p_now);
        missed := missed + v_skimmed.missed;
        v_reached := least(v_reached, v_skimmed.reached);
    end loop;
    if v_reached < v_upper - 1 then
        more := true;
        v_leaving := array(select s from unnest(v_leaving) as s where upper - 1 <= v_reached order by lower);
        if v_leaving = '{}' then
            return;
        end if;
        v_upper := v_leaving[cardinality(v_leaving)].upper;
    end if;

    execute format('lock table only %s in access exclusive mode', v_stream.relation);
    for i in 1 .. cardinality(v_leaving) loop
        if not headrace.is_removable(v_stream, v_leaving[i], v_large[i], p_now) then
            raise lock_not_available;   -- something came in late, and must stay
        end if;
    end loop;
    foreach v_consumer in array v_behind loop
        missed := missed + headrace.leave_behind(v_stream, v_consumer, v_upper, null, p_now);
    end loop;
    foreach v_segment in array v_leaving loop
        execute format('drop table %s', v_segment.relation);
        delete from headrace.segments where stream_id = p_stream and lower = v_segment.lower;
        removed := removed + 1;
    end loop;
exception when lock_not_available then
    removed := 0; missed := 0; more := false; busy := true;
end $$;

-- Delete old messages row by row, from the lowest seq on: in the last open segment, once it is the only one, by age; with
-- one_message_per_key by size, too. By `interest` alone nothing is deleted in an open segment.
create function headrace.trim(
    p_stream int, p_now timestamptz default clock_timestamp(), out removed int, out missed bigint, out more boolean
) language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    c_most      constant int := 10000;
    v_stream    headrace.streams;
    v_table     text;
    v_size      bigint;
    v_large     bigint := 0;        -- how many must go because of the size
    v_floor     bigint;
    v_seqs      bigint[];
    v_upper     bigint;
    v_behind    int[];
    v_consumer  int;
begin
    removed := 0; missed := 0; more := false;
    v_stream := headrace.tend(p_stream);
    v_table := v_stream.relation;
    if v_stream.id is null then
        return;
    elsif v_stream.one_message_per_key then
        v_size := headrace.storage(v_stream);
        if v_size > v_stream.max_storage then
            execute format('select ceil(count(*) * (1 - $1::float8 / $2)) from (select from %s limit 1000000) as m', v_table)
                into v_large using v_stream.max_storage, v_size;
        end if;
        if v_stream.retention = 'interest' then
            v_floor := coalesce(headrace.done_below(p_stream), 0);
        end if;
    else
        select relation into v_table from (select * from headrace.segments where stream_id = p_stream order by lower limit 1) as s
            where upper is null or upper - 1 > headrace.drawn(v_stream);
        if not found or v_stream.retention = 'interest' then
            return;
        end if;
    end if;
    if v_large = 0 and v_stream.retain_up_to is null then
        return;
    end if;
    execute format($sql$
        with oldest as (
            select seq, row_number() over (order by seq) <= $3 or coalesce(created_at < $4, false) as old,
                   coalesce(created_at > $5, false) or coalesce(seq >= $6, false) as kept
            from (select * from %s order by seq limit $1) as m
        )
        select array_agg(seq order by seq), max(seq) + 1 from oldest
        where seq < coalesce((select min(seq) from oldest where kept or not old), $2)
        $sql$, v_table)
        into v_seqs, v_upper
        using c_most, 9223372036854775807, v_large, p_now - v_stream.retain_up_to, p_now - v_stream.retain_at_least, v_floor;
    if v_seqs is null then
        return;
    end if;

    perform headrace.be_patient(1000);
    more := cardinality(v_seqs) = c_most;
    v_behind := headrace.lock_behind(p_stream, v_upper);
    if v_stream.one_message_per_key then
        -- A key whose row moves on just now is not missed: its next message comes.
        execute format('select coalesce(array_agg(seq), ''{}'') from (
                            select seq from %s where seq = any ($1) for update skip locked) as m', v_table)
            into v_seqs using v_seqs;
    end if;
    foreach v_consumer in array v_behind loop
        missed := missed + headrace.leave_behind(v_stream, v_consumer, v_upper, v_seqs, p_now);
    end loop;
    execute format('delete from %s where seq = any ($1)', v_table) using v_seqs;
    get diagnostics removed = row_count;
exception when lock_not_available then
    removed := 0; missed := 0; more := false;
end $$;

-- Refuse publishing while the stream is larger than max_storage, and what is oldest may not go. Returns whether it does.
create function headrace.judge_full(p_stream int, p_now timestamptz default clock_timestamp()) returns boolean
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream   headrace.streams;
    v_segment  headrace.segments;
    v_oldest   record;
    v_full     boolean := false;
begin
    v_stream := headrace.tend(p_stream);
    if v_stream.id is null then
        return null;
    elsif headrace.storage(v_stream) > v_stream.max_storage then
        if v_stream.one_message_per_key then
            execute format('select seq, created_at from %s order by seq limit 1', v_stream.relation) into v_oldest;
            v_full := coalesce(v_oldest.created_at > p_now - v_stream.retain_at_least, false)
                      or v_stream.retention = 'interest' and v_oldest.seq >= coalesce(headrace.done_below(p_stream), 0);
        else
            select * into v_segment from headrace.segments where stream_id = p_stream order by lower limit 1;
            v_full := not headrace.is_removable(v_stream, v_segment, true, p_now);
        end if;
    end if;
    -- It ends by itself when nobody comes to renew it.
    if v_full and coalesce(v_stream.full_until < p_now + interval '10 seconds', true) then
        update headrace.streams set full_until = p_now + interval '15 seconds' where id = p_stream;
    elsif not v_full and v_stream.full_until is not null then
        update headrace.streams set full_until = null where id = p_stream;
    end if;
    return v_full;
end $$;

-- Forget message ids that are older than the stream's dedupe_window. Returns how many.
create function headrace.forget_ids(p_stream int, p_now timestamptz default clock_timestamp()) returns int
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream  headrace.streams;
    v_count   int;
begin
    v_stream := headrace.tend(p_stream);
    delete from headrace.message_ids where stream_id = v_stream.id and message_id in (
        select message_id from headrace.message_ids
        where stream_id = v_stream.id and published_at < p_now - v_stream.dedupe_window
        order by published_at limit 10000 for update skip locked)
      and published_at < p_now - v_stream.dedupe_window;
    get diagnostics v_count = row_count;
    return v_count;
end $$;

-- Remove keys that a null payload deletes, once every consumer is done with that. p_after: what has been looked through by an
-- earlier call. `reached`: up to where it has looked through now.
create function headrace.remove_tombstones(p_stream int, p_after bigint default 0, out removed int, out reached bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    c_look    constant int := 10000;
    v_stream  headrace.streams;
    v_end     bigint;
    v_floor   bigint;
    v_found   record;
begin
    removed := 0;
    reached := p_after;
    v_stream := headrace.tend(p_stream);
    if v_stream.id is null or not (v_stream.one_message_per_key and v_stream.tombstones) then
        return;
    end if;
    v_floor := headrace.done_below(p_stream);
    if v_floor is null then     -- nobody reads it; but who is still publishing will commit below the end
        execute format('select coalesce(max(seq), 0) from %s', v_stream.relation) into v_end;
        v_floor := least(headrace.lowest_open(v_stream, v_end), v_end + 1);
    end if;
    if v_stream.retain_at_least is not null then
        v_floor := least(v_floor, headrace.seq_at(v_stream.name, clock_timestamp() - v_stream.retain_at_least));
    end if;
    execute format('select count(*) as looked_at, max(seq) as last, array_agg(seq) filter (where json_typeof(data) = ''null'') as seqs
                    from (select seq, data from %s where seq > $1 and seq < $2 order by seq limit $3) as m', v_stream.relation)
        into v_found using p_after, v_floor, c_look;
    if v_found.seqs is not null then
        execute format('delete from %s where seq = any ($1)', v_stream.relation) using v_found.seqs;
        get diagnostics removed = row_count;
    end if;
    reached := greatest(case when v_found.looked_at = c_look then v_found.last else v_floor - 1 end, 0);
end $$;

-- ---------------------------------------------------------------------------------------------------------------------------
-- Scheduled messages

-- Publish what is due, in the order of the times, and of the scheduling at one time. One at a time for each stream, until the commit,
-- so that this is the order of their seqs, too. `due_in`: seconds until there is more to do, null when nothing is scheduled.
create function headrace.move_scheduled(
    p_stream int, p_now timestamptz default clock_timestamp(), out moved int, out due_in float8
) language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream  headrace.streams;
    v_due     record;
    v_one     record;
begin
    moved := 0;
    select * into v_stream from headrace.streams where id = p_stream;
    if not found then
        return;
    elsif not pg_try_advisory_xact_lock(1212498511, p_stream) then
        due_in := 0.05;
        return;
    end if;
    begin
        with due as (
            delete from headrace.scheduled where stream_id = p_stream and (deliver_at, id) in (
                select deliver_at, id from headrace.scheduled
                where stream_id = p_stream and deliver_at <= p_now order by deliver_at, id limit 1000)
            returning *
        )
        select count(*) as count, array_agg(key order by deliver_at, id) as keys, array_agg(data order by deliver_at, id) as data,
               array_agg(headers order by deliver_at, id) as headers
            into v_due from due;
        if v_due.count > 0 then
            perform headrace.publish_many(v_stream.name, v_due.keys, v_due.data, v_due.headers);
            moved := v_due.count;
        end if;
    exception
        when sqlstate 'HR005' then      -- the stream is full
            due_in := 1;
            return;
        when check_violation then
            -- One that can't ever be published must not hold up the others: it is put off for ever, and stays for people to see.
            for v_one in
                select * from headrace.scheduled where stream_id = p_stream and deliver_at <= p_now order by deliver_at, id limit 1000
            loop
                begin
                    perform headrace.publish_many(v_stream.name, array[v_one.key], array[v_one.data], array[v_one.headers]);
                    delete from headrace.scheduled where stream_id = p_stream and deliver_at = v_one.deliver_at and id = v_one.id;
                    moved := moved + 1;
                exception when check_violation then
                    raise warning 'headrace: a scheduled message of key % of the stream % can''t be published: %', v_one.key, v_stream.name, sqlerrm;
                    update headrace.scheduled set deliver_at = 'infinity'
                        where stream_id = p_stream and deliver_at = v_one.deliver_at and id = v_one.id;
                end;
            end loop;
    end;
    select greatest(extract(epoch from deliver_at - p_now), 0) into due_in from headrace.scheduled
        where stream_id = p_stream and deliver_at < 'infinity' order by deliver_at limit 1;
end $$;

-- The streams for which something is scheduled, and in how many seconds it is due.
create function headrace.next_scheduled(p_now timestamptz default clock_timestamp())
returns table (stream_id int, stream text, due_in float8)
language sql stable set enable_seqscan = off set enable_bitmapscan = off as $$
    select s.id, s.name, greatest(extract(epoch from d.deliver_at - p_now), 0)
    from headrace.streams as s cross join lateral (
        select deliver_at from headrace.scheduled
        where scheduled.stream_id = s.id and deliver_at < 'infinity' order by deliver_at limit 1) as d
$$;

-- ---------------------------------------------------------------------------------------------------------------------------

-- Tables whose rows are rewritten all the time, and of which more is dead than alive: they are vacuumed without waiting for the
-- server's own round, which may come once a minute.
create function headrace.bloated() returns table (relation text, dead bigint)
language sql as $$
    select pg_stat_clear_snapshot();
    select r.relation, pg_stat_get_dead_tuples(r.relation::regclass)
    from (select s.relation from headrace.streams as s where one_message_per_key
          union all values ('headrace.scheduled'), ('headrace.message_ids')) as r(relation)
    where pg_stat_get_dead_tuples(r.relation::regclass) > greatest(10000, pg_stat_get_live_tuples(r.relation::regclass))
$$;
