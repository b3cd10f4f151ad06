-- What a lease call takes from the parked messages and from the tails of their keys.

-- The messages that a lease call wants, and the bounds of its reads.
create type headrace_internal.read_request as (
    messages       int,             -- how many may be delivered
    scan_limit     int,             -- how many may be examined. It bounds the cost of a selective filter or a hot key
    bytes          bigint,          -- the reads stop once the payloads exceed this size
    busy           bigint[],        -- the hashes of busy keys, see headrace_internal.lease_bounds, or null
    taken          bigint[],        -- the hashes of the parked messages that the call has taken, if the consumer is ordered
    distinct_keys  boolean,         -- at most one message of each key is delivered, and the others wait
    cached         int8multirange,  -- the caller has the contents of these messages, so their key, data, headers and
                                    -- created_at are left out
    parked         boolean,         -- whether any message is parked, or any key blocked, that must be looked up
    blocked        boolean
);

create type headrace_internal.due_messages as (
    seqs bigint[], hashes bigint[], attempts int[], crashes int[], keys text[], data json[], headers json[],
    created_at timestamptz[],
    lowest bigint,  -- the first seq that was taken
    removed int,    -- how many were taken, including messages that retention has removed or that have expired
    bytes bigint,   -- the size of the data
    -- Set by headrace_internal.take_parked:
    cursor headrace_internal.cursors,        -- with its changes applied
    parked headrace_internal.parked_state,   -- as it was before they were taken
    until bigint    -- the last seq up to which late arrivals are parked, if there may be more behind it. Otherwise null
);

-- Return the parked messages that are due, followed by the tails of their keys. In an ordered consumer a message is
-- taken only together with all earlier ones of its key, and only up to p_until, if late arrivals or replayed messages
-- have been parked only up to there.
-- `behind`: messages that are due and join the tail of their key
-- instead, because an earlier message of the key waits for its retry or blocks the key. A tail counts no attempts. So
-- a retry that falls due while its key is blocked begins at its first attempt when the key is free again.
create or replace function headrace_internal.find_due_messages(
    p_consumer headrace_internal.consumers, p_cursor headrace_internal.cursors, p_request headrace_internal.read_request, p_until bigint,
    p_now timestamptz,
    out seqs bigint[], out hashes bigint[], out attempts int[], out crashes int[], out behind bigint[]
)
language plpgsql set enable_sort = off as $$
begin
    if not p_consumer.ordered then
        select array_agg(p.seq), array_agg(p.key_hash), array_agg(p.attempts + 1), array_agg(p.crashes)
            into seqs, hashes, attempts, crashes
            from (
                (select * from headrace_internal.parked_ready(p_consumer.id, p_cursor.ready_floor) limit p_request.messages)
                union all
                (select * from headrace_internal.parked_due(p_consumer.id, p_cursor.due_floor, p_now) limit p_request.messages)
                order by seq limit p_request.messages) as p;
        return;
    end if;
    with due as materialized (
        select p.seq, p.key_hash, p.attempts = 0 and p.crashes = 0 as fresh from headrace_internal.parked_ready(p_consumer.id, p_cursor.ready_floor) as p
        union all
        select p.seq, p.key_hash, false from headrace_internal.parked_due(p_consumer.id, p_cursor.due_floor, p_now) as p
    ), keys as materialized (
        select k.key_hash, k.first,
               coalesce((select p.seq < k.first
                         from headrace_internal.first_parked_of_key(p_consumer.id, k.key_hash, p_cursor.parked_floor) as p(seq)), false) as waits,
               coalesce(p_request.blocked and (
                        select true from headrace_internal.first_blocking_of_key(p_consumer.id, k.key_hash, p_cursor.blocked_floor)), false) as blocked
        from (select due.key_hash, min(due.seq) as first from due group by due.key_hash) as k
        where not coalesce(k.key_hash in (select unnest(p_request.busy)), false)
    ), chosen as materialized (
        select k.key_hash, k.first from keys as k
        where not k.waits and not k.blocked and coalesce(k.first <= p_until, true) order by k.first limit p_request.messages
    ), parked as materialized (
        select c.key_hash, p.* from chosen as c cross join lateral (
            select p.seq, p.attempts, p.crashes, bool_and(p.due_at <= p_now) over run as able, row_number() over run as place
            from (select * from headrace_internal.parked as p
                  where p.consumer_id = p_consumer.id and (p.key_hash, p.seq) >= (c.key_hash, c.first) and p.key_hash <= c.key_hash
                  order by p.key_hash, p.seq limit p_request.messages) as p
            window run as (order by p.seq)) as p
    ), heads as materialized (
        select * from parked as p
        where able and (place = 1 or not p_request.distinct_keys) and coalesce(p.seq <= p_until, true) order by p.seq limit p_request.messages
    ), bounds as materialized (
        select p.key_hash, min(p.seq) as seq from parked as p
        where not p.able or p.seq > (select max(h.seq) from heads as h) group by p.key_hash
    ), runs as materialized (
        -- Each run has an equal share of the room. Nothing of the key is taken beyond a parked message that is not
        -- among the heads.
        select h.key_hash, h.seq, greatest(p_request.messages / count(*) over (), 1) as share, b.seq as bound
        from heads as h left join bounds as b using (key_hash) where h.place = 1 and not p_request.distinct_keys
    ), tails as materialized (
        select r.key_hash, r.share, t.seq, row_number() over (partition by r.key_hash order by t.seq) as place
        from runs as r cross join lateral (
            select t.seq from headrace_internal.tails as t
            where t.consumer_id = p_consumer.id and (t.key_hash, t.seq) > (r.key_hash, r.seq) and t.key_hash <= r.key_hash
              and t.seq < coalesce(r.bound, t.seq + 1) and t.seq <= coalesce(p_until, t.seq)
            order by t.key_hash, t.seq limit r.share) as t
    )
    select array_agg(d.seq), array_agg(d.key_hash), array_agg(d.attempts + 1), array_agg(d.crashes),
           (select array_agg(due.seq) from due join keys as k using (key_hash) where k.blocked or k.waits and due.fresh)
        into seqs, hashes, attempts, crashes, behind
        from (
            select h.seq, h.key_hash, h.attempts, h.crashes from heads as h
            where not exists (      -- the tail may have more messages before this one than were read
                select from tails as t where t.key_hash = h.key_hash and t.place = t.share and t.seq < h.seq)
            union all
            -- A message that was to be delivered again, and then failed, is in both.
            select t.seq, t.key_hash, 0, 0 from tails as t where not exists (select from heads as h where h.seq = t.seq)
            order by seq limit p_request.messages) as d;
