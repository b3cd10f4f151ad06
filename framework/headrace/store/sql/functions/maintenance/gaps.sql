-- retention: count the messages that consumers miss, and move their cursors past them, before they are removed.

-- Lock the consumers that have messages or holes below p_upper, in the order of their ids. At most p_limit of those
-- that lag are locked. Those that only have holes there are locked as well, only when these are all (`more` is
-- false). A server has room for some thousands of locks, and there may be more consumers. Then lock the policy of the stream,
-- as p_stream has it. Raises lock_not_available if it was edited meanwhile: it may keep what was to be removed.
create or replace function headrace_internal.lock_lagging_consumers(
    p_stream headrace_internal.streams, p_upper bigint, p_limit int, out consumers int[], out more boolean
)
language plpgsql as $$
declare
    c_holes     constant int := 1000;
    v_consumer  int;
begin
    select coalesce(array_agg(b.id order by b.id) filter (where b.place <= p_limit and (b.lags or not b.many)), '{}'),
           coalesce(bool_or(b.many), false)
        into consumers, more
        from (
            select b.id, b.lags, row_number() over (partition by b.lags order by b.id) - case when b.lags then 0 else c_holes end as place,
                   count(*) filter (where b.lags) over () > p_limit as many
            from (
                select c.id, u.position < p_upper - 1
                             or coalesce((select seq from headrace_internal.first_parked(c.id, u.parked_floor) as seq) < p_upper, false)
                             or exists (select from headrace_internal.replays where consumer_id = c.id and seq < p_upper)
                             or coalesce((select seq from headrace_internal.tails where consumer_id = c.id order by seq limit 1) < p_upper, false) as lags,
                       (select * from headrace_internal.cursor_lowest_hole(u)) < p_upper as has_holes
                from headrace_internal.consumers as c
                cross join lateral (select * from headrace_internal.cursors where consumer_id = c.id order by version desc limit 1) as u
                where c.stream_id = p_stream.id) as b
            where b.lags or b.has_holes) as b;
    foreach v_consumer in array consumers loop
        perform pg_advisory_xact_lock(1212498508, v_consumer);
    end loop;
    perform from headrace_internal.streams where id = p_stream.id and updated_at = p_stream.updated_at for share;
    if not found then
        raise lock_not_available;
    end if;
end $$;

-- Move a consumer past messages below p_upper that it will not get, at most p_scan_limit of them, and count those that
-- have not expired. Missing seqs among them become holes, as in a lease call. `reached`: all seqs up to here have been examined.
create or replace function headrace_internal.skip_undelivered(
    p_stream headrace_internal.streams, p_consumer int, p_upper bigint, p_scan_limit int, p_now timestamptz, out reached bigint, out missed bigint
) language plpgsql as $$
declare
    v_condition  text;
    v_before     headrace_internal.cursors;
    v_after      headrace_internal.cursors;
    v_seen       record;
begin
    reached := p_upper - 1;
    missed := 0;
    select headrace_internal.unexpired(condition, p_now) into v_condition from headrace_internal.consumers where id = p_consumer;
    select * into v_before from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1;
    if not found or v_before.position >= reached then
        return;
    end if;
    v_after := v_before;
    v_after.position := greatest(v_before.position,
                                 (select min(lower) - 1 from headrace_internal.segments where stream_id = p_stream.id));
    execute format($sql$
        select count(*) as looked_at, max(seq) as last,
               count(*) filter (where wanted) as missed, min(seq) filter (where wanted) as lowest, max(seq) filter (where wanted) as highest,
               range_agg(int8range(previous + 1, seq)) filter (where seq > previous + 1) as missing
        from (
            select seq, (%2$s) as wanted, lag(seq, 1, $1) over (order by seq) as previous
            from (select * from %1$s where seq > $1 and seq < $2 order by seq limit $3) as m) as s
        $sql$, headrace_internal.table_of_range(p_stream, v_after.position + 1, p_upper - 1), v_condition)
        into v_seen using v_after.position, p_upper, p_scan_limit;
    if v_seen.looked_at = 0 then
        return;
    elsif v_seen.looked_at = p_scan_limit then
        reached := v_seen.last;
    end if;
    v_after.position := v_seen.last;
    v_after.holes := (v_before.holes + coalesce(v_seen.missing, '{}')) * int8multirange(int8range(v_before.settled + 1, null));
    v_after.holders := null;
    perform headrace_internal.write_cursor(v_before, v_after);
    missed := v_seen.missed;
    if missed > 0 then
        perform headrace_internal.record_gap(p_consumer, missed, v_seen.lowest, v_seen.highest + 1, p_now);
    end if;
