-- journeys: where a message is in each consumer, from what the engine has: leases, acks of transactions, parked messages,
-- tails, dead letters, replays, positions and holes.
--
-- Without a history, nothing is kept about a message that is done, unless it was cancelled, so such a message is recognized
-- by what is not there: the position has passed it, and it is in none of these tables.

create type headrace_internal.message_place as (
    place       text,           -- lease, ack, parked, letter, tail, replay, ahead, hole or passed
    wanted      boolean,        -- whether it matches the consumer's filters and condition, null if it was not evaluated
    by_key      boolean,        -- of a message that does not match: whether its key matches the filters
    attempts    int,            -- deliveries that counted, with the one in flight, null if they are not known
    since       timestamptz,    -- when the lease was given, or when the dead letter died
    until       timestamptz,    -- when the lease ends, or when a parked message is due, null for now
    owner       uuid,           -- of the lease
    blocks      boolean,        -- whether the dead letter blocks the key
    death       text,           -- why the dead letter died
    error       text,           -- of the dead letter, or of the last attempt of a parked message ...
    error_type  text,
    failed_at   timestamptz,
    failed_by   text,           -- ... and the process, as headrace_internal.failed_attempt has it
    head        bigint,         -- the message of the same key that it waits for ...
    head_place  text            -- ... and where that one is: letter (it blocks the key), lease or parked
);

-- Return where a message is in a consumer.
--
-- The tables of messages in flight, parked, blocked or to be replayed are read first, since the settings may have
-- changed after the message got there. It is one statement, since a message moves between these tables, and must not be
-- overlooked in between.
create or replace function headrace_internal.place_of_message(
    p_stream headrace_internal.streams, p_consumer headrace_internal.consumers, p_cursor headrace_internal.cursors, p_seq bigint, p_hash bigint
) returns headrace_internal.message_place
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_found  headrace_internal.message_place;
begin
    select f.place, null, null, f.attempts, f.since, f.until, f.owner, f.blocks, f.death, (f.failure).error, (f.failure).error_type,
           (f.failure).at, (f.failure).process into v_found
        from (
            select case when exists (
                       select from headrace_internal.acks as a where a.consumer_id = l.consumer_id and a.lease_id = l.lease_id and a.seq = p_seq)
                   then 'ack' else 'lease' end as place, m.attempt as attempts, l.since, l.expires_at as until, l.owner,
                   null::boolean as blocks, null as death, null::headrace_internal.failed_attempt as failure, 1 as rank
            from headrace_internal.leases as l cross join headrace_internal.messages_of_lease(l) as m
            where l.consumer_id = p_consumer.id and l.lease_id >= p_cursor.lease_floor and l.lowest <= p_seq and m.seq = p_seq
            union all
            select 'parked', p.attempts, null, nullif(p.due_at, '-infinity'), null, null, null, p.failure, 2
            from headrace_internal.parked as p where p.consumer_id = p_consumer.id and p.seq = p_seq
            union all
            select 'letter', d.attempts, d.died_at, null, null, d.blocks, d.reason,
                   row(d.died_at, d.error, d.error_type, null)::headrace_internal.failed_attempt, case when d.blocks then 3 else 6 end
            from headrace_internal.dead_letters as d where d.consumer_id = p_consumer.id and d.seq = p_seq
            union all
            select 'tail', 0, null, null, null, null, null, null, 4
            from headrace_internal.tails as t where t.consumer_id = p_consumer.id and t.seq = p_seq
            union all
            select 'replay', 0, null, null, null, null, null, null, 5
            from headrace_internal.replays as r where r.consumer_id = p_consumer.id and r.seq = p_seq) as f
        order by f.rank limit 1;
    if v_found.place is null or v_found.place = 'letter' and not v_found.blocks then
        execute format('select (%s), (%s) from %s where seq = $1', p_consumer.condition,
                       headrace_internal.condition(p_consumer.filters, null), headrace_internal.table_of_range(p_stream, p_seq, p_seq))
            into v_found.wanted, v_found.by_key using p_seq;
        if v_found.wanted and (p_seq > p_cursor.position or p_seq <@ p_cursor.holes) then
            v_found := (case when p_seq > p_cursor.position then 'ahead' else 'hole' end, true, v_found.by_key, 0,
                        null, null, null, null, null, null, null, null, null, null, null);
        end if;
        v_found.place := coalesce(v_found.place, 'passed');
    end if;
    if v_found.place in ('lease', 'parked', 'tail', 'ahead', 'hole') and p_consumer.ordered then
        select h.seq, h.place into v_found.head, v_found.head_place
            from headrace_internal.head_of_key(p_consumer.id, p_cursor, p_hash, p_seq) as h;
    end if;
    return v_found;
