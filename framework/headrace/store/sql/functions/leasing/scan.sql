-- scan: read the messages in a consumer's holes and above its cursor, and decide which of them can be delivered.
--
-- Late arrivals and fresh messages are read in ONE statement, and so in one snapshot. A seq that the snapshot does
-- not show is a hole. A message that it shows is delivered, parked or passed over, so no message is lost between the
-- two.
--
-- The usual case has a separate statement: no filter, and no late arrivals. See headrace_internal.scan_usual.

create type headrace_internal.scanned as (
    position        bigint,         -- all messages up to here were examined ...
    missing         int8multirange, -- ... except these fresh seqs, which are not visible yet
    late            int8multirange, -- seqs in holes that are visible now
    holes_searched  boolean,        -- whether all the holes could be searched
    looked_at       int,
    full_up         boolean,        -- whether the scan stopped at its limit of bytes
    more            boolean,        -- whether there may be more messages above
    seqs bigint[], hashes bigint[], keys text[], data json[], headers json[], created_at timestamptz[],
    waiting_seqs bigint[], waiting_hashes bigint[],
    snapshot        pg_snapshot,    -- the snapshot of the read
    cursor          headrace_internal.cursors    -- the next cursor, set by headrace_internal.read_ahead
);

-- Return the place of the first message that must wait for another one of its key. Null if none must.
-- p_hashes: the keys of the messages, in the order of seq. p_busy: the keys that others hold. p_distinct: whether all but
-- the first message of each key must wait.
create or replace function headrace_internal.first_waiting(p_hashes bigint[], p_busy bigint[], p_distinct boolean) returns int
language plpgsql as $$
declare
    v_waits  boolean;
begin
    -- This is hashed. The operator && compares each with each, and a join is planned as if there were few.
    select bool_or(hash in (select unnest(p_busy))) or p_distinct and count(distinct hash) < count(*) into v_waits from unnest(p_hashes) as hash;
    if v_waits then
        return (select min(place) from (
            select place, hash in (select unnest(p_busy)) or p_distinct and row_number() over (partition by hash order by place) > 1 as waits
            from unnest(p_hashes) with ordinality as h(hash, place)) as m where waits);
    end if;
    return null;
end $$;

-- Return for each of these keys, in the order of seq, whether its message must wait. Returns null when none must.
-- Among the reads this may come last, because what has been parked meanwhile belongs to keys that were busy. Each key
-- is looked up once.
create or replace function headrace_internal.must_wait(
    p_hashes bigint[], p_cursor headrace_internal.cursors, p_request headrace_internal.read_request
) returns boolean[]
language plpgsql as $$
declare
    v_waiting   bigint[];
    v_waits  boolean[];
begin
    if p_request.parked or p_request.blocked then
        v_waiting := headrace_internal.filter_waiting_keys(
            array(select distinct unnest(p_hashes)), p_cursor.consumer_id, p_request.parked, p_request.blocked, p_cursor.parked_floor, p_cursor.blocked_floor);
    end if;
    v_waiting := v_waiting || p_request.busy;
    if headrace_internal.first_waiting(p_hashes, v_waiting, p_request.distinct_keys) is null then
        return null;
    end if;
    select array_agg(hash in (select unnest(v_waiting)) or p_request.distinct_keys and times > 1 order by place)
        into v_waits
        from (
            select hash, place, row_number() over (partition by hash order by place) as times
            from unnest(p_hashes) with ordinality as h(hash, place)) as judged;
    return v_waits;
end $$;