end $$;

-- Count the messages about to be removed that a consumer has not got: those below p_upper, or of these only p_seqs if
-- given. Those of them that are parked, in a tail or waiting for a replay are forgotten. Only a message that blocks
-- its key continues to block it, since the key waits for a user, and the message's dead letter is complete. If all
-- messages below p_upper are removed (p_seqs is null), no transaction can be in flight there any more, and the cursor
-- moves there. Returns the number of messages counted.
create or replace function headrace_internal.drop_undelivered(
    p_stream headrace_internal.streams, p_consumer int, p_upper bigint, p_seqs bigint[], p_now timestamptz
) returns bigint
language plpgsql as $$
declare
    v_condition  text;
    v_before     headrace_internal.cursors;
    v_after      headrace_internal.cursors;
    v_lost       record;
begin
    select headrace_internal.unexpired(condition, p_now) into v_condition from headrace_internal.consumers where id = p_consumer;
    select * into v_before from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1;
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
            delete from headrace_internal.parked where consumer_id = $1 and seq >= $5 and seq < $3 and ($4 is null or seq = any ($4))
            returning seq, key_hash
        ), replays as (
            delete from headrace_internal.replays where consumer_id = $1 and seq < $3 and ($4 is null or seq = any ($4))
            returning seq, key_hash
        ), tails as (
            delete from headrace_internal.tails where consumer_id = $1 and seq < $3 and ($4 is null or seq = any ($4)) returning seq
        )
        select count(*) as count, min(seq) as lowest, max(seq) as highest, (select array_agg(key_hash) from (select key_hash from parked union select key_hash from replays) as k) as headless
        from (select seq from unseen union select seq from parked union select seq from replays union select seq from tails) as lost
        $sql$, p_stream.relation, v_condition)
        into v_lost
        using p_consumer,
              ((select * from headrace_internal.cursor_holes(v_before)) + int8multirange(int8range(v_before.position + 1, null))) * int8multirange(int8range(
                  (select min(lower) from headrace_internal.segments where stream_id = p_stream.id), p_upper)),
              p_upper, p_seqs, v_before.parked_floor;
    if v_lost.count > 0 then
        perform headrace_internal.record_gap(p_consumer, v_lost.count, v_lost.lowest, v_lost.highest + 1, p_now);
    end if;
    v_after := v_before;
    v_after.ready_floor := least(v_before.ready_floor, headrace_internal.promote_tails(p_consumer, v_lost.headless, null, v_before.parked_floor));
    if p_seqs is null then
        v_after := headrace_internal.thaw_all_holes(v_after);
        v_after.position := greatest(v_before.position, p_upper - 1);
        v_after.settled := greatest(v_before.settled, p_upper - 1);
        v_after.holes := v_after.holes * int8multirange(int8range(p_upper, null));
        if v_before.mark < p_upper then
            v_after.mark := null;
            v_after.mark_stamp := null;
            v_after.suspects := null;
            v_after.suspects_at := null;
        end if;
    end if;
    perform headrace_internal.write_cursor(v_before, v_after);
    return v_lost.count;
end $$;

-- Count messages that retention removed before they were delivered to a consumer.
create or replace function headrace_internal.record_gap(p_consumer int, p_count bigint, p_lower bigint, p_upper bigint, p_now timestamptz) returns void
language sql as $$
    insert into headrace_internal.gaps as g (consumer_id, messages, lower, upper, happened_at)
        values (p_consumer, p_count, p_lower, p_upper, p_now)
        on conflict (consumer_id) do update set messages = g.messages + excluded.messages, lower = excluded.lower,
            upper = excluded.upper, happened_at = excluded.happened_at
$$;