end $$;

-- Return the message that the later messages of a key wait for: the dead letter that blocks the key, or else the lowest
-- one that is in flight or parked and precedes p_seq. No row if there is none.
create or replace function headrace_internal.head_of_key(
    p_consumer int, p_cursor headrace_internal.cursors, p_hash bigint, p_seq bigint
) returns table (seq bigint, place text)
language sql set enable_seqscan = off set enable_bitmapscan = off as $$
    select h.seq, h.place from (
        select b.seq, 'letter' as place, 1 as rank from headrace_internal.first_blocking_of_key(p_consumer, p_hash, 0) as b(seq)
        union all
        select m.seq, 'lease', 2
            from headrace_internal.leases as l cross join headrace_internal.messages_of_lease(l) as m
            where l.consumer_id = p_consumer and l.lease_id >= p_cursor.lease_floor and l.lowest < p_seq and m.hash = p_hash and m.seq < p_seq
              and not exists (select from headrace_internal.acks as a
                              where a.consumer_id = l.consumer_id and a.lease_id = l.lease_id and a.seq = m.seq)
        union all
        select p.seq, 'parked', 2 from headrace_internal.first_parked_of_key(p_consumer, p_hash, p_cursor.parked_floor) as p(seq)
            where p.seq < p_seq) as h
    order by h.rank, h.seq limit 1
$$;

-- Return a message by its seq, and what is left of it if it was erased. One row in any case. `at`: the time.
-- Granted: consume
create or replace function headrace_internal.message_by_seq(p_stream text, p_seq bigint, p_now timestamptz default clock_timestamp())
returns table (seq bigint, key text, data json, headers json, created_at timestamptz, erased_at timestamptz, erased_by text, erased_for text,
               at timestamptz)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream  headrace_internal.streams;
begin
    v_stream := headrace_internal.require_stream(p_stream);
    at := p_now;
    -- One statement, since an erasure moves the message from the one table to the other.
    execute format('select m.seq, m.key, m.data, m.headers, m.created_at, e.erased_at, e.erased_by, e.reason
                    from (select $1::bigint as seq) as asked
                    left join %s as m on m.seq = asked.seq
                    left join headrace_internal.erasures as e on e.stream_id = $2 and e.seq = asked.seq',
                   headrace_internal.table_of_range(v_stream, p_seq, p_seq))
        into seq, key, data, headers, created_at, erased_at, erased_by, erased_for using p_seq, v_stream.id;
    return next;
end $$;

-- Return where a message is in each consumer of its stream, by name: in the first p_limit after p_after.
--
-- Of a message that is no longer in the stream, p_key is null, and only consumers are returned that have it still: as a
-- dead letter, in a lease, in their history, or in the last gap that retention has left them.
-- `completed`: an array of its newest completions as in completions.sql, null if the consumer keeps no history or has none.
-- `process`, `host`, `pid`: of the process whose heartbeat has the owner of the lease. Null for an owner of no process,
-- such as an HTTP client, or if its heartbeat has no room for it.
-- Granted: consume
create or replace function headrace_internal.journey(
    p_stream text, p_seq bigint, p_key text, p_limit int, p_after text default null, p_now timestamptz default clock_timestamp()
)
returns table (consumer_id uuid, consumer text, place headrace_internal.message_place, process uuid, host text, pid int, "position" bigint,
               paused_until timestamptz, filtered boolean, deliver_policy text, start_seq bigint, start_time timestamptz, began_at timestamptz,
               gap_lower bigint, gap_upper bigint, gap_at timestamptz, completed json, cancellation headrace_internal.cancellations)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream    headrace_internal.streams;
    v_consumer  headrace_internal.consumers;
    v_cursor    headrace_internal.cursors;