-- Set the messages aside that must wait. p_waits: for each message, in the order of seq, whether it must.
create or replace function headrace_internal.set_aside(p_scanned headrace_internal.scanned, p_waits boolean[]) returns headrace_internal.scanned
language plpgsql as $$
begin
    select array_agg(seq) filter (where not waits), array_agg(hash) filter (where not waits),
           array_agg(key) filter (where not waits), array_agg(data) filter (where not waits),
           array_agg(headers) filter (where not waits), array_agg(created_at) filter (where not waits),
           array_agg(seq) filter (where waits), array_agg(hash) filter (where waits)
        into p_scanned.seqs, p_scanned.hashes, p_scanned.keys, p_scanned.data, p_scanned.headers, p_scanned.created_at,
             p_scanned.waiting_seqs, p_scanned.waiting_hashes
        from unnest(p_scanned.seqs, p_scanned.hashes, p_scanned.keys, p_scanned.data, p_scanned.headers, p_scanned.created_at,
                    p_waits) as m(seq, hash, key, data, headers, created_at, waits);
    return p_scanned;
end $$;

-- Remove the expired messages from those that a scan found. They are examined, and so the cursor passes them.
create or replace function headrace_internal.without_expired(p_scanned headrace_internal.scanned, p_now timestamptz) returns headrace_internal.scanned
language plpgsql as $$
begin
    select array_agg(seq), array_agg(hash), array_agg(key), array_agg(data), array_agg(headers), array_agg(created_at)
        into p_scanned.seqs, p_scanned.hashes, p_scanned.keys, p_scanned.data, p_scanned.headers, p_scanned.created_at
        from unnest(p_scanned.seqs, p_scanned.hashes, p_scanned.keys, p_scanned.data, p_scanned.headers, p_scanned.created_at)
            as m(seq, hash, key, data, headers, created_at)
        where not headrace_internal.is_expired(headers, created_at, p_now);
    return p_scanned;
end $$;

-- Scan for a consumer without a filter. The statement walks up the primary key, and the messages that must wait are
-- set aside afterwards. If it meets a late arrival, this returns null, and headrace_internal.scan_general scans.
--
-- Counting bytes costs half of the time of a large batch, so the payloads of messages that fit a page as they are
-- delivered are read without counting, and those of larger ones are left out. If there was one, the statement that
-- counts runs instead. A table with large messages is read by that one at once.
--
-- The statement is planned at each call, so it is kept small. Its columns have the types of the variables, because
-- PL/pgSQL prepares each conversion again in each transaction.
--
-- p_fresh: the query of the fresh messages. p_relation: the table that it reads. p_arrived: the query of the late
-- arrivals, null if there can be none.
create or replace function headrace_internal.scan_usual(
    p_fresh text, p_relation text, p_arrived text, p_position bigint, p_holes int8multirange, p_limit int, p_bytes bigint,
    p_cached int8multirange
) returns headrace_internal.scanned
language plpgsql as $$
declare
    v_columns   constant text := case when p_cached is null then 'array_agg(key), array_agg(%s), array_agg(%s), array_agg(created_at)' else
                    'array_agg(case when seq <@ $4 then null else key end), array_agg(case when seq <@ $4 then null else %s end),
                     array_agg(case when seq <@ $4 then null else %s end), array_agg(case when seq <@ $4 then null else created_at end)' end;
    v_found     constant text := format('select array_agg(seq), array_agg(hashtextextended(key, 0)), pg_current_snapshot(), %s',
                                        case when p_arrived is null then 'true' else 'not exists (' || p_arrived || ')' end);
    v_result    headrace_internal.scanned;
