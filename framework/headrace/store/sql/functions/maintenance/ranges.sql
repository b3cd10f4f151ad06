-- ranges: read a stream by ranges of seq that always hold the same messages.
--
-- A reader of ranges keeps no holes. Instead it asks for a position that is RESOLVED: every seq up to it is visible
-- to all reads from now on, or will never be visible. Between two such positions the messages are always the same
-- (except for those that retention removes, and, with one_message_per_key, those that move to a new seq).
--
-- A publisher has its xid before it draws a seq, and holds a row-exclusive lock on the stream's table from before it
-- draws until after its messages are visible. So a MARK is the last seq that has been drawn, read first, and then the
-- xids of the transactions that hold that lock. Once none of these is open any more, all seqs up to the mark are
-- resolved, however many others publish meanwhile.
--
-- A transaction is open while the lock on its xid is held. That lock is released last, and a prepared transaction
-- takes it over. The virtual transaction that pg_locks shows for its other locks may be another one after the
-- prepare.
--
-- A reader stores its positions elsewhere. A server that crashes forgets which seqs were drawn by transactions that
-- had not committed. It would draw them again, below a position that the reader has stored, so the last seq that a
-- mark names is on disk before the mark is returned.
--
-- No function here waits. The caller takes marks, and asks again whether their xids are still open. While one stays
-- open, it uses the first hole as its limit. See headrace_internal.resolved_position.

-- Take a mark now. p_known: the `last` of an earlier mark. A lock holder without an xid has drawn nothing up to
-- `last`. A transaction that becomes a prepared one at this moment may be seen with its lock on the table but without
-- its lock on the xid, which the prepared one has already. Then all prepared transactions count.
create or replace function headrace_internal.range_mark(p_stream text, p_known bigint default 0, out uid uuid, out last bigint, out open text[])
language plpgsql as $$
declare
    v_stream  headrace_internal.streams := headrace_internal.require_stream(p_stream);
begin
    if pg_is_in_recovery() then
        raise exception using errcode = 'HR003', message =
            'A standby does not know who publishes, so it can''t say what is complete: name the primary as the database.';
    end if;
    uid := v_stream.uid;
    last := headrace_internal.last_drawn_seq(v_stream);
    perform headrace_internal.require_one_by_one(v_stream);
    if last > p_known and pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn() then
        if current_setting('synchronous_commit') = 'off' then
            perform set_config('synchronous_commit', 'local', true);
        end if;
        -- something to commit, so that the flush includes all WAL before it
        perform pg_logical_emit_message(true, 'headrace.mark', ''::text);
    end if;
    with locks as materialized (
        select * from pg_locks where granted
    ), xids as (
        select virtualtransaction as holder, transactionid as xid from locks where locktype = 'transactionid' and mode = 'ExclusiveLock'
    ), holders as (
        select virtualtransaction as holder,
               -- the oldest xid, not a savepoint's
               (select xid from xids where xids.holder = virtualtransaction order by age(xid) desc limit 1) as xid
        from locks
        where locktype = 'relation' and mode = 'RowExclusiveLock' and relation = v_stream.relation::regclass
          and database = (select oid from pg_database where datname = current_database())
    )
    select coalesce(array_agg(distinct o.xid::text), '{}') into open from (
        select xid from holders where xid is not null
        union all
        select xid from xids where holder like '-1/%' and exists (select from holders where xid is null)) as o;
end $$;

-- Return those of these xids that are still open.
create or replace function headrace_internal.still_open_xids(p_xids text[]) returns text[]
language sql as $$
    select coalesce(array_agg(distinct transactionid::text), '{}') from pg_locks
    where locktype = 'transactionid' and mode = 'ExclusiveLock' and granted and transactionid::text = any (p_xids)
$$;

-- Describe the sessions or prepared transactions of these xids, one line for each.
create or replace function headrace_internal.describe_transactions(p_xids text[]) returns setof text
language sql stable as $$
    select coalesce(
        (select format('the prepared transaction %L of %s, since %s', gid, owner, prepared) from pg_prepared_xacts as p
         where p.transaction::text = open.xid),
        (select format('process %s (%s), since %s', l.pid, coalesce(nullif(a.application_name, ''), a.usename, 'of another user'),
                       coalesce(a.xact_start::text, 'a time that only its user may see'))
         from pg_locks as l left join pg_stat_activity as a on a.pid = l.pid
         where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted and l.transactionid::text = open.xid limit 1))
    from unnest(p_xids) as open(xid)
