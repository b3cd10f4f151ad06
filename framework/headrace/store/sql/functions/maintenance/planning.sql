-- retention: create segments ahead, with a width that follows the policy and the rate of publishing.

-- Return how many seqs a segment should have: a sixteenth of what the stream may hold, so that little is dropped at
-- once. But no less than ten seconds of publishing, unless that is more than an eighth, because creating and dropping
-- segments has a cost, too. Measured on the newest segments: bytes of a message, and messages a second (`rate`).
-- `again_in`: seconds in which a sixteenth of max_storage is published at this rate.
create or replace function headrace_internal.wanted_segment_width(
    p_stream headrace_internal.streams, p_drawn bigint, p_now timestamptz, out width bigint, out rate float8, out again_in float8
) language plpgsql as $$
declare
    c_share    constant int := 16;
    c_empty    constant int := 24576;       -- bytes of an empty segment
    v_segment  headrace_internal.segments;
    v_ends     record;
    v_since    timestamptz;
    v_seqs     bigint := 0;
    v_bytes    bigint := 0;
    v_by_size  float8;
    v_by_time  float8;
begin
    for v_segment in
        select * from headrace_internal.segments where stream_id = p_stream.id and lower <= p_drawn order by lower desc limit 3
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
    if v_seqs < 100 then        -- too few messages to measure: keep the width
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

-- Create segments of the wanted width ahead of the sequence. Segments that the sequence has not reached, and that are
-- too wide, are replaced. `again_in`: seconds until the next check is needed, if known.
--
-- The sequence reaches the segment without an upper bound only when this was not called for a long time. That segment
-- gets a bound while it is small, so that it can be dropped later. The server reads the whole segment for that, under
-- the lock. A larger one stays the open segment for good, and is trimmed row by row.
-- Granted: admin
create or replace function headrace_internal.plan_segments(
    p_stream int, p_lock_timeout int default 50, p_now timestamptz default clock_timestamp(),
    out made int, out busy boolean, out again_in float8
) language plpgsql set enable_seqscan = off as $$
declare
    c_small    constant bigint := 256 * 1024 * 1024;
    v_stream   headrace_internal.streams;
    v_segment  headrace_internal.segments;
    v_wanted   record;
    v_last_drawn    bigint;
    v_from     bigint;      -- segments from here on are to be replaced
    v_count    int;
    v_found    boolean;
begin
    made := 0;
    busy := false;
    v_stream := headrace_internal.lock_stream_for_maintenance(p_stream);
    v_last_drawn := headrace_internal.last_drawn_seq(v_stream);
    if v_stream.id is null or v_stream.one_message_per_key or v_last_drawn = 0 then
        return;
    end if;
    v_wanted := headrace_internal.wanted_segment_width(v_stream, v_last_drawn, p_now);
    again_in := v_wanted.again_in;
    select min(lower) into v_from from headrace_internal.segments
        where stream_id = p_stream and lower > v_last_drawn and (upper is null or upper - lower > 2 * v_wanted.width);
    if v_from is null then
        select * into v_segment from headrace_internal.segments where stream_id = p_stream and upper is null;
        if pg_total_relation_size(v_segment.relation::regclass) > c_small then
            return;
        end if;
    elsif v_from - 1 - v_last_drawn >= greatest(v_wanted.width, v_wanted.rate * 3) then
        return;
    end if;
    if headrace_internal.is_locked_for_long(array[v_stream.relation]) then
        busy := true;
        return;
    end if;

    perform headrace_internal.set_lock_timeout(p_lock_timeout);
    execute format('lock table only %s in access exclusive mode', v_stream.relation);
    v_last_drawn := headrace_internal.last_drawn_seq(v_stream);
    if v_from is null then
        v_from := v_last_drawn + 1;
        execute format('alter table %s detach partition %s', v_stream.relation, v_segment.relation);
        execute format('alter table %s attach partition %s for values from (%s) to (%s)',
                       v_stream.relation, v_segment.relation, v_segment.lower, v_from);
        update headrace_internal.segments set upper = v_from where stream_id = p_stream and upper is null;
    else
        select min(lower) into v_from from headrace_internal.segments where stream_id = p_stream and lower >= v_from and lower > v_last_drawn;
        if v_from is null then
            return;     -- the sequence has passed these segments already
        end if;
    end if;
    for v_segment in select * from headrace_internal.segments where stream_id = p_stream and lower >= v_from loop
        execute format('select exists (select from %s)', v_segment.relation) into v_found;
        if v_found then
            return;     -- a user has written a seq past the sequence
        end if;
    end loop;
    for v_segment in delete from headrace_internal.segments where stream_id = p_stream and lower >= v_from returning * loop
        execute format('drop table %s', v_segment.relation);
    end loop;
    -- Create enough segments for some seconds, in case they are small for this rate.
    v_count := least(greatest(ceil(v_wanted.rate * 6 / v_wanted.width), 2), 16);
    for i in 1 .. v_count - 1 loop
        perform headrace_internal.add_segment(p_stream, v_from, v_from + v_wanted.width);
        v_from := v_from + v_wanted.width;
    end loop;
    perform headrace_internal.add_segments_ahead(p_stream, v_from, v_wanted.width);
    made := v_count + 3;
exception when lock_not_available then
    made := 0;
    busy := true;
end $$;

-- Close the open segment early, when it alone is a large part of max_storage, by drawing the rest of its numbers.
-- (The sequence is never set, because that could move it back.) Returns how many numbers it drew.
-- Granted: admin
create or replace function headrace_internal.close_segment_early(p_stream int) returns int
language plpgsql as $$
declare
    c_share    constant int := 4;
    c_limit     constant int := 200000;
    v_stream   headrace_internal.streams;
    v_segment  headrace_internal.segments;
    v_last_drawn    bigint;
begin
    v_stream := headrace_internal.lock_stream_for_maintenance(p_stream);
    v_last_drawn := headrace_internal.last_drawn_seq(v_stream);
    select * into v_segment from headrace_internal.segments
        where stream_id = v_stream.id and lower <= v_last_drawn and upper - 1 > v_last_drawn;
    if not found or v_stream.max_storage is null
       or pg_total_relation_size(v_segment.relation::regclass) <= v_stream.max_storage / c_share then
        return 0;
    end if;
    return (select count(nextval(v_stream.sequence::regclass)) from generate_series(1, least(v_segment.upper - 1 - v_last_drawn, c_limit)));
end $$;