end $$;

-- Take the messages that are due, and read their contents.
create or replace function headrace_internal.take_due_messages(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_cursor headrace_internal.cursors,
    p_request headrace_internal.read_request, p_until bigint, p_now timestamptz
) returns headrace_internal.due_messages
language plpgsql as $$
declare
    v_due      record;
    v_found    record;
    v_result   headrace_internal.due_messages;
begin
    select * into v_due from headrace_internal.find_due_messages(p_consumer, p_cursor, p_request, p_until, p_now);
    if v_due.behind is not null then
        with moved as (
            delete from headrace_internal.parked where consumer_id = p_consumer.id and headrace_internal.is_one_of(seq, v_due.behind) returning key_hash, seq
        )
        insert into headrace_internal.tails (consumer_id, key_hash, seq)
            select p_consumer.id, key_hash, seq from moved on conflict do nothing;
    end if;
    if v_due.seqs is null then
        v_result.removed := 0;
        v_result.bytes := 0;
        return v_result;
    end if;
    -- This statement is planned at each call, since each stream has a table of its own, so it is kept small. No other
    -- call takes parked messages meanwhile, since the consumer's lock is held.
    execute format($sql$
        select array_agg(seq) filter (where fits) as seqs, array_agg(case when seq <@ $4 then null else key end) filter (where fits) as keys,
               array_agg(case when seq <@ $4 then null else data end) filter (where fits) as data,
               array_agg(case when seq <@ $4 then null else headers end) filter (where fits) as headers,
               array_agg(case when seq <@ $4 then null else created_at end) filter (where fits) as created_at,
               coalesce(sum(bytes) filter (where fits), 0) as bytes, min(seq) filter (where not fits) as cut
        from (
            select *, sum(bytes) over (order by seq) - bytes < $5 as fits
            from (
                select seq, key, data, headers, created_at, %s as bytes from %s
                where seq = any ($1) and seq between $2 and $3 order by seq) as m) as m
        $sql$, headrace_internal.payload_bytes(), headrace_internal.table_of_range(p_stream, v_due.seqs[1], v_due.seqs[cardinality(v_due.seqs)]))
        into v_found using v_due.seqs, v_due.seqs[1], v_due.seqs[cardinality(v_due.seqs)], p_request.cached, p_request.bytes;
    with taken as materialized (
        select due.*, m.key, m.data, m.headers, m.created_at, m.seq is not null as there
        from unnest(v_due.seqs, v_due.hashes, v_due.attempts, v_due.crashes) as due(seq, key_hash, attempt, crash)
        left join unnest(v_found.seqs, v_found.keys, v_found.data, v_found.headers, v_found.created_at)
            as m(seq, key, data, headers, created_at) on m.seq = due.seq
        where coalesce(due.seq < v_found.cut, true)
        order by due.seq
    ), gone as (
        delete from headrace_internal.parked where consumer_id = p_consumer.id and seq in (select seq from taken)
    ), gone_of_tails as (
        delete from headrace_internal.tails as t using taken
        where t.consumer_id = p_consumer.id and t.key_hash = taken.key_hash and t.seq = taken.seq
    )
    select array_agg(seq) filter (where there), array_agg(key_hash) filter (where there),
           array_agg(attempt) filter (where there), array_agg(crash) filter (where there), array_agg(key) filter (where there),
           array_agg(data) filter (where there), array_agg(headers) filter (where there), array_agg(created_at) filter (where there),
           min(seq), count(*), v_found.bytes, null, null, null
        into v_result from taken;
    perform headrace_internal.promote_tails(p_consumer.id, v_due.hashes[:v_result.removed], v_due.seqs[:v_result.removed], p_cursor.parked_floor);
    if not p_stream.one_message_per_key and v_result.removed > coalesce(cardinality(v_result.seqs), 0) then
        perform headrace_internal.record_gap(p_consumer.id, count(*), p_cursor.parked_floor, coalesce(v_result.seqs[1], p_cursor.position + 1), p_now)
            from (select unnest(v_due.seqs[:v_result.removed]) as seq except select unnest(v_result.seqs)) as gone
            where not headrace_internal.is_erased(p_stream.id, seq) having count(*) > 0;
    end if;
    return v_result;