$$;

-- The last seq below which retention has removed whole segments.
create or replace function headrace_internal.range_floor(p_stream headrace_internal.streams) returns bigint
language sql as $$
    select coalesce(min(lower), 1) - 1 from headrace_internal.segments where stream_id = p_stream.id
$$;

-- Return a resolved position at or above p_after, which must be one. If no transaction publishes, that is the last
-- seq drawn. Otherwise it is the first seq that is missing, minus one. The search begins where the open transactions
-- may have drawn. They drew after they began, so above all that was written before by the server's clock, and one
-- hour is allowed for a clock that is set back. So an old hole stops no reader for long, and a transaction that stays
-- open stops the reader at its own first seq.
create or replace function headrace_internal.resolved_position(p_stream text, p_after bigint) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream  headrace_internal.streams := headrace_internal.require_stream(p_stream);
    v_mark    record;
    v_since   timestamptz;
    v_from    bigint;
    v_before  bigint;
begin
    v_mark := headrace_internal.range_mark(p_stream);
    if v_mark.open = '{}' then
        return greatest(p_after, v_mark.last);
    end if;
    select min(coalesce(a.xact_start, '-infinity')) into v_since
        from unnest(v_mark.open) as open(xid)
        left join pg_locks as l on l.transactionid::text = open.xid and l.locktype = 'transactionid' and l.mode = 'ExclusiveLock'
        left join pg_stat_activity as a on a.pid = l.pid;
    v_from := greatest(p_after, headrace_internal.range_floor(v_stream));
    if v_since > '-infinity' and v_from < v_mark.last then
        v_before := headrace_internal.last_seq_before(v_stream, v_since - interval '1 hour');
        v_from := greatest(v_from, least(coalesce(v_before, 0), v_mark.last));
    end if;
    return headrace_internal.last_before_first_missing(v_stream, v_from, v_mark.last);
end $$;

-- The seq before the first missing one above p_after, at most p_last. A call examines at most 5 million seqs, which
-- is enough progress.
create or replace function headrace_internal.last_before_first_missing(p_stream headrace_internal.streams, p_after bigint, p_last bigint) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    c_step   constant bigint := 100000;
    c_limit   constant bigint := 5000000;
    v_end    bigint := least(p_last, p_after + c_limit);
    v_at     bigint := p_after;
    v_next   bigint;
    v_table  text;
    v_count  bigint;
begin
    while v_at < v_end loop
        v_next := least(v_at + c_step, v_end);
        v_table := headrace_internal.table_of_range(p_stream, v_at + 1, v_next);
        execute format('select count(*) from %s where seq > $1 and seq <= $2', v_table) into v_count using v_at, v_next;
        if v_count < v_next - v_at then
            execute format($sql$
                with walked as materialized (
                    select seq, lag(seq, 1, $1) over (order by seq) as previous from %s where seq > $1 and seq <= $2
                )
                select coalesce((select min(previous) from walked where seq > previous + 1), (select max(seq) from walked), $1)
                $sql$, v_table) into v_next using v_at, v_next;
            return v_next;
        end if;
        v_at := v_next;
    end loop;
    return v_at;
end $$;

-- Return the streams of these names, or those whose whole names match a regular expression, each with the last seq that
-- was drawn. At most p_limit.
create or replace function headrace_internal.range_streams(p_names text[], p_pattern text, p_limit bigint)
returns table (name text, uid text, last bigint)
language sql as $$
    select s.name, s.uid::text, headrace_internal.last_drawn_seq(s) from headrace_internal.streams as s
    where s.name = any (p_names) or s.name ~ ('^(?:' || p_pattern || ')$')
    order by s.name limit p_limit
$$;

-- Where a range begins or ends.