begin
    if p_limit * headrace_internal.small_payload() < p_bytes and (select pg_relation_size(reltoastrelid) = 0 from pg_class where oid = p_relation::regclass) then
        execute format('%s, false, %s from (%s) as m', v_found,
                       format(v_columns, 'case when small then data end', 'case when small then headers end'), p_fresh)
            into v_result.seqs, v_result.hashes, v_result.snapshot, v_result.holes_searched, v_result.full_up,
                 v_result.keys, v_result.data, v_result.headers, v_result.created_at
            using p_position, p_limit, p_bytes, p_cached, p_holes;
    end if;
    if v_result.holes_searched is null or num_nulls(variadic v_result.data) > num_nulls(variadic v_result.keys) then
        execute format($sql$
            %1$s, coalesce(sum(%2$s) >= $3, false), %3$s
            from (select *, coalesce(sum(%2$s) over (order by seq rows between unbounded preceding and 1 preceding), 0) as before
                  from (%4$s) as m) as m
            where before < $3
            $sql$, v_found, headrace_internal.payload_bytes(), format(v_columns, 'data', 'headers'), p_fresh)
            into v_result.seqs, v_result.hashes, v_result.snapshot, v_result.holes_searched, v_result.full_up,
                 v_result.keys, v_result.data, v_result.headers, v_result.created_at
            using p_position, p_limit, p_bytes, p_cached, p_holes;
    end if;
    if not v_result.holes_searched then
        return null;
    end if;
    v_result.looked_at := coalesce(cardinality(v_result.seqs), 0);
    v_result.position := coalesce(v_result.seqs[v_result.looked_at], p_position);
    v_result.more := v_result.looked_at >= p_limit;
    if v_result.looked_at < v_result.position - p_position then
        v_result.missing := (
            select range_agg(int8range(previous + 1, seq))
            from unnest(p_position || v_result.seqs, v_result.seqs) as s(previous, seq)
            where seq > previous + 1);
    end if;
    return v_result;
end $$;

-- Scan in the general case. p_fresh, p_arrived: as in headrace_internal.scan_usual. The other parameters: see headrace_internal.scan.
create or replace function headrace_internal.scan_general(
    p_fresh text, p_arrived text, p_consumer headrace_internal.consumers, p_cursor headrace_internal.cursors,
    p_request headrace_internal.read_request, p_until bigint
) returns headrace_internal.scanned
language plpgsql as $$
declare
    v_waits   text := '';       -- the cases in which a message must wait
    v_result  headrace_internal.scanned;
begin
    if p_consumer.ordered and p_request.busy is not null then
        v_waits := v_waits || 'when hash = any ($5) then ''waiting'' ';
    end if;
    if p_consumer.ordered and (p_request.parked or p_request.blocked) then
        v_waits := v_waits || format(
            'when hash in (select unnest(headrace_internal.filter_waiting_keys(
                array(select distinct hash from looked where wanted), $4, %L, %L, $6, $10))) then ''waiting'' ', p_request.parked, p_request.blocked);
    end if;
    if p_request.distinct_keys then
        v_waits := v_waits || 'when row_number() over (partition by hash order by seq) > 1 then ''waiting'' ';
    end if;
    -- The columns of unwanted messages are not carried along. With a selective condition that is nearly all messages.
    -- `seen` ends at the last message taken.
    execute format($sql$
        with looked as materialized (
            select seq, wanted, case when wanted then key end as key, case when wanted then data end as data,
                   case when wanted then headers end as headers, case when wanted then created_at end as created_at,
                   case when wanted then hashtextextended(key, 0) end as hash
            from (%2$s) as m
        ), judged as materialized (     -- once for each message; and PostgreSQL 15 can't plan it otherwise
            select *, %1$s as verdict from looked where wanted
        ), taken as materialized (
            select * from (
                select *, count(*) filter (where verdict = 'ready') over earlier as ready_before,
                       coalesce(sum(%3$s) filter (where verdict = 'ready') over earlier, 0) as bytes_before
                from judged window earlier as (order by seq rows between unbounded preceding and 1 preceding)) as m
            where ready_before < $8 and bytes_before < $3
        ), reached as materialized (
            select case when (select count(*) from taken) < (select count(*) from looked where wanted)
                        then (select max(seq) from taken) else (select max(seq) from looked) end as seq
        ), seen as (
            select looked.seq from looked, reached where looked.seq <= reached.seq
        )
        select s.*, t.*, null
        from (
            select coalesce(max(seq) filter (where seq > $1), $1),
                   case when count(*) filter (where seq > $1) < max(seq) - $1 then (
                       select range_agg(int8range(previous + 1, seq))
                       from (select seq, lag(seq, 1, $1) over (order by seq) as previous from seen where seq > $1) as s
                       where seq > previous + 1)
                   end,
                   range_agg(int8range(seq, seq + 1)) filter (where seq <= $1),
                   count(*) filter (where seq <= $1) < $2 and (max(seq) > $1 or count(*) = (select count(*) from looked)),
                   count(*)
            from seen) as s
        cross join (
            select coalesce(sum(%3$s) filter (where verdict = 'ready') >= $3, false),
                   (select count(*) from seen) >= $2 or count(*) filter (where verdict = 'ready') >= $8,
                   array_agg(seq) filter (where verdict = 'ready'), array_agg(hash) filter (where verdict = 'ready'),
                   array_agg(case when seq <@ $9 then null else key end) filter (where verdict = 'ready'),
                   array_agg(case when seq <@ $9 then null else data end) filter (where verdict = 'ready'),
                   array_agg(case when seq <@ $9 then null else headers end) filter (where verdict = 'ready'),
                   array_agg(case when seq <@ $9 then null else created_at end) filter (where verdict = 'ready'),
                   array_agg(seq) filter (where verdict = 'waiting'), array_agg(hash) filter (where verdict = 'waiting'), pg_current_snapshot()
            from taken) as t
        $sql$,
        case when v_waits = '' then '''ready''' else format('case %s else ''ready'' end', v_waits) end,
        -- No fresh message is examined before all late ones. Otherwise it could overtake a late message of its key.
        case when p_until is not null then coalesce(p_arrived, format('select * from (%s) as none where false', p_fresh))
             when p_arrived is null then p_fresh else format('(%s) union all (%s) order by seq limit $2', p_arrived, p_fresh) end,
        headrace_internal.payload_bytes())
        into v_result
        using p_cursor.position, p_request.scan_limit, p_request.bytes, p_consumer.id, p_request.busy, p_cursor.parked_floor, p_cursor.holes, p_request.messages,
              p_request.cached, p_cursor.blocked_floor;
    return v_result;
