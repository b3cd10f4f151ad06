-- scan: read the messages in a consumer's holes and above its cursor, and decide which of them can be delivered.
--
-- Late arrivals and fresh messages are read in ONE statement, and so in one snapshot. A seq that the snapshot does
-- not show is a hole. A message that it shows is delivered, parked or passed over. So no message is lost between the
-- two.
--
-- The usual case has a statement of its own: no filter, and no late arrivals. It walks up the primary key, and the
-- messages that can't be delivered are separated afterwards. If it meets a late arrival, or mostly keys that are
-- busy, its result is discarded and the general statement runs. Counting bytes costs a third of the statement's time.
-- It is left out while the stream has no message larger than a page, and compresses none.

create type headrace.scanned as (
    position        bigint,         -- all messages up to here were examined ...
    missing         int8multirange, -- ... except these fresh seqs, which are not visible yet
    late            int8multirange, -- seqs in holes that are visible now
    holes_searched  boolean,        -- whether all the holes could be searched
    looked_at       int,
    full_up         boolean,        -- whether the scan stopped at its limit of bytes
    more            boolean,        -- whether there may be more messages above
    seqs bigint[], hashes bigint[], keys text[], data json[], headers json[], created_at timestamptz[],
    waiting_seqs bigint[], waiting_hashes bigint[],
    snapshot        pg_snapshot     -- the snapshot of the read
);

-- Return for each of these keys, in the order of seq, whether its message must wait. Returns null when none must.
-- Among the reads this may come last, because what has been parked meanwhile belongs to keys that were busy. Each key
-- is looked up once.
create function headrace.verdicts(
    p_hashes bigint[], p_cursor headrace.cursors, p_busy bigint[], p_parked boolean, p_blocked boolean, p_singly boolean
) returns boolean[]
language plpgsql as $$
declare
    v_waiting   bigint[];
    v_verdicts  boolean[];
begin
    if not p_parked and not p_blocked and not p_singly and not p_hashes && p_busy then
        return null;
    end if;
    v_waiting := array(select distinct hash from unnest(p_hashes) as hash where hash in (select unnest(p_busy)));
    if p_parked or p_blocked then
        v_waiting := v_waiting || headrace.keys_that_wait(
            array(select distinct unnest(p_hashes)), p_cursor.consumer_id, p_parked, p_blocked, p_cursor.parked_floor, p_cursor.blocked_floor);
    end if;
    if v_waiting = '{}' and (select count(*) = count(distinct hash) or not p_singly from unnest(p_hashes) as hash) then
        return null;
    end if;
    select array_agg(hash in (select unnest(v_waiting)) or p_singly and times > 1 order by place)
        into v_verdicts
        from (
            select hash, place, row_number() over (partition by hash order by place) as times
            from unnest(p_hashes) with ordinality as h(hash, place)) as judged;
    return v_verdicts;
end $$;

-- p_limit: how many messages may be delivered
-- p_look: how many messages may be examined. It bounds the cost of a selective filter or a hot key.
-- p_bytes: the scan stops once the payloads exceed this size
-- p_busy: the hashes of keys that other owners hold, or null
-- p_parked, p_blocked: whether any message is parked, or any key blocked, that must be looked up
-- p_singly: at most one message of each key is delivered, and the others wait
-- p_known: the caller has the contents of these messages, so their key, data, headers and created_at are left out
-- p_search: whether there can be late arrivals
-- p_until: read only late arrivals, up to this seq, and nothing fresh
create function headrace.scan(
    p_consumer headrace.consumers, p_stream headrace.streams, p_cursor headrace.cursors,
    p_limit int, p_look int, p_bytes bigint, p_busy bigint[], p_parked boolean, p_blocked boolean,
    p_singly boolean default false, p_known int8multirange default null, p_search boolean default true, p_until bigint default null
) returns headrace.scanned
language plpgsql as $$
declare
    c_page      constant bigint := 8192;    -- a message that fits a page is not moved to the TOAST table
    -- The size of a payload as it is delivered. A function would be parsed for inlining at each planning of the
    -- statement.
    c_bytes     constant text := 'case when pg_column_compression(data) is null then pg_column_size(data) else octet_length(data::text) end';
    v_relation  text := p_stream.relation;  -- the table to read fresh messages from ...
    v_bound     text := '';                 -- ... and a bound for the read
    v_segment   headrace.segments;
    v_next      bigint;
    v_fresh     text;
    v_late      text;
    v_bounded   text;
    v_full_up   text;
    v_columns   text := case when p_known is null then 'array_agg(key), array_agg(data), array_agg(headers), array_agg(created_at)'
                             else 'array_agg(case when seq <@ $4 then null else key end), array_agg(case when seq <@ $4 then null else data end),
                                   array_agg(case when seq <@ $4 then null else headers end),
                                   array_agg(case when seq <@ $4 then null else created_at end)' end;
    v_verdict   text := '';
    v_done      boolean;
    v_verdicts  boolean[];
    v_result    headrace.scanned;