-- Return the position before the first message of a range. p_edge: 'earliest' or 'latest'. Otherwise the range begins
-- at p_seq or p_time. 'latest' includes all messages that become visible from now on. It may also include messages
-- that were published while another transaction was open.
create or replace function headrace_internal.range_start(
    p_stream text, p_edge text, p_seq bigint default null, p_time timestamptz default null, p_now timestamptz default clock_timestamp()
) returns bigint
language plpgsql as $$
declare
    v_stream    headrace_internal.streams := headrace_internal.require_stream(p_stream);
    v_position  bigint;
begin
    if p_seq is not null then
        return headrace_internal.range_end(p_stream, p_seq) - 1;
    elsif p_time > p_now then
        perform headrace_internal.range_end(p_stream, null, p_time, p_now);
    elsif p_time is not null then
        v_position := headrace_internal.position_at(p_stream, p_time);
    elsif p_edge = 'earliest' then
        return headrace_internal.range_floor(v_stream);
    end if;
    return greatest(coalesce(v_position, headrace_internal.resolved_position(p_stream, 0)), headrace_internal.range_floor(v_stream));
end $$;

-- Return the last seq of a range: p_seq itself, or the one before the first message of p_time or later. Null for the
-- end of the stream.
create or replace function headrace_internal.range_end(
    p_stream text, p_seq bigint default null, p_time timestamptz default null, p_now timestamptz default clock_timestamp()
) returns bigint
language plpgsql as $$
declare
    v_stream  headrace_internal.streams := headrace_internal.require_stream(p_stream);
    v_last    bigint := headrace_internal.last_drawn_seq(v_stream);
begin
    if p_seq > v_last then
        raise exception using errcode = 'HR004', message = format(
            'The seq %s lies past the end of the stream %L, whose last one is %s: take one up to that, or "latest".',
            p_seq, p_stream, v_last);
    elsif p_time > p_now then
        raise exception using errcode = 'HR004', message = format(
            'The time %s lies in the future, it is %s now: take a time that has passed, or "latest".',
            p_time at time zone 'utc', p_now at time zone 'utc');
    end if;
    return coalesce(p_seq, headrace_internal.seq_at(p_stream, p_time) - 1);
end $$;

-- Return the largest position up to p_last with at most p_rows messages after p_after, and at most p_bytes of them as they
-- are stored, which are compressed if they are large. A message that is larger comes alone.
create or replace function headrace_internal.range_limit(p_stream text, p_after bigint, p_last bigint, p_rows bigint, p_bytes bigint default null)
returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream  headrace_internal.streams := headrace_internal.require_stream(p_stream);
    v_last    bigint := p_last;
    v_next    bigint;
begin
    if p_last - p_after > p_rows then
        execute format('select seq from %s where seq > $1 and seq <= $2 order by seq offset $3 limit 1', v_stream.relation)
            into v_next using p_after, p_last, p_rows;
        v_last := coalesce(v_next - 1, p_last);
    end if;
    if p_bytes is not null then
        -- The sum is made in the order of the index, up to the first message that is too much.
        execute format($sql$
            select previous from (
                select lag(seq) over walked as previous, sum(octet_length(key) + pg_column_size(data)) over walked as bytes
                from %s where seq > $1 and seq <= $2 window walked as (order by seq)) as sums
            where bytes > $3 and previous is not null limit 1
            $sql$, v_stream.relation) into v_next using p_after, v_last, p_bytes;
        return coalesce(v_next, v_last);
    end if;
    return v_last;
end $$;