end $$;

-- Read late arrivals and fresh messages.
-- p_search: whether there can be late arrivals
-- p_until: read only late arrivals, up to this seq, and nothing fresh
create or replace function headrace_internal.scan(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_cursor headrace_internal.cursors,
    p_request headrace_internal.read_request, p_search boolean, p_until bigint
) returns headrace_internal.scanned
language plpgsql as $$
declare
    v_relation  text := p_stream.relation;  -- the table to read fresh messages from ...
    v_bound     text := '';                 -- ... and a bound for the read
    v_segment   headrace_internal.segments;
    v_next      bigint;
    v_columns   constant text := 'seq, key, data, headers, created_at';
    v_from      text;
    v_fresh     text;
    v_usual     boolean := p_consumer.condition = 'true' and p_until is null;
    v_may_wait  boolean := p_consumer.ordered and (p_request.busy is not null or p_request.parked or p_request.blocked)
                           or p_request.distinct_keys;
    v_waits     boolean[];
    v_result    headrace_internal.scanned;
begin
    if not p_search then
        p_cursor.holes := '{}';
    elsif p_until is not null then
        p_cursor.holes := p_cursor.holes * int8multirange(int8range(null, p_until + 1));
    end if;
    if not p_stream.one_message_per_key then
        select * into v_segment from headrace_internal.segments
            where stream_id = p_stream.id and lower <= p_cursor.position + 1 order by lower desc limit 1;
        if not found then
            select * into v_segment from headrace_internal.segments where stream_id = p_stream.id order by lower limit 1;
        end if;
        p_cursor.position := greatest(p_cursor.position, v_segment.lower - 1);      -- what was below has been removed
        v_relation := v_segment.relation;
    end if;

    loop
        v_from := format('from %s where seq > $1 %s order by seq limit $2', v_relation, v_bound);
        if v_usual then
            v_fresh := format('select %s, %s as small %s', v_columns, headrace_internal.has_small_payload(), v_from);
            v_result := headrace_internal.scan_usual(
                v_fresh, v_relation, case when p_cursor.holes <> '{}' then headrace_internal.holes_query(p_stream, p_cursor.holes, 'seq', '$5', '1') end,
                p_cursor.position, p_cursor.holes, p_request.messages, p_request.bytes, p_request.cached);
            if v_may_wait and v_result.looked_at > 0 then
                v_waits := headrace_internal.must_wait(v_result.hashes, p_cursor, p_request);
                -- When more than half of them must wait, run the general statement, which looks further.
                if v_result.more and cardinality(array_positions(v_waits, true)) * 2 > v_result.looked_at then
                    v_result := null;
                elsif v_waits is not null then
                    v_result := headrace_internal.set_aside(v_result, v_waits);
                end if;
            end if;
        end if;
        if not v_usual or v_result.position is null then
            v_fresh := format('select %s, (%s) as wanted %s', v_columns, p_consumer.condition, v_from);
            v_result := headrace_internal.scan_general(
                v_fresh, case when p_cursor.holes <> '{}' then headrace_internal.holes_query(
                    p_stream, p_cursor.holes, format('seq, key, data, headers, created_at, (%s) as wanted', p_consumer.condition), '$7', '$2') end,
                p_consumer, p_cursor, p_request, p_until);
        end if;

        if p_until is not null then
            v_result.holes_searched := false;
            exit;
        end if;
        -- A single segment suffices while it has more messages, or no seq beyond it has been drawn.
        if v_relation = v_segment.relation then
            exit when v_result.more or v_result.full_up
                      or v_segment.upper is null or coalesce(pg_sequence_last_value(p_stream.sequence::regclass), 0) < v_segment.upper;
            select upper into v_next from headrace_internal.segments where stream_id = p_stream.id and lower >= v_segment.upper order by lower limit 1;
            v_bound := coalesce('and seq < ' || v_next, '');
            v_relation := p_stream.relation;
        else
            exit when v_bound = '';
            if v_result.position > p_cursor.position then
                -- What lies beyond the bound is left to the next call.
                v_result.more := v_result.more or v_next <= pg_sequence_last_value(p_stream.sequence::regclass);
                exit;
            end if;
            v_bound := '';
        end if;
    end loop;
    return v_result;