begin
    if p_consumer.ordered and p_busy is not null then
        v_verdict := v_verdict || 'when hash = any ($5) then ''waiting'' ';
    end if;
    if p_consumer.ordered and (p_parked or p_blocked) then
        v_verdict := v_verdict || format(
            'when hash in (select unnest(headrace.keys_that_wait(
                array(select distinct hash from looked where wanted), $4, %L, %L, $6, $10))) then ''waiting'' ', p_parked, p_blocked);
    end if;
    if not p_search then
        p_cursor.holes := '{}';
    elsif p_until is not null then
        p_cursor.holes := p_cursor.holes * int8multirange(int8range(null, p_until + 1));
    end if;
    if p_cursor.holes <> '{}' then
        v_late := headrace.in_holes(p_stream, p_cursor.holes,
                                    format('seq, key, data, headers, created_at, (%s) as wanted', p_consumer.condition), '$7', '$2');
    end if;
    if not p_stream.one_message_per_key then
        select * into v_segment from headrace.segments
            where stream_id = p_stream.id and lower <= p_cursor.position + 1 order by lower desc limit 1;
        if not found then
            select * into v_segment from headrace.segments where stream_id = p_stream.id order by lower limit 1;
        end if;
        p_cursor.position := greatest(p_cursor.position, v_segment.lower - 1);      -- what was below has been removed
        v_relation := v_segment.relation;
    end if;

    loop
        v_fresh := format('select seq, key, data, headers, created_at, (%s) as wanted from %s where seq > $1 %s order by seq limit $2',
                          p_consumer.condition, v_relation, v_bound);
        v_done := false;
        if p_consumer.condition = 'true' and p_until is null then
            if p_limit * c_page < p_bytes
               and (select pg_relation_size(reltoastrelid) = 0 from pg_class where oid = v_relation::regclass)
               and (select attcompression <> 'l' from pg_attribute where attrelid = v_relation::regclass and attname = 'data')
            then
                v_full_up := 'false';
                v_bounded := format('from (%s) as m', v_fresh);
            else
                v_full_up := format('coalesce(sum(%s) >= $3, false)', c_bytes);
                v_bounded := format('from (select *, coalesce(sum(%s) over (
                                              order by seq rows between unbounded preceding and 1 preceding), 0) as before
                                           from (%s) as m) as m
                                     where before < $3', c_bytes, v_fresh);
            end if;
            execute format($sql$
                select coalesce(max(seq), $1), null, null, %s, count(*), %s, count(*) >= $2,
                       array_agg(seq), array_agg(hashtextextended(key, 0)), %s, null, null, pg_current_snapshot()
                %s
                $sql$, case when p_cursor.holes = '{}' then 'true'
                            else format('not exists (%s)', headrace.in_holes(p_stream, p_cursor.holes, 'seq', '$5', '1')) end,
                v_full_up, v_columns, v_bounded)
                into v_result using p_cursor.position, p_limit, p_bytes, p_known, p_cursor.holes;
            v_done := v_result.holes_searched;
            if v_done and v_result.looked_at < v_result.position - p_cursor.position then
                v_result.missing := (
                    select range_agg(int8range(previous + 1, seq))
                    from unnest(p_cursor.position || v_result.seqs, v_result.seqs) as s(previous, seq)
                    where seq > previous + 1);
            end if;
            if v_done and v_result.looked_at > 0 and (v_verdict <> '' or p_singly) then
                v_verdicts := headrace.verdicts(v_result.hashes, p_cursor, p_busy, p_parked, p_blocked, p_singly);
                -- When more than half of them must wait, run the general statement, which looks farther.
                v_done := not (v_result.more and cardinality(array_positions(v_verdicts, true)) * 2 > v_result.looked_at) is true;
                if v_done and v_verdicts is not null then
                    select array_agg(seq) filter (where not waits), array_agg(hash) filter (where not waits),
                           array_agg(key) filter (where not waits), array_agg(data) filter (where not waits),
                           array_agg(headers) filter (where not waits), array_agg(created_at) filter (where not waits),
                           array_agg(seq) filter (where waits), array_agg(hash) filter (where waits)
                        into v_result.seqs, v_result.hashes, v_result.keys, v_result.data, v_result.headers, v_result.created_at,
                             v_result.waiting_seqs, v_result.waiting_hashes
                        from unnest(v_result.seqs, v_result.hashes, v_result.keys, v_result.data, v_result.headers, v_result.created_at,
                                    v_verdicts) as m(seq, hash, key, data, headers, created_at, waits);
                end if;
            end if;
        end if;
        if not v_done then
            -- The columns of unwanted messages are not carried along. With a selective condition that is nearly all
            -- messages. `seen` ends at the last message taken.
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
                select s.*, t.*
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
                case when v_verdict = '' and not p_singly then '''ready'''
                     else format('case %s %s else ''ready'' end', v_verdict,
                                 case when p_singly then 'when row_number() over (partition by hash order by seq) > 1 then ''waiting''' end) end,
                -- No fresh message is examined before all late ones. Otherwise it could overtake a late message of
                -- its key.
                case when p_until is not null then coalesce(v_late, format('select * from (%s) as none where false', v_fresh))
                     when v_late is null then v_fresh else format('(%s) union all (%s) order by seq limit $2', v_late, v_fresh) end,
                c_bytes)
                into v_result
                using p_cursor.position, p_look, p_bytes, p_consumer.id, p_busy, p_cursor.parked_floor, p_cursor.holes, p_limit,
                      p_known, p_cursor.blocked_floor;
        end if;

        if p_until is not null then
            v_result.holes_searched := false;
            exit;
        end if;
        -- A single segment suffices while it has more messages, or no seq beyond it has been drawn.
        if v_relation = v_segment.relation then
            exit when v_result.more or v_result.full_up
                      or v_segment.upper is null or coalesce(pg_sequence_last_value(p_stream.sequence::regclass), 0) < v_segment.upper;
            select upper into v_next from headrace.segments where stream_id = p_stream.id and lower >= v_segment.upper order by lower limit 1;
            v_bound := coalesce('and seq < ' || v_next, '');
            v_relation := p_stream.relation;
        else
            exit when v_bound = '' or v_result.position > p_cursor.position;
            v_bound := '';
        end if;
    end loop;
    return v_result;
end $$;