-- Return for each stream its last message up to a position, and the last seq that was drawn. A reader keeps these with
-- its position. In a database that is older than the reader, seqs are drawn again, and another message is there. The
-- time is in microseconds since 1970. A seq of 0 means that there is no message.
create or replace function headrace_internal.range_witnesses(p_streams text[], p_positions bigint[])
returns table (seq bigint, written bigint, drawn bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_place   record;
    v_stream  headrace_internal.streams;
    v_lower   bigint;
begin
    for v_place in select * from unnest(p_streams, p_positions) with ordinality as given(name, last, number) order by number loop
        v_stream := headrace_internal.require_stream(v_place.name);
        -- in the segment of the position first, so that the others need not be planned
        v_lower := (select max(lower) from headrace_internal.segments where stream_id = v_stream.id and lower <= v_place.last);
        foreach v_lower in array array[coalesce(v_lower, 0), 0] loop
            execute format('select seq, (extract(epoch from created_at) * 1000000)::bigint from %s where seq >= $1 and seq <= $2 order by seq desc limit 1',
                           v_stream.relation)
                into seq, written using v_lower, v_place.last;
            exit when seq is not null;
        end loop;
        seq := coalesce(seq, 0);
        written := coalesce(written, 0);
        drawn := headrace_internal.last_drawn_seq(v_stream);
        return next;
    end loop;
end $$;

-- Queries for ranges.

-- Return the filters that Spark pushes down, as SQL over a message's columns: [{"column": "key", "op": "=", "value":
-- "a", "not": false}, …]. All of them must hold. They have the meaning of SQL, also for null. Text compares byte by
-- byte, by the collation of the column.
create or replace function headrace_internal.pushdown_condition(p_tests json) returns text
language plpgsql immutable as $$
declare
    v_test   json;
    v_type   text;
    v_value  text;
    v_sql    text;
    v_all    text[] := '{}';
begin
    for v_test in select value from json_array_elements(coalesce(p_tests, '[]')) as value loop
        v_type := case v_test ->> 'column' when 'key' then 'text' when 'seq' then 'bigint' when 'created_at' then 'timestamptz'
                                           when 'headers' then '' when 'data' then '' end;
        v_value := format('%L::%s', v_test ->> 'value', v_type);
        v_sql := case
            when v_type is null then null
            when v_test ->> 'op' in ('is null', 'is not null') then format('%I %s', v_test ->> 'column', v_test ->> 'op')
            when v_type = '' then null
            when v_test ->> 'op' in ('=', '<', '<=', '>', '>=') then format('%I %s %s', v_test ->> 'column', v_test ->> 'op', v_value)
            when v_test ->> 'op' = '<=>' then format('%I is not distinct from %s', v_test ->> 'column', v_value)
            when v_test ->> 'op' = 'in' then format('%I = any (array[%s]::%s[])', v_test ->> 'column', (
                select string_agg(quote_nullable(value), ', ') from json_array_elements_text(v_test -> 'value') as value), v_type)
            when v_type <> 'text' then null
            when v_test ->> 'op' = 'starts' then format('starts_with(%I, %s)', v_test ->> 'column', v_value)
            when v_test ->> 'op' = 'ends' then format('right(%I, length(%s)) = %2$s', v_test ->> 'column', v_value)
            when v_test ->> 'op' = 'contains' then format('strpos(%I, %s) > 0', v_test ->> 'column', v_value)
        end;
        if v_sql is null then
            raise exception using errcode = 'HR004', message = format('The test %s can''t be made here.', v_test);
        end if;
        v_all := v_all || case when (v_test ->> 'not')::boolean then format('not (%s)', v_sql) else format('(%s)', v_sql) end;
    end loop;
    return case when v_all = '{}' then 'true' else array_to_string(v_all, ' and ') end;
end $$;

-- Return the first seqs of at most p_parts ranges, from p_first to p_last, with about the same number of messages each.
--
-- Seqs may be sparse: with one_message_per_key a key's older seqs are gone, retention trims the beginning, and publishes
-- are rolled back. So the ranges are cut where the messages of a sample of pages are, and evenly by seq where there
-- are few seqs or the sample has few messages. Any cut is correct.
create or replace function headrace_internal.range_cuts(p_stream headrace_internal.streams, p_first bigint, p_last bigint, p_parts int)
returns setof bigint
language plpgsql as $$
declare
    c_least_seqs  constant bigint := 100000;    -- with fewer a sample is not worth it
    c_pages       constant int := 40;           -- to be sampled for each range
    c_most_pages  constant int := 4000;
    c_rows        constant int := 20;           -- that the sample needs for each range
    v_pages       bigint;
    v_sample      bigint[];