end $$;

-- Remove the expired messages from those that were parked and are due. They are parked no more.
create or replace function headrace_internal.due_without_expired(p_due headrace_internal.due_messages, p_now timestamptz) returns headrace_internal.due_messages
language plpgsql as $$
begin
    select array_agg(seq), array_agg(hash), array_agg(attempt), array_agg(crash), array_agg(key), array_agg(data), array_agg(headers),
           array_agg(created_at)
        into p_due.seqs, p_due.hashes, p_due.attempts, p_due.crashes, p_due.keys, p_due.data, p_due.headers, p_due.created_at
        from unnest(p_due.seqs, p_due.hashes, p_due.attempts, p_due.crashes, p_due.keys, p_due.data, p_due.headers, p_due.created_at)
            as m(seq, hash, attempt, crash, key, data, headers, created_at)
        where not headrace_internal.is_expired(headers, created_at, p_now);
    return p_due;
end $$;

-- Take the parked messages that are due and first of their key, and the messages behind them. Before they are taken,
-- the next messages of a replay are parked, and late arrivals of parked keys are parked in their place. Due messages of
-- blocked keys move to the tails.
--
-- p_parked: the state as it was read just before. p_search, p_until: of headrace_internal.hole_search. The scan_limit of
-- p_request bounds how many messages of a replay, and how many late arrivals, are examined.
create or replace function headrace_internal.take_parked(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_cursor headrace_internal.cursors, p_parked headrace_internal.parked_state,
    p_search boolean, p_until bigint, p_request headrace_internal.read_request, p_now timestamptz
) returns headrace_internal.due_messages
language plpgsql as $$
declare
    c_window   constant int := 10000;   -- number of parked messages at which reading ahead stops, because that many
                                        -- keys wait or messages were put back
    v_changed  boolean := false;        -- whether messages have been parked since the state was read
    v_late     headrace_internal.examined_holes;
    v_due      headrace_internal.due_messages;
begin
    if p_cursor.replay_floor is not null and headrace_internal.count_parked(p_cursor, c_window / 2) < c_window / 2 then
        p_cursor := headrace_internal.park_replayed(p_consumer, p_stream, p_cursor, p_request.scan_limit);
        select (select seq from headrace_internal.first_parked(p_consumer.id, p_cursor.parked_floor) as seq),
               (select seq from headrace_internal.first_blocking(p_consumer.id, p_cursor.blocked_floor) as seq)
            into p_parked.lowest, p_parked.blocked;
        v_changed := true;
    end if;
    if p_parked.lowest is not null and p_consumer.ordered and p_search and not p_stream.one_message_per_key then
        v_late := headrace_internal.park_late_arrivals(p_consumer, p_stream, p_cursor, p_request.scan_limit);
        p_cursor := v_late.cursor;
        p_until := least(p_until, v_late.until);
        p_parked.lowest := (select seq from headrace_internal.first_parked(p_consumer.id, p_cursor.parked_floor) as seq);
        v_changed := true;
    end if;
    if v_changed then
        select * into p_parked from headrace_internal.parked_state(
            p_consumer.id, p_parked.lowest, p_parked.blocked, p_consumer.ordered, p_cursor.ready_floor, p_cursor.due_floor,
            p_cursor.blocked_floor, p_now);
    end if;
    if p_parked.ready is not null or p_parked.due_at is not null then
        p_request.blocked := p_parked.blocked is not null;
        v_due := headrace_internal.take_due_messages(p_consumer, p_stream, p_cursor, p_request, least(p_until, p_cursor.replay_floor - 1), p_now);
        if headrace_internal.may_expire(v_due.headers) then
            v_due := headrace_internal.due_without_expired(v_due, p_now);
        end if;
    end if;
    if p_cursor.parked_room <= 0 then
        p_cursor.parked_room := c_window - headrace_internal.count_parked(p_cursor, c_window);
    end if;
    v_due.bytes := coalesce(v_due.bytes, 0);
    v_due.cursor := p_cursor;
    v_due.parked := p_parked;
    v_due.until := p_until;
    return v_due;
end $$;
