-- Information about streams and consumers, for users and tools. No function here counts the whole of a large stream.
-- Other tables that may have grown large are counted up to a million rows.

-- Granted: reads
create or replace function headrace_internal.stream_info(p_stream text default null, p_now timestamptz default clock_timestamp())
returns table (id uuid, name text, created_at timestamptz, updated_at timestamptz, settings json, first_seq bigint, last_seq bigint, messages bigint, size bigint,
               segments bigint, consumers bigint, scheduled bigint, next_scheduled timestamptz, "full" boolean)
language plpgsql as $$
declare
    v_stream  headrace_internal.streams;
begin
    for v_stream in select * from headrace_internal.streams as s where p_stream is null or s.name = p_stream order by s.name loop
        id := v_stream.uid;
        name := v_stream.name;
        created_at := v_stream.created_at;
        updated_at := v_stream.updated_at;
        settings := headrace_internal.stream_settings(v_stream);
        last_seq := headrace_internal.last_message_seq(v_stream);
        execute format('select min(seq), (select count(*) from (select from %1$s limit 10000) as few) from %1$s', v_stream.relation)
            into first_seq, messages;
        if messages = 10000 then
            messages := greatest(messages, headrace_internal.estimate_messages(v_stream, first_seq, last_seq));
        end if;
        select coalesce(sum(pg_total_relation_size(leaf)), 0) into size from headrace_internal.tables_of_stream(v_stream) as leaf;
        select count(*) into segments from headrace_internal.segments as g where g.stream_id = v_stream.id;
        select count(*) into consumers from headrace_internal.consumers as c where c.stream_id = v_stream.id;
        select count(*), min(deliver_at) into scheduled, next_scheduled from (
            select deliver_at from headrace_internal.scheduled where stream_id = v_stream.id order by deliver_at limit 1000000) as s;
        "full" := coalesce(v_stream.full_until > p_now, false);
        return next;
    end loop;
end $$;

-- Return names of streams in their order: the first p_limit above p_after, or the last ones below p_before in descending order.
-- Granted: reads
create or replace function headrace_internal.stream_names(p_after text, p_before text, p_limit int) returns setof text
language sql as $$
    select s.name from headrace_internal.streams as s
    where (p_after is null or s.name > p_after) and (p_before is null or s.name < p_before)
    order by case when p_before is null then s.name end, s.name desc limit p_limit
$$;

-- Return the tables that hold a stream's messages.
create or replace function headrace_internal.tables_of_stream(p_stream headrace_internal.streams) returns setof regclass
language sql stable as $$
    select to_regclass(relation) from headrace_internal.segments where stream_id = p_stream.id
    union all
    select to_regclass(p_stream.relation)
$$;

-- Estimate the number of messages from the rows per page at the last analyze. A segment that was never analyzed
-- counts one message for each of its seqs.
create or replace function headrace_internal.estimate_messages(p_stream headrace_internal.streams, p_first bigint, p_last bigint) returns bigint
language sql as $$
    select coalesce(sum(case
        when c.reltuples >= 0 and c.relpages > 0
            then c.reltuples / c.relpages * (pg_relation_size(c.oid) / current_setting('block_size')::int)
        when g.lower is not null then greatest(least(g.upper - 1, p_last) - greatest(g.lower, p_first) + 1, 0) end), 0)::bigint
    from headrace_internal.tables_of_stream(p_stream) as leaf
    join pg_class as c on c.oid = leaf
    left join headrace_internal.segments as g on g.stream_id = p_stream.id and to_regclass(g.relation) = leaf
    where c.relkind = 'r'
$$;

-- Return the seq of the last message, null when there is none. It reads the last 1,000 seqs drawn, which seldom lie
-- in more than one segment. It reads the whole stream only if all of those were rolled back or removed.
create or replace function headrace_internal.last_message_seq(p_stream headrace_internal.streams) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_last_drawn  bigint := coalesce(pg_sequence_last_value(p_stream.sequence::regclass), 0);
    v_last   bigint;
begin
    execute format('select max(seq) from %s where seq > $1 - 1000', headrace_internal.table_of_range(p_stream, v_last_drawn - 999, v_last_drawn))
        into v_last using v_last_drawn;
    if v_last is null then
        execute format('select max(seq) from %s', p_stream.relation) into v_last;
    end if;
    return v_last;
end $$;

