-- The gap-aware cursor. Sequence numbers are drawn before commit, so they become visible out of order. A cursor is
-- therefore a position AND the holes below it: the seqs that were missing when the position passed them. A lease call
-- searches the holes before it reads fresh messages, if one of their holders has ended.
--
-- A hole may be forgotten once no transaction can fill it any more. A transaction that fills a hole had its xid
-- before it drew the seq, so a lease call notes a MARK, the last seq that was drawn before the lease call got an xid,
-- and that xid as its STAMP. Every transaction that drew a seq up to the mark has a smaller xid. (The xmax of a
-- snapshot can't be the stamp, since transactions with larger xids may be running already.) Once xmin, read before
-- the holes were searched, has reached the stamp, all of these transactions have ended. Then the holes up to the mark
-- are dropped. From then on no hole is noted up to the mark, however many seqs are missing there because they were
-- rolled back, compacted or removed. Then the next mark is taken: at once if there are holes or seqs were missing, and
-- otherwise only after a thousand seqs, since each call that takes or drops one costs more.
--
-- All this requires that seqs are drawn one by one, by transactions that have their xid and their lock. A sequence
-- with a cache hands out numbers to sessions, which use them in later transactions. While a sequence has a cache, no
-- mark is taken. Then holes are kept, however many they become, and whatever arrives in them is delivered. See
-- headrace.mend_sequence.
--
-- When an unrelated old transaction pins xmin, xmin does not reach the stamp. Then pg_locks is read. A publisher
-- holds a row-exclusive lock on the stream's table from before it draws a seq until it ends, and its messages become
-- visible before it releases the lock. So the mark is settled when every transaction that held the lock at some
-- moment after the mark was taken is gone.

-- Whether each seq is drawn by the transaction that uses it, and is larger than all before.
create or replace function headrace_internal.draws_one_by_one(p_sequence regclass) returns boolean
language plpgsql stable as $$
begin
    -- Not pg_sequence_parameters, which requires a privilege on the sequence.
    return exists (select from pg_sequence where seqrelid = p_sequence and seqcache = 1 and seqincrement > 0 and not seqcycle);
end $$;

-- Raise unless seqs are drawn one by one. For callers that keep a position without holes.
create or replace function headrace_internal.require_one_by_one(p_stream headrace_internal.streams) returns void
language plpgsql as $$
begin
    if not headrace_internal.draws_one_by_one(p_stream.sequence::regclass) then
        raise exception using errcode = 'HR003', message = format(
            'The sequence %s of the stream %L was altered (cache, increment or cycle), so seqs are not drawn one by one, and a position would miss messages: select headrace.mend_sequence(%L).',
            p_stream.sequence, p_stream.name, p_stream.name);
    end if;
end $$;

-- Let the sequence of a stream draw one by one again, and discard what sessions have cached of it. Restarting the
-- sequence at its present value discards the caches. No seq may be drawn meanwhile, so this waits until the
-- transactions that publish have ended, for p_lock_timeout milliseconds at most, and then raises lock_not_available.
-- Returns whether there was anything to repair.
create or replace function headrace.mend_sequence(p_stream text, p_lock_timeout int default 5000) returns boolean
language plpgsql as $$
declare
    v_stream  headrace_internal.streams := headrace_internal.require_stream(p_stream);
    v_last    bigint;
begin
    if headrace_internal.draws_one_by_one(v_stream.sequence::regclass) then
        return false;
    end if;
    perform headrace_internal.set_lock_timeout(p_lock_timeout);
    execute format('alter sequence %s increment 1 no cycle cache 1', v_stream.sequence);     -- this locks the sequence
    v_last := pg_sequence_last_value(v_stream.sequence::regclass);
    execute format('alter sequence %s restart with %s', v_stream.sequence, coalesce(v_last + 1, 1));
    if v_last is not null then
        perform setval(v_stream.sequence::regclass, v_last);     -- otherwise the last value would be unknown until
                                                                 -- the next one is drawn
    end if;
    return true;
end $$;

-- The same for a janitor, without raising. Returns whether the sequence draws one by one now.
-- Granted: admin
create or replace function headrace_internal.try_mend_sequence(p_stream text, p_lock_timeout int) returns boolean
language plpgsql as $$
begin
    perform headrace.mend_sequence(p_stream, p_lock_timeout);
    return true;
exception when lock_not_available then
    return false;
end $$;

-- Check whether the mark is settled, before the holes are searched. If it is, mark_stamp becomes null.
create or replace function headrace_internal.check_mark(
    p_cursor headrace_internal.cursors, p_relation text, p_xmin xid8, p_now timestamptz
) returns headrace_internal.cursors
language plpgsql as $$
declare
    v_holders  text[];
begin
    if p_cursor.mark is null or p_cursor.mark_stamp is null then
        return p_cursor;
    elsif p_xmin >= p_cursor.mark_stamp
          -- Every stamp was the xid of a transaction that has ended. A stamp that this server has not assigned yet
          -- came with a dump from another server, and no transaction of this server has drawn a seq up to its mark.
          or pg_snapshot_xmax(pg_current_snapshot()) <= p_cursor.mark_stamp then
        p_cursor.mark_stamp := null;
    elsif (p_cursor.holes <> '{}' or p_cursor.frozen <> '{}')
          and (p_cursor.suspects_at is null or p_now not between p_cursor.suspects_at and p_cursor.suspects_at + interval '1 second') then
        select coalesce(array_agg(virtualtransaction), '{}') into v_holders
            from pg_locks
            where locktype = 'relation' and mode = 'RowExclusiveLock' and granted and relation = p_relation::regclass
              and database = (select oid from pg_database where datname = current_database());
        p_cursor.suspects := array(
            select holder from unnest(v_holders) as holder
            where p_cursor.suspects is null or holder = any (p_cursor.suspects)
               or holder like '-1/%');     -- a prepared transaction from before the server started, which may have
                                           -- had another name then
        p_cursor.suspects_at := p_now;
        if p_cursor.suspects = '{}' then
            p_cursor.mark_stamp := null;
        end if;
    end if;
    return p_cursor;
end $$;

-- The transaction that can fill a hole drew the seq, and so had its xid, before the snapshot in which the message was
-- missing, so the HOLDERS of a hole are the transactions in progress in that snapshot. The snapshot lists those below
-- its xmax. All others are below the xid that the lease call gets afterwards. A hole is searched again only after one
-- of its holders has ended, and forgotten after all have.
--
-- A transaction that publishes for minutes beside many short ones leaves a hole at each interleaving. If all holders
-- of a hole have been in progress for more than one lease call, the hole is FROZEN: written apart from the cursor,
-- which every lease call writes.
--
-- A hole that is not searched may be filled while a lease call scans fresh messages, so each call determines twice
-- which holders have ended: before it reads anything, and in the snapshot of its scan. If one ended in between, the
-- call discards the scan.

-- The transactions in progress in a snapshot with an xid below p_before. Null if they may be very many.
create or replace function headrace_internal.xids_in_progress(p_snapshot pg_snapshot, p_before xid8) returns xid8[]
language plpgsql as $$
declare
    v_holders  xid8[] := array(select xid from pg_snapshot_xip(p_snapshot) as xid where xid < p_before);
    v_first    bigint := pg_snapshot_xmax(p_snapshot)::text;
    v_last     bigint := p_before::text::bigint - 1;
begin
    if v_last - v_first >= 1000 then
        return null;
    elsif v_last >= v_first then
        v_holders := v_holders || array(select xid::text::xid8 from generate_series(v_first, v_last) as xid);
    end if;
    return v_holders;
end $$;

-- The size in bytes of about 140 holes, up to which they stay in the cursor. Searching these takes a tenth of a
-- millisecond.
create or replace function headrace_internal.max_hole_bytes() returns int language sql immutable as 'select 3000';

-- Write holes apart from the cursor, with their holders.
create or replace function headrace_internal.freeze_holes(p_cursor headrace_internal.cursors, p_holes int8multirange, p_holders xid8[]) returns headrace_internal.cursors
language plpgsql as $$
begin
    p_holders := array(select distinct unnest(p_holders));
    insert into headrace_internal.frozen_holes (consumer_id, holder, lowest, highest, count, holders, holes)
        select p_cursor.consumer_id, holder, lower(p_holes), upper(p_holes) - 1, (select count(*) from unnest(p_holes)), p_holders,
               case when place = 1 then p_holes end
        from unnest(p_holders) with ordinality as h(holder, place);
    if not p_holders <@ p_cursor.frozen then
        p_cursor.frozen := array(select unnest(p_cursor.frozen) union select unnest(p_holders));
    end if;
    return p_cursor;
end $$;

create type headrace_internal.examined_holes as (
    cursor  headrace_internal.cursors,   -- with its changes applied
    until   bigint              -- the last seq that was examined, if there may be more behind it. Otherwise null
);

-- Return the holes of holders that have ended to the cursor, about p_scan_limit of them, from the lowest on. The next
-- search includes them.
-- p_xids_in_progress: all transactions in progress. Any other has ended, or ran in the server that the database was restored
-- from.
create or replace function headrace_internal.thaw_holes(p_cursor headrace_internal.cursors, p_xids_in_progress xid8[], p_scan_limit int) returns headrace_internal.examined_holes
language plpgsql as $$
declare
    v_ended  xid8[] := array(select unnest(p_cursor.frozen) except select unnest(p_xids_in_progress));
    v_until  bigint;
    v_holes  int8multirange;
begin
    with found as materialized (
        select distinct on (lowest) lowest, holders, count from headrace_internal.frozen_holes
        where consumer_id = p_cursor.consumer_id and holder = any (v_ended) order by lowest
    ), counted as materialized (
        select *, coalesce(sum(count) over (order by lowest rows between unbounded preceding and 1 preceding), 0) < p_scan_limit as taken
        from found
    ), gone as (
        delete from headrace_internal.frozen_holes as f using counted as c
        where c.taken and f.consumer_id = p_cursor.consumer_id and f.holder = any (c.holders) and f.lowest = c.lowest
        returning f.holes
    )
    select (select min(lowest) from counted where not taken) - 1,
           (select range_agg(hole) from gone cross join unnest(gone.holes) as hole)
        into v_until, v_holes;
    if v_holes is not null then
        p_cursor.holes := p_cursor.holes + v_holes;
        p_cursor.holders := null;
    end if;
    if v_until is null then
        p_cursor.frozen := array(select unnest(p_cursor.frozen) except select unnest(v_ended));
    end if;
    return row(p_cursor, v_until)::headrace_internal.examined_holes;
end $$;

create type headrace_internal.hole_search as (
    cursor       headrace_internal.cursors,  -- with its changes applied
    search       boolean,           -- whether the holes in the cursor are searched
    until        bigint,            -- the last seq up to which frozen holes were returned, if there are more. Otherwise null
    in_progress  xid8[]             -- the transactions in progress
);

-- Decide whether the holes are searched: if a transaction that can fill them has ended. Then also return the frozen
-- holes of ended holders to the cursor, from the lowest on. While messages are replayed, the frozen holes stay frozen.
create or replace function headrace_internal.find_ended_holders(p_cursor headrace_internal.cursors, p_scan_limit int) returns headrace_internal.hole_search
language plpgsql as $$
declare
    v_thawed  headrace_internal.examined_holes;
    v_result  headrace_internal.hole_search;
begin
    v_result.in_progress := array(select pg_snapshot_xip(pg_current_snapshot()));
    if not p_cursor.frozen <@ v_result.in_progress then
        v_thawed := headrace_internal.thaw_holes(p_cursor, v_result.in_progress, case when p_cursor.replay_floor is null then p_scan_limit else 0 end);
        p_cursor := v_thawed.cursor;
        v_result.until := v_thawed.until;
    end if;
    v_result.cursor := p_cursor;
    v_result.search := p_cursor.holes <> '{}' and (p_cursor.holders <@ v_result.in_progress) is not true;
    return v_result;
end $$;

-- Return all frozen holes to the cursor, before the holes are changed in another way.
create or replace function headrace_internal.thaw_all_holes(p_cursor headrace_internal.cursors) returns headrace_internal.cursors
language plpgsql as $$
begin
    if p_cursor.frozen <> '{}' then
        p_cursor.holes := (select * from headrace_internal.cursor_holes(p_cursor));
        p_cursor.holders := null;
        p_cursor.frozen := '{}';
        delete from headrace_internal.frozen_holes where consumer_id = p_cursor.consumer_id;
    end if;
    return p_cursor;
end $$;

-- Return all holes of a cursor, including the frozen ones. It is inlined, as the next one: a statement that reads cursors reads
-- the frozen holes of the same moment, while a lease call may move them.
create or replace function headrace_internal.cursor_holes(p_cursor headrace_internal.cursors) returns setof int8multirange
language sql stable as $$
    select p_cursor.holes + case when p_cursor.frozen = '{}' then '{}' else coalesce((
        select range_agg(hole) from headrace_internal.frozen_holes as f cross join unnest(f.holes) as hole
        where f.consumer_id = p_cursor.consumer_id), '{}') end
$$;

create or replace function headrace_internal.cursor_lowest_hole(p_cursor headrace_internal.cursors) returns setof bigint
language sql stable as $$
    select case when p_cursor.frozen = '{}' then lower(p_cursor.holes) else least(lower(p_cursor.holes), (
        select min(lowest) from headrace_internal.frozen_holes where consumer_id = p_cursor.consumer_id)) end
$$;

-- Return the newest cursor of a consumer with all of its holes, for functions that only look at it.
create or replace function headrace_internal.newest_cursor(p_consumer int) returns headrace_internal.cursors
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_found   record;
    v_cursor  headrace_internal.cursors;
begin
    select u as cursor, h.holes into v_found
        from (select * from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1) as u
        cross join lateral headrace_internal.cursor_holes(u) as h(holes);
    v_cursor := v_found.cursor;
    v_cursor.holes := v_found.holes;
    return v_cursor;
end $$;

-- Return the SQL that reads the messages in the holes. p_holes_parameter names the statement's parameter that holds the
-- holes. Holes that lie close together are read in one index scan, others are looked up one by one. The bounds are
-- written out for the planner, so that it reads only these segments.
create or replace function headrace_internal.holes_query(
    p_stream headrace_internal.streams, p_holes int8multirange, p_columns text, p_holes_parameter text, p_limit_parameter text
) returns text
language plpgsql as $$
declare
    c_close   constant int := 16;      -- number of messages that are scanned in the time that one hole's lookup takes
    v_source  text := headrace_internal.table_of_range(p_stream, lower(p_holes), upper(p_holes));
begin
    if upper(p_holes) - lower(p_holes) <= c_close * (select count(*) from unnest(p_holes)) then
        return format('select %1$s from %2$s where seq >= lower(%3$s) and seq < upper(%3$s) and seq <@ %3$s order by seq limit %4$s',
                      p_columns, v_source, p_holes_parameter, p_limit_parameter);
    end if;
    return format('select m.* from unnest(%3$s) as hole cross join lateral (
                       select %1$s from %2$s
                       where seq >= lower(hole) and seq < upper(hole) and seq >= lower(%3$s) and seq < upper(%3$s)
                       order by seq limit %4$s) as m
                   order by m.seq limit %4$s', p_columns, v_source, p_holes_parameter, p_limit_parameter);
end $$;

-- The number of seqs after which a mark is taken although nothing is missing. What looks for open transactions begins at
-- the last mark that was settled, see headrace_internal.lowest_open_seq.
create or replace function headrace_internal.mark_interval() returns int language sql immutable as 'select 1000';

-- Whether a lease call must drop the mark or take the next one, although there are no holes. A stamp that no transaction
-- of this server has reached is from another server, and is dropped immediately. It is inlined.
create or replace function headrace_internal.must_tend_mark(p_position bigint, p_settled bigint, p_stamp xid8, p_mark bigint) returns boolean
language sql stable as $$
    select case when p_mark is null then p_position - p_settled >= headrace_internal.mark_interval()
                else p_stamp is null or pg_snapshot_xmin(pg_current_snapshot()) >= p_stamp
                     or pg_snapshot_xmax(pg_current_snapshot()) <= p_stamp end
$$;

-- Compute the next cursor after the scan, whose late arrivals are no holes any more. Add the seqs that are missing now,
-- forget or freeze the holes that can't be filled now, drop what is settled, and take the next mark. The other
-- parameters are fields of headrace_internal.scanned, which as a whole would be copied with all its messages.
-- p_searched: whether the holes were searched. If not, none of their holders has ended.
-- p_drawn: the last seq that was drawn, see headrace_internal.read_ahead. Null if the sequence does not draw one by one, as
-- read before the scan.
-- p_had_xid: whether this transaction had its xid before the scan.
create or replace function headrace_internal.advance_cursor(
    p_cursor headrace_internal.cursors, p_position bigint, p_missing int8multirange, p_searched boolean, p_holes_searched boolean,
    p_snapshot pg_snapshot, p_drawn bigint, p_had_xid boolean
) returns headrace_internal.cursors
language plpgsql as $$
declare
    v_missed   boolean := p_missing is not null;
    v_old      xid8[];                  -- holders of the holes that were there before
    v_new      xid8[];                  -- holders of the new holes
begin
    if p_cursor.mark is not null and p_cursor.mark_stamp is null and p_holes_searched then
        p_cursor.settled := p_cursor.mark;
        p_cursor.mark := null;
        p_cursor.suspects := null;
        p_cursor.suspects_at := null;
        p_cursor.holes := p_cursor.holes * int8multirange(int8range(p_cursor.settled + 1, null));
        if p_cursor.frozen <> '{}' then
            delete from headrace_internal.frozen_holes where consumer_id = p_cursor.consumer_id and highest <= p_cursor.settled;
            p_cursor.frozen := array(select distinct holder from headrace_internal.frozen_holes where consumer_id = p_cursor.consumer_id);
        end if;
    end if;
    p_missing := coalesce(p_missing, '{}');
    if lower(p_missing) <= p_cursor.settled then
        p_missing := p_missing * int8multirange(int8range(p_cursor.settled + 1, null));
    end if;

    if p_drawn is null then
        p_cursor.holes := p_cursor.holes + p_missing;
        p_cursor.holders := null;
    elsif p_cursor.holes <> '{}' or p_missing <> '{}' then
        if p_cursor.holes = '{}' then
            v_old := '{}';
        elsif not p_searched then
            v_old := p_cursor.holders;
        elsif p_holes_searched then     -- a holder that has ended can't fill a hole that was searched without success
            v_old := headrace_internal.xids_in_progress(p_snapshot, pg_current_xact_id());
            v_old := case when p_cursor.holders is null then v_old
                          else array(select unnest(p_cursor.holders) intersect select unnest(v_old)) end;
            p_cursor.holes := case when v_old = '{}' then '{}' else p_cursor.holes end;
        end if;
        if p_missing = '{}' then
            v_new := '{}';
        elsif not p_had_xid then
            v_new := headrace_internal.xids_in_progress(p_snapshot, pg_current_xact_id());
            p_missing := case when v_new = '{}' then '{}' else p_missing end;
        end if;
        if v_old is not null and v_new <@ (v_old || p_cursor.frozen) then   -- the cursor has these holders already
            p_cursor.holes := p_cursor.holes + p_missing;
            p_missing := '{}';
            if v_old = '{}' then
                v_old := v_new;
            elsif not v_new <@ v_old then
                v_old := array(select unnest(v_old) union select unnest(v_new));
            end if;
            v_new := '{}';
        end if;
        if v_old is not null and pg_column_size(p_cursor.holes) > headrace_internal.max_hole_bytes() then
            p_cursor := headrace_internal.freeze_holes(p_cursor, p_cursor.holes, v_old);
            p_cursor.holes := '{}';
            v_old := '{}';
        end if;
        p_cursor.holes := p_cursor.holes + p_missing;
        if v_new = '{}' then
            p_cursor.holders := v_old;
        elsif v_old is null or v_new is null then
            p_cursor.holders := null;
        else
            p_cursor.holders := array(select unnest(v_old) union select unnest(v_new));
        end if;
    end if;
    p_cursor.position := p_position;
    if p_cursor.mark is null and p_drawn is not null and (
           v_missed or p_cursor.holes <> '{}' or p_cursor.frozen <> '{}' or p_position - p_cursor.settled >= headrace_internal.mark_interval()) then
        p_cursor.mark := p_drawn;
        p_cursor.mark_stamp := pg_current_xact_id();
    end if;
    return p_cursor;
end $$;

-- Park late arrivals of parked keys, before any parked message is picked. They come first in their key.
create or replace function headrace_internal.park_late_arrivals(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_cursor headrace_internal.cursors, p_scan_limit int
) returns headrace_internal.examined_holes
language plpgsql as $$
declare
    v_late  record;
begin
    execute format($sql$
        with late as materialized (%s)
        select array_agg(seq) filter (where waits) as seqs, array_agg(hash) filter (where waits) as hashes,
               range_agg(int8range(seq, seq + 1)) filter (where waits) as seen, case when count(*) >= $4 then max(seq) end as until
        from (
            select seq, hash, wanted and hash in (select unnest(headrace_internal.filter_waiting_keys(
                array(select distinct hash from late where wanted), $1, true, false, $3, 0))) as waits
            from late) as l
        $sql$, headrace_internal.holes_query(p_stream, p_cursor.holes, format('seq, hashtextextended(key, 0) as hash, (%s) as wanted', p_consumer.condition),
                                 '$2', '$4'))
        into v_late
        using p_consumer.id, p_cursor.holes, p_cursor.parked_floor, p_scan_limit;
    if v_late.seqs is not null then
        perform headrace_internal.park_by_key(p_consumer.id, v_late.seqs, v_late.hashes, p_cursor.parked_floor, true, false);
        p_cursor.holes := p_cursor.holes - v_late.seen;
        p_cursor.parked_floor := least(p_cursor.parked_floor, v_late.seqs[1]);
        p_cursor.ready_floor := least(p_cursor.ready_floor, v_late.seqs[1]);
    end if;
    return row(p_cursor, v_late.until)::headrace_internal.examined_holes;
end $$;

-- Write the cursor's next version, if it differs. See the table.
create or replace function headrace_internal.write_cursor(p_cursor headrace_internal.cursors, p_next headrace_internal.cursors) returns void
language plpgsql as $$
begin
    if p_next is distinct from p_cursor then
        p_next.version := p_cursor.version + 1;
        insert into headrace_internal.cursors select p_next.*;
        delete from headrace_internal.cursors where consumer_id = p_cursor.consumer_id and version = p_cursor.version;
    end if;
end $$;
