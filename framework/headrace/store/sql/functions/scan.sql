-- scan: what lies in a consumer's holes and above its cursor, judged message by message.
--
-- Late arrivals and fresh messages are read in ONE statement, and so in one snapshot: what it does not see is a hole, and
-- what it sees is delivered, parked or passed over. Nothing falls between.
--
-- The usual case has a statement of its own: no filter, no holes. It is a walk up the primary key, and what can't be handed out
-- is sorted out afterwards. When it meets a gap, or mostly keys that are busy, its answer is thrown away and the other one asked.
-- Counting bytes on the way costs a third of it, and is left out while the stream has no message larger than a page.

create type headrace.scanned as (
    position        bigint,         -- everything up to here has been looked at ...
    missing         int8multirange, -- ... but these of the fresh ones, which are not there yet
    late            int8multirange, -- what was missing, and has come
    holes_searched  boolean,        -- whether all the holes could be looked into
    looked_at       int,
    full_up         boolean,        -- whether it stopped because of the bytes
    more            boolean,        -- whether there may be more above
    seqs bigint[], hashes bigint[], keys text[], data json[], headers json[], created_at timestamptz[],
    waiting_seqs bigint[], waiting_hashes bigint[],
    blocked_seqs bigint[], blocked_hashes bigint[]
);

-- Of messages with these keys, in the order of seq, which ones wait or are blocked: null for all others, and null altogether when there
-- is none. In the order of the reads it comes last, as it may: what has been parked meanwhile is of keys that were busy.
create function headrace.verdicts(
    p_hashes bigint[], p_consumer int, p_busy bigint[], p_parked boolean, p_blocked boolean, p_singly boolean, p_floor bigint
) returns text[]
language plpgsql as $$
declare
    v_waiting   bigint[] := p_busy;
    v_blocked   bigint[];
    v_verdicts  text[];
begin
    if p_parked then
        v_waiting := v_waiting || array(
            select key_hash from headrace.parked
            where consumer_id = p_consumer and key_hash = any (p_hashes) and seq >= p_floor);
    end if;
    if p_blocked then
        v_blocked := array(select key_hash from headrace.blocked where consumer_id = p_consumer and key_hash = any (p_hashes));
    end if;
    if (select count(*) = count(distinct hash) or not p_singly from unnest(p_hashes) as hash)
       and not exists (select from unnest(p_hashes) as hash where hash in (select unnest(v_waiting || v_blocked))) then
        return null;
    end if;
    select array_agg(case when hash in (select unnest(v_blocked)) then 'blocked'
                          when hash in (select unnest(v_waiting)) or p_singly and times > 1 then 'waiting' end order by place)
        into v_verdicts
        from (
            select hash, place, row_number() over (partition by hash order by place) as times
            from unnest(p_hashes) with ordinality as h(hash, place)) as judged;
    return v_verdicts;
end $$;

-- p_limit:  how many messages may be handed out
-- p_look:   how many may be looked at, so that a selective filter or a hot key costs no more than that
-- p_bytes:  handing out stops once it has passed so many bytes, as stored
-- p_busy:   the hashes of keys that other owners hold, or null
-- p_parked, p_blocked: whether anything is parked or blocked at all
-- p_singly: of each key at most one message is handed out; the others wait
-- p_known: of these messages the caller has the contents: key, data, headers and created_at are left out
create function headrace.scan(
    p_consumer headrace.consumers, p_stream headrace.streams, p_cursor headrace.cursors,
    p_limit int, p_look int, p_bytes bigint, p_busy bigint[], p_parked boolean, p_blocked boolean,
    p_singly boolean default false, p_known int8multirange default null
) returns headrace.scanned
language plpgsql as $$
declare
    c_page      constant bigint := 8192;    -- what fits a page is not moved to the side table for large values
    v_relation  text := p_stream.relation;  -- where to look for fresh messages ...
    v_bound     text := '';                 -- ... and how far
    v_segment   headrace.segments;
    v_next      bigint;
    v_fresh     text;
    v_late      text;
    v_bounded   text;
    v_verdict   text := '';
    v_done      boolean;
    v_verdicts  text[];
    v_result    headrace.scanned;