end $$;

-- Read ahead: scan, compute the next cursor, and park the messages that must wait.
--
-- p_more_late: whether there are more late arrivals than one search takes in. p_last_drawn: the last seq that was drawn,
-- read before this transaction had an xid, and before the sequence's settings were read.
--
-- A holder may end between the search for ended holders and the scan, and its messages may precede those that were
-- read. Then the scan is repeated, with a search of its holes. If it holds frozen holes, nothing is read, and the next
-- call returns those holes to the cursor.
--
-- A late arrival may precede a message of its key that was parked, and that this call has taken. In one lease the two
-- would be out of order, so the scan is repeated, and the keys of such messages are busy.
create or replace function headrace_internal.read_ahead(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_cursor headrace_internal.cursors,
    p_holes headrace_internal.hole_search, p_more_late boolean, p_request headrace_internal.read_request, p_last_drawn bigint, p_now timestamptz
) returns headrace_internal.scanned
language plpgsql as $$
declare
    v_next         headrace_internal.cursors := p_cursor;
    v_search       boolean := coalesce(p_holes.search, false);
    v_wanted       headrace_internal.read_request := p_request;
    v_one_by_one   boolean;
    v_had_xid      boolean;
    v_waiting      headrace_internal.waiting_keys;
    v_scanned      headrace_internal.scanned;
    v_unexpired    boolean := false;        -- whether the scan itself leaves out what has expired
    v_found        int;