-- Return the streams and names of consumers, in this order: the first p_limit above p_after, which is a stream and a name, or
-- the last ones below p_before in descending order, until the size of their settings exceeds p_bytes. p_stream: null for all.
-- Granted: reads
create or replace function headrace_internal.consumer_names(p_stream text, p_after text[], p_before text[], p_limit int, p_bytes bigint)
returns table (stream text, name text)
language plpgsql as $$
declare
    v_consumer  headrace_internal.consumers;
    v_bytes     bigint := 0;
begin
    for v_consumer in
        select c.* from headrace_internal.consumers as c join headrace_internal.streams as s on s.id = c.stream_id
        where (p_stream is null or s.name = p_stream)
        and (p_after is null or (s.name, c.name) > (p_after[1], p_after[2]))
        and (p_before is null or (s.name, c.name) < (p_before[1], p_before[2]))
        order by case when p_before is null then s.name end, case when p_before is null then c.name end, s.name desc, c.name desc
        limit p_limit
    loop
        stream := (select s.name from headrace_internal.streams as s where s.id = v_consumer.stream_id);
        name := v_consumer.name;
        return next;
        v_bytes := v_bytes + octet_length(headrace_internal.consumer_settings(v_consumer)::text);
        exit when v_bytes >= p_bytes;
    end loop;
end $$;

-- Return what takes a count, for some consumers. Counts stop at p_most. `lowest`: the lowest seqs that are parked, block
-- their key and wait behind such a message. A message behind another one waits for the same event: the retry of a parked
-- message, or the redrive or discard of a dead letter. It is inlined.
create or replace function headrace_internal.count_messages(p_consumers int[], p_most int)
returns table (consumer int, parked bigint, blocked bigint, replaying bigint, dead_letters bigint, missed bigint, lowest bigint[])
language sql stable as $$
    select c.id, p.parked + coalesce(t.waiting, 0), d.blocking + coalesce(t.blocked, 0), r.replaying, a.letters, coalesce(g.messages, 0),
           array[p.lowest, d.lowest, t.lowest]
    from unnest(p_consumers) as c (id)
    join lateral (
        select u.parked_floor, u.replay_floor from headrace_internal.cursors as u where u.consumer_id = c.id order by u.version desc limit 1) as u on true
    cross join lateral (
        select count(*) as parked, min(seq) as lowest from (
            select p.seq from headrace_internal.parked as p where p.consumer_id = c.id and p.seq >= u.parked_floor order by p.seq limit p_most) as p) as p
    cross join lateral (
        select count(*) as blocking, min(seq) as lowest, array_agg(distinct key_hash) as keys from (
            select b.seq, b.key_hash from headrace_internal.dead_letters as b where b.consumer_id = c.id and b.blocks order by b.seq limit p_most) as b) as d
    left join lateral (
        select count(*) filter (where t.blocked) as blocked, count(*) filter (where not t.blocked) as waiting, min(t.seq) as lowest from (
            select t.seq, coalesce(t.key_hash = any (d.keys), false) as blocked
            from headrace_internal.tails as t where t.consumer_id = c.id order by t.seq limit p_most) as t) as t on true
    cross join lateral (
        select count(*) as replaying from (
            select from headrace_internal.replays as r where r.consumer_id = c.id and r.seq >= u.replay_floor limit p_most) as r) as r
    cross join lateral (
        select count(*) as letters from (
            select from headrace_internal.dead_letters as b where b.consumer_id = c.id limit p_most) as b) as a
    left join headrace_internal.gaps as g on g.consumer_id = c.id
$$;

-- Return the state of consumers. p_scan_limit: how many messages above the position are examined at most, to count those
-- that are pending.
-- Granted: reads
create or replace function headrace_internal.consumer_info(
    p_stream text default null, p_name text default null, p_scan_limit int default 10000, p_now timestamptz default clock_timestamp()
)
returns table (id uuid, stream text, stream_id uuid, name text, created_at timestamptz, updated_at timestamptz, settings json, begins json, "position" bigint, last_seq bigint, lag bigint, num_pending bigint,
               num_pending_exact boolean, num_ack_pending bigint, owners bigint, parked bigint, blocked bigint, replaying bigint,
               dead_letters bigint, holes bigint, oldest_unacked_at timestamptz, paused_until timestamptz, missed bigint,
               gap_lower bigint, gap_upper bigint, gap_at timestamptz)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set timezone = 'UTC' as $$
