-- retention: what consumers miss is counted, and their cursors moved past it, before anything is removed.

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
