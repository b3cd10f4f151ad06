-- Indexes of keys: those of the segments of append streams with index_keys. They serve looking at the messages of a key, see
-- headrace_internal.seqs_by_key. Leases don't use them. With one_message_per_key there always is a unique index.
--
-- A new segment gets its index when it is created. After a change of the setting, indexes are made one at a time, from the
-- newest segment to the oldest. Building one locks its segment against writes, and nobody writes to a segment that the
-- sequence has not reached or has passed. The segment in between is closed early, if it is not small.

-- The segments that lack an index, or have one that is not wanted any more.
create or replace function headrace_internal.segments_to_adjust() returns setof headrace_internal.segments
language sql as $$
    select g.* from headrace_internal.streams as s join headrace_internal.segments as g on g.stream_id = s.id
    where s.has_key_indexes and s.index_keys <> headrace_internal.has_key_index(g.stream_id, g.lower)
$$;

-- Granted: admin
create or replace function headrace_internal.has_key_index_to_adjust() returns boolean
language plpgsql as $$
begin
    return exists (select from headrace_internal.segments_to_adjust());
end $$;

-- Create or drop one index, or draw numbers to close the segment that is written. p_small: the size in bytes up to which
-- that segment is indexed as it is. Returns whether locks prevented it.
-- Granted: admin
create or replace function headrace_internal.adjust_key_index(p_lock_timeout int, p_small bigint) returns boolean
language plpgsql as $$
declare
    c_limit    constant int := 200000;
    v_stream   headrace_internal.streams;
    v_segment  headrace_internal.segments;
    v_drawn    bigint;
begin
    for v_segment in select distinct on (g.stream_id) g.* from headrace_internal.segments_to_adjust() as g order by g.stream_id, g.lower desc loop
        v_stream := headrace_internal.lock_stream_for_maintenance(v_segment.stream_id);
        v_drawn := headrace_internal.last_drawn_seq(v_stream);
        continue when v_stream.id is null;
        if v_stream.index_keys and v_segment.lower <= v_drawn and coalesce(v_segment.upper - 1 > v_drawn, true)
           and pg_total_relation_size(v_segment.relation::regclass) > p_small then
            -- Without an upper bound it gets one from headrace_internal.plan_segments, if it is not too large.
            continue when v_segment.upper is null;
            perform count(nextval(v_stream.sequence::regclass)) from generate_series(1, least(v_segment.upper - 1 - v_drawn, c_limit));
            return false;
        end if;
        begin
            perform headrace_internal.set_lock_timeout(p_lock_timeout);
            if v_stream.index_keys then
                execute format('create index %I on %s (key, seq)', headrace_internal.key_index_name(v_stream.id, v_segment.lower), v_segment.relation);
            else
                execute format('drop index headrace_streams.%I', headrace_internal.key_index_name(v_stream.id, v_segment.lower));
                update headrace_internal.streams as s set has_key_indexes = exists (
                    select from headrace_internal.segments as g where g.stream_id = s.id and headrace_internal.has_key_index(s.id, g.lower))
                    where s.id = v_stream.id and not s.index_keys;
            end if;
            return false;
        exception when lock_not_available then
            continue;
        end;
    end loop;
    return true;
end $$;