begin
    if p_parts > 1 and p_last - p_first >= c_least_seqs then
        select sum(pg_relation_size(to_regclass(relation))) / current_setting('block_size')::int into v_pages from (
            select relation from headrace_internal.segments
            where stream_id = p_stream.id and lower <= p_last and (upper is null or upper > p_first)
            union all
            select p_stream.relation where p_stream.one_message_per_key) as tables;
        execute format('select array_agg(seq order by seq) from %s tablesample system (%s) where seq between $1 and $2', p_stream.relation,
                       least(100, 100.0 * least(p_parts * c_pages, c_most_pages) / greatest(v_pages, 1)))
            into v_sample using p_first, p_last;
        if cardinality(v_sample) >= p_parts * c_rows then
            return query select distinct case when i = 0 then p_first else v_sample[1 + (i::bigint * cardinality(v_sample) / p_parts)::int] end
                from generate_series(0, p_parts - 1) as i order by 1;
            return;
        end if;
    end if;
    return query select generate_series(p_first, p_last, greatest(ceil((p_last - p_first + 1)::numeric / greatest(p_parts, 1))::bigint, 1));
end $$;

-- Split the messages from p_first to p_last into at most p_partitions ranges of about the same number of messages, from
-- the first segment on. Each query is complete, and every literal in it is quoted here (%L), so the reader passes no
-- arguments, and can run it as COPY (…) TO STDOUT.
-- p_first: null for the first message that exists. p_selection: {"filter", "where", "tests"}, see
-- headrace_internal.selection_condition and headrace_internal.pushdown_condition. p_uid: the uid of the stream as it was known before, null for any.
-- p_fail: whether to raise if messages at the beginning were removed, now and while the ranges are read. p_columns:
-- which columns, and in which order.
create or replace function headrace_internal.plan_ranges(
    p_stream      text,
    p_first       bigint,
    p_last        bigint,
    p_selection   json,
    p_partitions  int,
    p_uid         uuid default null,
    p_fail        boolean default true,
    p_columns     text[] default '{key,seq,headers,created_at,data}'
) returns table (first bigint, last bigint, query text)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream     headrace_internal.streams := headrace_internal.require_stream(p_stream);
    v_first      bigint := p_first;
    v_last       bigint := p_last;
    v_condition  text;
    v_columns    text;
begin
    if v_stream.uid <> p_uid then
        raise exception using errcode = 'HR001', message = format(
            'The stream %L was deleted and created anew: what was read so far is of another one; begin anew, with a new checkpoint.', p_stream);
    elsif p_fail then
        perform headrace_internal.require_range(v_stream.id, p_first, p_first is not null);
    end if;
    if v_stream.one_message_per_key then
        execute format('select greatest($1, min(seq)), least($2, max(seq)) from %s', v_stream.relation) into v_first, v_last using v_first, v_last;
    else
        -- greatest ignores null, so the floor is used
        v_first := greatest(v_first, headrace_internal.range_floor(v_stream) + 1);
    end if;
    v_condition := concat_ws(' and ', nullif(headrace_internal.selection_condition(p_selection), 'true'),
                             nullif(headrace_internal.pushdown_condition(p_selection -> 'tests'), 'true'));
    select string_agg(case when name in ('data', 'headers') then format('%1$I::text as %1$I', name) else quote_ident(name) end, ', ' order by place)
        into v_columns from unnest(p_columns) with ordinality as c(name, place)
        where name in ('key', 'seq', 'headers', 'created_at', 'data');
    return query
        select f, l, format(
            'select %s from %s where seq between %s and %s%s order by seq limit headrace_internal.require_range(%s, %L, %L)',
            v_columns, v_stream.relation, f, l, ' and ' || nullif(v_condition, ''), v_stream.id, case when p_fail then f end, p_first is not null)
        from (
            select cut, coalesce(lead(cut) over (order by cut) - 1, v_last)
            from headrace_internal.range_cuts(v_stream, v_first, v_last, p_partitions) as cuts(cut)) as parts(f, l)
        where f <= v_last order by f;
end $$;

