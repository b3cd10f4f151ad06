-- What a seek would do, before it is done.

-- Count the messages from p_first to p_last that a consumer would get: those that match and have not expired, without the
-- seqs of p_except. Of more than p_scan_limit messages the rest is estimated from these (`exact` is false).
create or replace function headrace_internal.count_wanted(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_first bigint, p_last bigint, p_except int8multirange,
    p_scan_limit int, p_now timestamptz, out wanted bigint, out exact boolean
)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_until     bigint := least(p_last, p_first + 10 * p_scan_limit::bigint);
    v_examined  bigint;
    v_reached   bigint;
begin
    wanted := 0;
    exact := true;
    if p_first > p_last then
        return;
    end if;
    loop    -- as headrace_internal.count_pending: a sparse stream is read a second time
        execute format($sql$
            select count(*) filter (where wanted), count(*), max(seq)
            from (select seq, (%s) and not seq <@ $4 as wanted from %s where seq >= $1 and seq <= $2 order by seq limit $3) as m
            $sql$, headrace_internal.unexpired(p_consumer.condition, p_now), headrace_internal.table_of_range(p_stream, p_first, v_until))
            into wanted, v_examined, v_reached using p_first, v_until, p_scan_limit, p_except;
        exit when v_examined >= p_scan_limit or v_until >= p_last;
        v_until := p_last;
    end loop;
    if v_examined >= p_scan_limit and v_reached < p_last then
        execute format('select not exists (select from %s where seq > $1 and seq <= $2)', p_stream.relation)
            into exact using v_reached, p_last;
        if not exact then
            wanted := wanted * ((p_last - p_first + 1)::float8 / (v_reached - p_first + 1));
        end if;
    end if;
end $$;

-- Return what moving a consumer would do: the position before and after, how many messages up to the position before
-- would be delivered again, how many that wait would be passed over, and how many are in flight in leases that end.
--
-- p_seq, p_time: as headrace_internal.seek_to takes them. Without both, the end. A move back passes over nothing. A move forward
-- passes over what open transactions publish up to the new position, too. How many of these will commit is unknown, so all of
-- them count, and `skipped` is not exact. After a move to the end they are delivered.
-- Granted: admin
create or replace function headrace_internal.seek_preview(
    p_consumer int, p_seq bigint, p_time timestamptz, p_scan_limit int default 50000, p_now timestamptz default clock_timestamp(),
    out "from" bigint, out "to" bigint, out again bigint, out again_exact boolean, out skipped bigint, out skipped_exact boolean, out in_flight bigint
)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    c_limit     constant int := 1000000;
    v_consumer  headrace_internal.consumers;
    v_stream    headrace_internal.streams;
    v_cursor    headrace_internal.cursors;
    v_holes     int8multirange;
    v_place     bigint;
    v_back      boolean;
    v_ending    record;
    v_late      record;
    v_low       bigint;
    v_open      bigint;
begin
    select * into v_consumer from headrace_internal.consumers where id = p_consumer;
    select * into v_stream from headrace_internal.streams where id = v_consumer.stream_id;
    v_cursor := headrace_internal.newest_cursor(p_consumer);
    if v_cursor.consumer_id is null then    -- read last, so that the others were there
        perform headrace_internal.raise_consumer_gone();
    end if;
    v_holes := v_cursor.holes;
    v_place := headrace_internal.position_to_seek(p_consumer, v_stream, p_seq, p_time, p_now);
    v_back := coalesce(v_place <= v_cursor.position, false);
    "from" := v_cursor.position;
    "to" := coalesce(v_place, headrace_internal.last_message_seq(v_stream), 0);
    select count(*) as count, count(*) filter (where m.seq <= "to") as below into v_ending
        from headrace_internal.leases as l cross join headrace_internal.messages_of_lease(l) as m
        where l.consumer_id = p_consumer and l.lease_id >= v_cursor.lease_floor and (not v_back or exists (select from headrace_internal.messages_of_lease(l) as k where k.seq > "to"))
          and m.seq in (select * from headrace_internal.in_flight_seqs(p_consumer, v_cursor.lease_floor));
    in_flight := v_ending.count;
    skipped := 0;
    skipped_exact := true;
    select c.wanted, c.exact into again, again_exact
        from headrace_internal.count_wanted(v_consumer, v_stream, "to" + 1, "from", v_holes, p_scan_limit, p_now) as c;
    if v_back then
        again := again + v_ending.below;
        return;
    end if;
    select c.wanted, c.exact into skipped, skipped_exact
        from headrace_internal.count_wanted(v_consumer, v_stream, "from" + 1, "to", '{}', p_scan_limit, p_now) as c;
    select skipped + count(*), skipped_exact and count(*) < c_limit into skipped, skipped_exact from (
        (select p.seq from headrace_internal.parked as p where p.consumer_id = p_consumer and p.seq >= v_cursor.parked_floor and p.seq <= "to" limit c_limit)
        union
        (select t.seq from headrace_internal.tails as t where t.consumer_id = p_consumer and t.seq <= "to" limit c_limit)
        union
        (select r.seq from headrace_internal.replays as r where r.consumer_id = p_consumer and r.seq >= v_cursor.replay_floor and r.seq <= "to" limit c_limit)) as w;
    -- Messages that have arrived in holes, and then the seqs below the new position that open transactions may still fill.
    execute format($sql$
        select count(*) as there, count(*) filter (where wanted) as wanted from (
            select (%s) as wanted from unnest($1) as hole cross join lateral (
                select * from %s where seq >= lower(hole) and seq < upper(hole) limit $2) as m limit $2) as m
        $sql$, headrace_internal.unexpired(v_consumer.condition, p_now), v_stream.relation)
        into v_late using v_holes, p_scan_limit;
    skipped := skipped + v_late.wanted;
    skipped_exact := skipped_exact and v_late.there < p_scan_limit;
    v_low := case when v_place is not null then headrace_internal.lowest_open_seq(v_stream, "to") end;
    if v_low is not null then
        v_holes := (v_holes + int8multirange(int8range("from" + 1, null))) * int8multirange(int8range(least(v_low, "to" + 1), "to" + 1));
        execute format($sql$
            select (select sum(upper(hole) - lower(hole)) from unnest($1) as hole) - count(*) from (
                select from unnest($1) as hole cross join lateral (
                    select from %s where seq >= lower(hole) and seq < upper(hole) limit $2) as m limit $2) as m
            $sql$, v_stream.relation)
            into v_open using v_holes, c_limit;
        skipped := skipped + coalesce(v_open, 0);
        skipped_exact := skipped_exact and coalesce(v_open, 0) = 0;
    end if;
end $$;