begin
    if p_cursor.mark is not null then
        v_next := headrace_internal.check_mark(v_next, p_stream.relation, pg_snapshot_xmin(pg_current_snapshot()), p_now);
    end if;
    v_wanted.scan_limit := case when p_consumer.condition = 'true' and p_request.busy is null and not p_request.parked and not p_request.blocked
                                     and not p_request.distinct_keys
                                then p_request.messages else greatest(p_request.messages, p_request.scan_limit) end;
    v_one_by_one := headrace_internal.draws_one_by_one(p_stream.sequence::regclass);
    v_had_xid := pg_current_xact_id_if_assigned() is not null;
    if p_request.parked or p_request.blocked then
        v_waiting := headrace_internal.waiting_keys(p_consumer, p_stream, p_cursor, p_request.parked, p_request.blocked);
        v_wanted.busy := p_request.busy || v_waiting.hashes;
        v_wanted.parked := coalesce(v_waiting.parked, false);
        v_wanted.blocked := coalesce(v_waiting.blocked, false);
    end if;
    loop
        v_scanned := headrace_internal.scan(p_consumer, p_stream, p_cursor, v_wanted, v_search, p_holes.until);
        if not v_unexpired and headrace_internal.may_expire(v_scanned.headers) then
            v_found := cardinality(v_scanned.seqs);
            v_scanned := headrace_internal.without_expired(v_scanned, p_now);
            -- When more than half of them have expired, run the general statement, which looks further.
            if (v_scanned.more or v_scanned.full_up) and coalesce(cardinality(v_scanned.seqs), 0) * 2 < v_found then
                p_consumer.condition := headrace_internal.unexpired(p_consumer.condition, p_now);
                v_wanted.scan_limit := greatest(p_request.messages, p_request.scan_limit);
                v_unexpired := true;
                continue;
            end if;
        end if;
        if v_scanned.late is not null and exists (
               select from unnest(v_scanned.seqs, v_scanned.hashes) as m(seq, hash)
               where seq <@ v_scanned.late and hash = any (p_request.taken)) then
            v_wanted.busy := v_wanted.busy || p_request.taken;
            v_wanted.scan_limit := greatest(p_request.messages, p_request.scan_limit);
            p_request.taken := null;
            continue;
        end if;
        exit when p_holes.in_progress is null or p_more_late;
        p_holes.in_progress := array(select pg_snapshot_xip(v_scanned.snapshot));
        exit when v_search or p_cursor.holes = '{}' or (p_cursor.holders <@ p_holes.in_progress) is true;
        v_search := true;
    end loop;
    if p_holes.in_progress is not null and not p_more_late and not p_cursor.frozen <@ p_holes.in_progress then
        v_scanned := null;
        v_scanned.more := true;
        v_scanned.cursor := p_cursor;
        return v_scanned;
    end if;
    if v_scanned.missing is null and v_scanned.late is null and p_cursor.holes = '{}' and p_cursor.frozen = '{}' and p_cursor.mark is null
       and v_scanned.position - p_cursor.settled < headrace_internal.mark_interval() then
        v_next.position := v_scanned.position;      -- all that headrace_internal.advance_cursor would do
    else
        if v_scanned.late is not null then
            v_next.holes := v_next.holes - v_scanned.late;
        end if;
        v_next := headrace_internal.advance_cursor(v_next, v_scanned.position, v_scanned.missing, v_search, v_scanned.holes_searched, v_scanned.snapshot,
                                          case when v_one_by_one then p_last_drawn end, v_had_xid);
    end if;
    v_next.parked_room := v_next.parked_room - v_scanned.looked_at;
    v_scanned.cursor := v_next;
    if p_stream.one_message_per_key and p_request.parked and v_scanned.looked_at > 0 then
        perform headrace_internal.delete_outdated_parked(p_consumer.id, p_stream, v_scanned.hashes || v_scanned.waiting_hashes, p_cursor.parked_floor);
    end if;
    if v_scanned.waiting_seqs is not null then
        perform headrace_internal.park_by_key(p_consumer.id, v_scanned.waiting_seqs, v_scanned.waiting_hashes, p_cursor.parked_floor,
                                     p_consumer.ordered, p_stream.one_message_per_key);
    end if;
    return v_scanned;
end $$;
