-- retention: drop segments, trim rows, and refuse publishing when a stream is full.

-- Drop the closed segments that the policy no longer keeps, from the oldest on. Consumers that are far behind are
-- first moved past them, call by call, so that no call takes long.
-- `more`: another call has more to do. `busy`: another session was using the table, and nothing was done.
-- Granted: admin
create or replace function headrace_internal.drop_segments(
    p_stream int, p_lock_timeout int default 50, p_now timestamptz default clock_timestamp(),
    out removed int, out missed bigint, out more boolean, out busy boolean
) language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    c_limit      constant int := 16;
    c_scan_limit      constant int := 5000;
    c_consumers constant int := 64;
    v_stream    headrace_internal.streams;
    v_segment   headrace_internal.segments;
    v_removable   headrace_internal.segments[] := '{}';
    v_excess    bigint;
    v_large     boolean[] := '{}';
    v_upper     bigint;
    v_reached   bigint;
    v_last_drawn     bigint;
    v_behind    record;
    v_consumer  int;
    v_skipped   record;
begin
    removed := 0; missed := 0; more := false; busy := false;
    v_stream := headrace_internal.lock_stream_for_maintenance(p_stream);
    if v_stream.id is null or v_stream.one_message_per_key then
        return;
    end if;
    v_last_drawn := headrace_internal.last_drawn_seq(v_stream);
    v_excess := coalesce(headrace_internal.stored_bytes(v_stream) - v_stream.max_storage, 0);
    for v_segment in
        select * from headrace_internal.segments where stream_id = p_stream and upper - 1 <= v_last_drawn order by lower limit c_limit
    loop
        exit when not headrace_internal.is_segment_removable(v_stream, v_segment, v_excess > 0, p_now);
        v_removable := v_removable || v_segment;
        v_large := v_large || (v_excess > 0);
        v_excess := v_excess - pg_total_relation_size(v_segment.relation::regclass);
    end loop;
    if v_removable = '{}' then
        return;
    elsif headrace_internal.is_locked_for_long(array(select relation from unnest(v_removable)) || v_stream.relation) then
        busy := true;
        return;
    end if;
    more := cardinality(v_removable) = c_limit;

    perform headrace_internal.set_lock_timeout(p_lock_timeout);
    v_upper := v_removable[cardinality(v_removable)].upper;
    v_behind := headrace_internal.lock_lagging_consumers(v_stream, v_upper, c_consumers);
    more := more or v_behind.more;
    v_reached := v_upper - 1;
    foreach v_consumer in array v_behind.consumers loop
        v_skipped := headrace_internal.skip_undelivered(v_stream, v_consumer, v_upper, c_scan_limit, p_now);
        missed := missed + v_skipped.missed;
        v_reached := least(v_reached, v_skipped.reached);
    end loop;
    if v_reached < v_upper - 1 then
        more := true;
        v_removable := array(select s from unnest(v_removable) as s where upper - 1 <= v_reached order by lower);
        if v_removable = '{}' then
            return;
        end if;
        v_upper := v_removable[cardinality(v_removable)].upper;
    end if;

    execute format('lock table only %s in access exclusive mode', v_stream.relation);
    for i in 1 .. cardinality(v_removable) loop
        if not headrace_internal.is_segment_removable(v_stream, v_removable[i], v_large[i], p_now) then
            raise lock_not_available;   -- a message arrived late, and must stay
        end if;
    end loop;
    foreach v_consumer in array v_behind.consumers loop
        missed := missed + headrace_internal.drop_undelivered(v_stream, v_consumer, v_upper, null, p_now);
    end loop;
    if v_behind.more then
        return;     -- the next calls move the other consumers, and then the segments are dropped
    end if;
    foreach v_segment in array v_removable loop
        execute format('drop table %s', v_segment.relation);
        delete from headrace_internal.segments where stream_id = p_stream and lower = v_segment.lower;
        removed := removed + 1;
    end loop;
exception when lock_not_available or deadlock_detected then     -- a replay reads the table before it has the consumer's lock
    removed := 0; missed := 0; more := false; busy := true;
end $$;

-- Delete old messages row by row, from the lowest seq on. In a stream of segments this is done by age, in the open
-- segment, once no closed one is left. With one_message_per_key it is done by size, too. By `interest` alone nothing
-- is deleted in an open segment.
-- Granted: admin
create or replace function headrace_internal.trim_stream(
    p_stream int, p_now timestamptz default clock_timestamp(), out removed int, out missed bigint, out more boolean
) language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    c_limit      constant int := 10000;
    c_consumers constant int := 64;
    v_stream    headrace_internal.streams;
    v_table     text;
    v_size      bigint;
    v_large     bigint := 0;        -- how many must be deleted because of the size
    v_floor     bigint;
    v_seqs      bigint[];
    v_upper     bigint;
    v_behind    record;
    v_consumer  int;