-- Raise if the stream no longer exists, or if messages from p_first on were removed (null: ignore removals).
-- p_trimmed: messages that were removed one by one count, too. It is false for a reader that begins at the earliest
-- message. Such a reader has read none of these, and removals would often overtake it.
--
-- The queries call this as their limit, and it returns null, which is no limit. A limit is always computed, once,
-- before any row is read. A condition is not computed where all segments of a range are gone. When the limit is
-- computed the query has its snapshot, and its lock on the stream's table, and retention drops no segment while that
-- lock is held, so the check stays valid until the query ends.
create or replace function headrace_internal.require_range(p_stream int, p_first bigint, p_trimmed boolean) returns bigint
language plpgsql as $$
declare
    v_stream  headrace_internal.streams;
    v_floor   bigint;
begin
    if pg_is_in_recovery() then
        raise exception using errcode = 'HR003', message =
            'A standby may not have all of this range yet, although it is complete: name the primary as the database.';
    end if;
    select * into v_stream from headrace_internal.streams where id = p_stream;
    if not found then
        raise exception using errcode = 'HR001', message = 'The stream was deleted while it was read: begin anew.';
    end if;
    v_floor := greatest(headrace_internal.range_floor(v_stream), case when p_trimmed then v_stream.trimmed end);
    if p_first <= v_floor then
        raise exception using errcode = 'HR004', message = format(
            'Of the stream %L the seqs from %s to %s were removed by retention before they were read: begin at "earliest", or say '
            'failOnDataLoss=false to go on with what is left.', v_stream.name, p_first, v_floor);
    end if;
    return null;
end $$;

-- Move a consumer that represents a reader of ranges up to the reader's position, never back. Retention by `interest`
-- then keeps the messages that the reader has not read. Returns the position of the consumer.
create or replace function headrace_internal.confirm_range(p_stream text, p_consumer text, p_position bigint) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream    headrace_internal.streams := headrace_internal.require_stream(p_stream);
    v_consumer  int;
    v_cursor    headrace_internal.cursors;
    v_next      headrace_internal.cursors;
    v_headless  bigint[];
    v_promoted  bigint;
begin
    select id into v_consumer from headrace_internal.consumers where stream_id = v_stream.id and name = p_consumer;
    if not found then
        raise exception using errcode = 'HR002', message = format(
            'There is no consumer %L on the stream %L: create it, so that the place that was read up to can be kept there.', p_consumer, p_stream);
    end if;
    perform pg_advisory_xact_lock(1212498508, v_consumer);
    select * into v_cursor from headrace_internal.cursors where consumer_id = v_consumer order by version desc limit 1;
    if exists (select from headrace_internal.leases where consumer_id = v_consumer and lease_id >= v_cursor.lease_floor and lowest <= p_position) then
        raise exception using errcode = 'HR004', message = format(
            'The consumer %L of the stream %L has messages in flight, so a worker uses it: give the Spark query a consumer of its own.',
            p_consumer, p_stream);
    elsif v_cursor.position >= p_position and v_cursor.holes = '{}' and v_cursor.frozen = '{}' then
        return v_cursor.position;
    end if;
    delete from headrace_internal.tails where consumer_id = v_consumer and seq <= p_position;
    with gone as (
        delete from headrace_internal.parked where consumer_id = v_consumer and seq >= v_cursor.parked_floor and seq <= p_position returning key_hash
    )
    select array_agg(key_hash) into v_headless from gone;
    v_promoted := headrace_internal.promote_tails(v_consumer, v_headless, null, p_position + 1);
    delete from headrace_internal.replays where consumer_id = v_consumer and seq <= p_position;
    v_next := headrace_internal.thaw_all_holes(v_cursor);
    v_next.position := greatest(v_cursor.position, p_position);
    v_next.settled := greatest(v_cursor.settled, p_position);
    v_next.holes := v_next.holes * int8multirange(int8range(p_position + 1, null));
    v_next.parked_floor := greatest(v_cursor.parked_floor, p_position + 1);
    v_next.ready_floor := least(greatest(v_cursor.ready_floor, p_position + 1), v_promoted);
    if v_next.mark <= p_position then
        v_next.mark := null;
        v_next.mark_stamp := null;
        v_next.suspects := null;
        v_next.suspects_at := null;
    end if;
    perform headrace_internal.write_cursor(v_cursor, v_next);
    return v_next.position;
end $$;