begin
    if p_consumer.ordered and p_blocked then
        v_verdict := v_verdict || 'when exists (select from headrace.blocked as b
                                                where b.consumer_id = $4 and b.key_hash = hash) then ''blocked'' ';
    end if;
    if p_consumer.ordered and p_busy is not null then
        v_verdict := v_verdict || 'when hash = any ($5) then ''waiting'' ';
    end if;
    if p_consumer.ordered and p_parked then
        v_verdict := v_verdict || 'when exists (select from headrace.parked as p
                                                where p.consumer_id = $4 and p.key_hash = hash and p.seq >= $6) then ''waiting'' ';
    end if;
    if p_cursor.holes <> '{}' then
        -- The bounds are said twice, the second time for the planner: only these segments.
        v_late := format('select m.* from unnest($7) as hole cross join lateral (
                              select seq, key, data, headers, created_at, (%s) as wanted from %s
                              where seq >= lower(hole) and seq < upper(hole) and seq >= lower($7) and seq < upper($7)
                              order by seq limit $2) as m
                          order by m.seq limit $2',
                         p_consumer.condition, headrace.source(p_stream, lower(p_cursor.holes), upper(p_cursor.holes)));
    end if;
    if not p_stream.one_message_per_key then
        select * into v_segment from headrace.segments
            where stream_id = p_stream.id and lower <= p_cursor.position + 1 order by lower desc limit 1;
        if not found then
            select * into v_segment from headrace.segments where stream_id = p_stream.id order by lower limit 1;
        end if;
        p_cursor.position := greatest(p_cursor.position, v_segment.lower - 1);      -- what was before it has been removed
        v_relation := v_segment.relation;
    end if;

    loop
        v_fresh := format('select seq, key, data, headers, created_at, (%s) as wanted from %s where seq > $1 %s order by seq limit $2',
                          p_consumer.condition, v_relation, v_bound);
        v_done := false;
        if p_cursor.holes = '{}' and p_consumer.condition = 'true' then
            if p_limit * c_page < p_bytes and pg_relation_size((select reltoastrelid from pg_class where oid = v_relation::regclass)) = 0 then
                v_bounded := format('from (%s) as m', v_fresh);
            else
                v_bounded := format('from (select *, coalesce(sum(pg_column_size(data)) over (
                                              order by seq rows between unbounded preceding and 1 preceding), 0) as before
                                           from (%s) as m) as m
                                     where before < $3', v_fresh);
            end if;
            execute format($sql$
                select coalesce(max(seq), $1), null, null, true, count(*), coalesce(sum(pg_column_size(data)) >= $3, false), count(*) >= $2,
                       array_agg(seq), array_agg(hashtextextended(key, 0)), array_agg(case when seq <@ $4 then null else key end),
                       array_agg(case when seq <@ $4 then null else data end), array_agg(case when seq <@ $4 then null else headers end),
                       array_agg(case when seq <@ $4 then null else created_at end), null, null, null, null
                %s
                $sql$, v_bounded)
                into v_result using p_cursor.position, p_limit, p_bytes, p_known;
            v_done := v_result.looked_at = v_result.position - p_cursor.position;
            if v_done and v_result.looked_at > 0 and (v_verdict <> '' or p_singly) then
                v_verdicts := headrace.verdicts(v_result.hashes, p_consumer.id, p_busy, p_parked, p_blocked, p_singly, p_cursor.parked_floor);
                -- When most of them can't be handed out, look farther.
                v_done := not (v_result.more and cardinality(array_remove(v_verdicts, null)) * 2 > v_result.looked_at) is true;
                if v_done and v_verdicts is not null then
                    select array_agg(seq) filter (where verdict is null), array_agg(hash) filter (where verdict is null),
                           array_agg(key) filter (where verdict is null), array_agg(data) filter (where verdict is null),
                           array_agg(headers) filter (where verdict is null), array_agg(created_at) filter (where verdict is null),
                           array_agg(seq) filter (where verdict = 'waiting'), array_agg(hash) filter (where verdict = 'waiting'),
                           array_agg(seq) filter (where verdict = 'blocked'), array_agg(hash) filter (where verdict = 'blocked')
                        into v_result.seqs, v_result.hashes, v_result.keys, v_result.data, v_result.headers, v_result.created_at,
                             v_result.waiting_seqs, v_result.waiting_hashes, v_result.blocked_seqs, v_result.blocked_hashes
                        from unnest(v_result.seqs, v_result.hashes, v_result.keys, v_result.data, v_result.headers, v_result.created_at,
                                    v_verdicts) as m(seq, hash, key, data, headers, created_at, verdict);
                end if;
            end if;
        end if;
        if not v_done then
            -- What is not wanted is not carried along: with a selective condition that is nearly all. `seen` ends where handing out did.
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
                               coalesce(sum(pg_column_size(data)) filter (where verdict = 'ready') over earlier, 0) as bytes_before
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
                    select coalesce(sum(pg_column_size(data)) filter (where verdict = 'ready') >= $3, false),
                           (select count(*) from seen) >= $2 or count(*) filter (where verdict = 'ready') >= $8,
                           array_agg(seq) filter (where verdict = 'ready'), array_agg(hash) filter (where verdict = 'ready'),
                           array_agg(case when seq <@ $9 then null else key end) filter (where verdict = 'ready'),
                           array_agg(case when seq <@ $9 then null else data end) filter (where verdict = 'ready'),
                           array_agg(case when seq <@ $9 then null else headers end) filter (where verdict = 'ready'),
                           array_agg(case when seq <@ $9 then null else created_at end) filter (where verdict = 'ready'),
                           array_agg(seq) filter (where verdict = 'waiting'), array_agg(hash) filter (where verdict = 'waiting'),
                           array_agg(seq) filter (where verdict = 'blocked'), array_agg(hash) filter (where verdict = 'blocked')
                    from taken) as t
                $sql$,
                case when v_verdict = '' and not p_singly then '''ready'''
                     else format('case %s %s else ''ready'' end', v_verdict,
                                 case when p_singly then 'when row_number() over (partition by hash order by seq) > 1 then ''waiting''' end) end,
                -- Nothing fresh is looked at before all that is late, or a message could overtake a late one of its key.
                case when v_late is null then v_fresh else format('(%s) union all (%s) order by seq limit $2', v_late, v_fresh) end)
                into v_result
                using p_cursor.position, p_look, p_bytes, p_consumer.id, p_busy, p_cursor.parked_floor, p_cursor.holes, p_limit,
                      p_known;
        end if;

        -- A single segment is enough as long as it has more, or nobody has drawn a seq beyond it.
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