begin
    removed := 0; missed := 0; more := false;
    v_stream := headrace_internal.lock_stream_for_maintenance(p_stream);
    v_table := v_stream.relation;
    if v_stream.id is null then
        return;
    elsif v_stream.one_message_per_key then
        v_size := headrace_internal.stored_bytes(v_stream);
        if v_size > v_stream.max_storage then
            execute format('select ceil(count(*) * (1 - $1::float8 / $2)) from (select from %s limit 1000000) as m', v_table)
                into v_large using v_stream.max_storage, v_size;
        end if;
        if v_stream.retention = 'interest' then
            v_floor := coalesce(headrace_internal.first_unfinished_seq(p_stream), 0);
        end if;
    else
        select relation into v_table from (select * from headrace_internal.segments where stream_id = p_stream order by lower limit 1) as s
            where upper is null or upper - 1 > headrace_internal.last_drawn_seq(v_stream);
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
            -- A time in the future was given before the clock was set back. Such a message is older than those behind it.
            from (select seq, case when headrace_internal.is_ahead(created_at, $7)
                                   then min(created_at) over (order by seq rows between current row and unbounded following)
                                   else created_at end as created_at
                  from (select seq, created_at from %s order by seq limit $1) as m) as m
        )
        select array_agg(seq order by seq), max(seq) + 1 from oldest
        where seq < coalesce((select min(seq) from oldest where kept or not old), $2)
        $sql$, v_table)
        into v_seqs, v_upper
        using c_limit, 9223372036854775807, v_large, p_now - v_stream.retain_up_to, p_now - v_stream.retain_at_least, v_floor, p_now;
    if v_seqs is null then
        return;
    end if;

    perform headrace_internal.set_lock_timeout(1000);
    more := cardinality(v_seqs) = c_limit;
    v_behind := headrace_internal.lock_lagging_consumers(v_stream, v_upper, c_consumers);
    if v_behind.more then
        -- All messages below are removed, so these consumers are moved past them, as many as were locked. What may
        -- still arrive late stays a hole.
        foreach v_consumer in array v_behind.consumers loop
            missed := missed + (headrace_internal.skip_undelivered(v_stream, v_consumer, v_upper, c_limit, p_now)).missed
                             + headrace_internal.drop_undelivered(v_stream, v_consumer, v_upper, v_seqs, p_now);
        end loop;
        more := true;
        return;
    end if;
    if v_stream.one_message_per_key then
        -- A key that is moved to a new seq at this moment is not missed, because its next message is delivered.
        execute format('select coalesce(array_agg(seq), ''{}'') from (
                            select seq from %s where seq = any ($1) for update skip locked) as m', v_table)
            into v_seqs using v_seqs;
    end if;
    foreach v_consumer in array v_behind.consumers loop
        missed := missed + headrace_internal.drop_undelivered(v_stream, v_consumer, v_upper, v_seqs, p_now);
    end loop;
    execute format('delete from %s where seq = any ($1)', v_table) using v_seqs;
    get diagnostics removed = row_count;
    -- For readers that keep their own position, see headrace_internal.require_range.
    update headrace_internal.streams set trimmed = greatest(trimmed, (select max(seq) from unnest(v_seqs) as seq)) where id = p_stream and removed > 0;
exception when lock_not_available then
    removed := 0; missed := 0; more := false;
end $$;

-- Refuse publishing while the stream is larger than max_storage and its oldest messages must be kept. Returns whether
-- it is refused.
-- Granted: admin
create or replace function headrace_internal.check_full(p_stream int, p_now timestamptz default clock_timestamp()) returns boolean
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream   headrace_internal.streams;
    v_segment  headrace_internal.segments;
    v_oldest   record;
    v_full     boolean := false;
begin
    v_stream := headrace_internal.lock_stream_for_maintenance(p_stream);
    if v_stream.id is null then
        return null;
    elsif headrace_internal.stored_bytes(v_stream) > v_stream.max_storage then
        if v_stream.one_message_per_key then
            execute format('select seq, created_at from %s order by seq limit 1', v_stream.relation) into v_oldest;
            v_full := coalesce(v_oldest.created_at > p_now - v_stream.retain_at_least, false)
                      or v_stream.retention = 'interest' and v_oldest.seq >= coalesce(headrace_internal.first_unfinished_seq(p_stream), 0);
        else
            select * into v_segment from headrace_internal.segments where stream_id = p_stream order by lower limit 1;
            v_full := not headrace_internal.is_segment_removable(v_stream, v_segment, true, p_now);
        end if;
    end if;
    -- The refusal expires unless it is renewed. An edit of the policy meanwhile has ended it, and the next call decides.
    if v_full and coalesce(v_stream.full_until < p_now + interval '10 seconds', true) then
        update headrace_internal.streams set full_until = p_now + interval '15 seconds'
            where id = p_stream and updated_at = v_stream.updated_at;
    elsif not v_full and v_stream.full_until is not null then
        update headrace_internal.streams set full_until = null where id = p_stream;
    end if;
    return v_full;
end $$;