begin
    v_stream := headrace_internal.require_stream(p_stream);
    for v_consumer in
        select * from headrace_internal.consumers as c
        where c.stream_id = v_stream.id and (p_after is null or c.name > p_after) order by c.name limit p_limit
    loop
        v_cursor := headrace_internal.newest_cursor(v_consumer.id);
        continue when v_cursor.consumer_id is null;     -- it was deleted
        place := headrace_internal.place_of_message(v_stream, v_consumer, v_cursor, p_seq, hashtextextended(p_key, 0));
        select g.lower, g.upper, g.happened_at into gap_lower, gap_upper, gap_at
            from headrace_internal.gaps as g where g.consumer_id = v_consumer.id and p_seq >= g.lower and p_seq < g.upper;
        completed := case when v_consumer.history is not null then (
            select json_agg(c) from headrace_internal.completions_of_messages(v_consumer.id, array[p_seq], 10, p_now) as c) end;
        continue when p_key is null and (place).place not in ('lease', 'ack', 'letter') and gap_at is null and completed is null;
        cancellation := null;
        select c.* into cancellation from headrace_internal.cancellations as c where c.consumer_id = v_consumer.id and c.seq = p_seq;
        process := null;
        if (place).owner is not null then
            select o.process, o.host, o.pid into process, host, pid from headrace_internal.process_of_owner((place).owner) as o;
        end if;
        consumer_id := v_consumer.uid;
        consumer := v_consumer.name;
        "position" := v_cursor.position;
        paused_until := case when v_consumer.paused_until > p_now then v_consumer.paused_until end;
        filtered := v_consumer.filters <> '{>}' or v_consumer.filter_where is not null;
        deliver_policy := v_consumer.deliver_policy;
        start_seq := v_consumer.start_seq;
        start_time := v_consumer.start_time;
        began_at := v_consumer.created_at;
        return next;
    end loop;
end $$;

-- Return the entries of a consumer in the heartbeats of the running processes, with the times of these. `event_loop`: the
-- process, if something blocks its event loop.
-- Granted: consume
create or replace function headrace_internal.consumer_at_work(p_stream text, p_name text, p_now timestamptz default clock_timestamp())
returns table (seen_at timestamptz, entry json, event_loop text)
language sql as $$
    select w.seen_at, c.entry, case when w.facts ->> 'blocked' is not null then concat(w.facts ->> 'host', ':', w.facts ->> 'pid') end
    from (select * from headrace_internal.workers order by seen_at desc limit 1000) as w
    cross join lateral json_array_elements(w.facts -> 'consumers') as c(entry)
    where w.seen_at >= p_now - interval '15 seconds' and strpos(w.facts::text, to_json(p_name)::text) > 0
      and c.entry ->> 'stream' = p_stream and c.entry ->> 'name' = p_name
$$;

-- Return the process whose heartbeat names the owner of leases. The text is searched before it is parsed, since a
-- heartbeat may have many consumers.
create or replace function headrace_internal.process_of_owner(p_owner uuid, out process uuid, out host text, out pid int)
language plpgsql as $$
begin
    select w.id, w.facts ->> 'host', (w.facts ->> 'pid')::int into process, host, pid
        from (select * from headrace_internal.workers order by seen_at desc limit 1000) as w
        where strpos(w.facts::text, p_owner::text) > 0 and exists (
            select from json_array_elements(w.facts -> 'consumers') as c where c ->> 'owner' = p_owner::text)
        limit 1;
end $$;