declare
    c_limit      constant int := 1000000;
    v_consumer  headrace_internal.consumers;
    v_stream    headrace_internal.streams;
    v_lowest    bigint[];
    v_pending   record;
begin
    for v_stream in select * from headrace_internal.streams as s where p_stream is null or s.name = p_stream order by s.name loop
        last_seq := coalesce(headrace_internal.last_message_seq(v_stream), 0);
        for v_consumer in
            select * from headrace_internal.consumers as c
            where c.stream_id = v_stream.id and (p_name is null or c.name = p_name) order by c.name
        loop
            -- One statement, since a message moves between these tables, and must neither be overlooked nor counted twice.
            select u.position, (select count(*) from unnest(h.holes)), l.held, l.owners, k.parked, k.blocked, k.replaying, k.dead_letters,
                   array_remove(l.lowest || k.lowest, null)
                into "position", holes, num_ack_pending, owners, parked, blocked, replaying, dead_letters, v_lowest
                from (select * from headrace_internal.cursors where consumer_id = v_consumer.id order by version desc limit 1) as u
                cross join lateral headrace_internal.cursor_holes(u) as h(holes)
                cross join lateral (
                    select coalesce(sum(l.held), 0) as held, count(distinct l.owner) as owners, min((select min(m.seq) from headrace_internal.messages_of_lease(l) as m)) as lowest
                    from headrace_internal.leases as l where l.consumer_id = v_consumer.id and l.lease_id >= u.lease_floor) as l
                cross join headrace_internal.count_messages(array[v_consumer.id], c_limit) as k;
            continue when not found;    -- the consumer was deleted
            id := v_consumer.uid;
            stream := v_stream.name;
            stream_id := v_stream.uid;
            name := v_consumer.name;
            created_at := v_consumer.created_at;
            updated_at := v_consumer.updated_at;
            settings := headrace_internal.consumer_settings(v_consumer);
            begins := json_build_object('deliver_policy', v_consumer.deliver_policy, 'start_seq', v_consumer.start_seq,
                                        'start_time', v_consumer.start_time, 'version', v_consumer.version);
            lag := greatest(last_seq - "position", 0);
            paused_until := case when v_consumer.paused_until > p_now then v_consumer.paused_until end;
            select * into v_pending from headrace_internal.count_pending(v_consumer, v_stream, "position", last_seq, p_scan_limit);
            num_pending := v_pending.wanted + parked + replaying;
            num_pending_exact := v_pending.complete and replaying < c_limit;
            oldest_unacked_at := v_pending.oldest;
            if v_lowest <> '{}' then
                execute format('select created_at from %s where seq = any ($1) order by seq limit 1', headrace_internal.table_of_range(
                        v_stream, (select min(s) from unnest(v_lowest) as s), (select max(s) from unnest(v_lowest) as s)))
                    into oldest_unacked_at using v_lowest;
            end if;

            select g.messages, g.lower, g.upper, g.happened_at into missed, gap_lower, gap_upper, gap_at
                from headrace_internal.gaps as g where g.consumer_id = v_consumer.id;
            missed := coalesce(missed, 0);
            return next;
        end loop;
    end loop;
end $$;

-- Examine the next p_scan_limit messages above a position. Return how many of them a consumer wants, when the oldest of
-- these was published, and whether there are no further messages. The first read covers only 10 times as many seqs,
-- so that few segments are planned for. A sparse stream is read a second time.
create or replace function headrace_internal.count_pending(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_position bigint, p_last bigint, p_scan_limit int,
    out wanted bigint, out oldest timestamptz, out complete boolean
)
language plpgsql as $$
declare
    v_until   bigint := least(p_last, p_position + 10 * p_scan_limit::bigint);
    v_examined  bigint;
begin
    wanted := 0;
    complete := p_position >= p_last;
    if complete or p_scan_limit = 0 then
        return;
    end if;
    loop
        execute format($sql$
            select count(*) filter (where wanted), min(created_at) filter (where wanted), count(*)
            from (select created_at, (%s) as wanted from %s where seq > $1 and seq <= $2 order by seq limit $3) as m
            $sql$, headrace_internal.unread_condition(p_consumer, p_position), headrace_internal.table_of_range(p_stream, p_position + 1, v_until))
            into wanted, oldest, v_examined using p_position, v_until, p_scan_limit;
        exit when v_examined >= p_scan_limit or v_until >= p_last;
        v_until := p_last;
    end loop;
    complete := v_examined < p_scan_limit;
end $$;
