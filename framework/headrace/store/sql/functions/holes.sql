-- The gap-aware cursor. Sequence numbers are drawn before commit, so they become visible out of order. A cursor is therefore
-- a position AND the holes below it: what was missing when the position passed. Each lease looks into the holes first.
--
-- A hole may be forgotten once nothing can fill it any more. Who fills it had his xid before he drew the seq. So a lease notes a
-- MARK, the last seq that anybody had drawn before the lease got an xid, and that xid as its stamp: whoever drew a seq up to
-- the mark has a smaller one. (The xmax of a snapshot would not do: there may be larger xids at work already.) Once xmin, read before the holes were searched, has reached the stamp, all of them have ended:
-- the holes up to the mark are dropped, and from then on none is noted down there any more, however many seqs are missing in a
-- history that was rolled back, compacted or removed. Then the next mark is taken.
--
-- All this stands on seqs that are drawn one by one, by transactions that have their xid and their lock. A sequence with a cache hands out
-- numbers to sessions, which use them up in transactions to come. No mark is taken while there is one: then holes are kept, however
-- many they become, and whatever comes in them is delivered. See headrace.mend_sequence.
--
-- When an unrelated old transaction pins xmin, that never comes. Then pg_locks is asked: whoever publishes holds a row-exclusive
-- lock on the stream's table from before he draws a seq until his end, and becomes visible before he gives it up. The mark is
-- settled when everybody who held it at some time after the mark was taken is gone.

-- Whether each seq is drawn by the transaction that uses it, and is larger than all before.
create function headrace.draws_one_by_one(p_sequence regclass) returns boolean
language plpgsql stable as $$
begin
    -- Not pg_sequence_parameters, which asks for a privilege on the sequence.
    return exists (select from pg_sequence where seqrelid = p_sequence and seqcache = 1 and seqincrement > 0 and not seqcycle);
end $$;

-- Raise unless it is so, for those who keep a position without holes.
create function headrace.require_one_by_one(p_stream headrace.streams) returns void
language plpgsql stable as $$
begin
    if not headrace.draws_one_by_one(p_stream.sequence::regclass) then
        raise exception using errcode = 'HR003', message = format(
            'The sequence %s of the stream %L was altered (cache, increment or cycle), so seqs are not drawn one by one, and a position would miss messages: select headrace.mend_sequence(%L).',
            p_stream.sequence, p_stream.name, p_stream.name);
    end if;
end $$;

-- Let the sequence of a stream draw one by one again, and forget what sessions have cached of it: to begin the sequence anew, where it
-- is, is what discards that. Nobody draws meanwhile, so this waits until those who publish have ended, p_patience milliseconds at
-- most, and then raises lock_not_available. Returns whether there was anything to mend.
create function headrace.mend_sequence(p_stream text, p_patience int default 5000) returns boolean
language plpgsql as $$
declare
    v_stream  headrace.streams := headrace.stream_named(p_stream);
    v_last    bigint;
begin
    if headrace.draws_one_by_one(v_stream.sequence::regclass) then
        return false;
    end if;
    perform headrace.be_patient(p_patience);
    execute format('alter sequence %s increment 1 no cycle cache 1', v_stream.sequence);     -- from here on it is locked
    v_last := pg_sequence_last_value(v_stream.sequence::regclass);
    execute format('alter sequence %s restart with %s', v_stream.sequence, coalesce(v_last + 1, 1));
    if v_last is not null then
        perform setval(v_stream.sequence::regclass, v_last);     -- or the last value would be unknown until the next is drawn
    end if;
    return true;
end $$;

-- The same, for a janitor: whether it is mended now.
create function headrace.try_mend_sequence(p_stream text, p_patience int) returns boolean
language plpgsql as $$
begin
    perform headrace.mend_sequence(p_stream, p_patience);
    return true;
exception when lock_not_available then
    return false;
end $$;

-- Before the holes are searched: is the mark settled? If so, mark_stamp is null.
create function headrace.suspect(
    p_cursor headrace.cursors, p_relation text, p_xmin xid8, p_now timestamptz
) returns headrace.cursors
language plpgsql as $$
declare
    v_holders  text[];
begin
    if p_cursor.mark is null or p_cursor.mark_stamp is null then
        return p_cursor;
    elsif p_xmin >= p_cursor.mark_stamp
          -- Every stamp was somebody's xid that has ended. One that was not given here yet came with a dump from another server, and
          -- no transaction of this one has drawn a seq up to its mark.
          or pg_snapshot_xmax(pg_current_snapshot()) <= p_cursor.mark_stamp then
        p_cursor.mark_stamp := null;
    elsif p_cursor.holes <> '{}'
          and (p_cursor.suspects_at is null or p_now not between p_cursor.suspects_at and p_cursor.suspects_at + interval '1 second') then
        select coalesce(array_agg(virtualtransaction), '{}') into v_holders
            from pg_locks
            where locktype = 'relation' and mode = 'RowExclusiveLock' and granted and relation = p_relation::regclass
              and database = (select oid from pg_database where datname = current_database());
        p_cursor.suspects := array(
            select holder from unnest(v_holders) as holder
            where p_cursor.suspects is null or holder = any (p_cursor.suspects)
               or holder like '-1/%');     -- a prepared transaction from before the server was started; it may have had another name then
        p_cursor.suspects_at := p_now;
        if p_cursor.suspects = '{}' then
            p_cursor.mark_stamp := null;
        end if;
    end if;
    return p_cursor;
end $$;

-- After they were searched: take out what came, forget what is settled, add what is missing now, take the next mark.
-- The others are of headrace.scanned, which as a whole would be copied with all its messages.
-- p_drawn: the last seq that was drawn, read before this transaction had an xid, and before it is asked how p_sequence draws.
create function headrace.advance(
    p_cursor headrace.cursors, p_position bigint, p_missing int8multirange, p_late int8multirange, p_holes_searched boolean,
    p_drawn bigint, p_sequence regclass
) returns headrace.cursors
language plpgsql as $$
declare
    v_moved  boolean := p_position > p_cursor.position;
begin
    if p_late is not null then
        p_cursor.holes := p_cursor.holes - p_late;
    end if;
    if p_missing is not null then
        p_cursor.holes := p_cursor.holes + p_missing;
    end if;
    p_cursor.position := p_position;
    if p_cursor.mark is not null and p_cursor.mark_stamp is null and p_holes_searched then
        p_cursor.settled := p_cursor.mark;
        p_cursor.mark := null;
        p_cursor.suspects := null;
        p_cursor.suspects_at := null;
    end if;
    if p_cursor.holes <> '{}' then
        p_cursor.holes := p_cursor.holes * int8multirange(int8range(p_cursor.settled + 1, null));
    end if;
    if p_cursor.mark is null and (v_moved or p_cursor.holes <> '{}') and headrace.draws_one_by_one(p_sequence) then
        p_cursor.mark := p_drawn;
        p_cursor.mark_stamp := pg_current_xact_id();
    end if;
    return p_cursor;
end $$;

create type headrace.admitted as (
    cursor  headrace.cursors,   -- without the holes of those that were let in, and with a floor below them
    count   int,                -- how many
    until   bigint              -- what was looked at ends here, if there may be more
);

-- Late arrivals of keys that are parked are parked with them, before any of these is picked: they come first in their key.
create function headrace.let_in(
    p_consumer headrace.consumers, p_stream headrace.streams, p_cursor headrace.cursors, p_look int
) returns headrace.admitted
language plpgsql as $$
declare
    v_late    int8multirange;
    v_lowest  bigint;
    v_count   int;
    v_until   bigint;
begin
    execute format($sql$
        with late as materialized (
            select m.seq, m.hash, m.wanted from unnest($2) as hole cross join lateral (
                select seq, hashtextextended(key, 0) as hash, (%2$s) as wanted from %1$s
                where seq >= lower(hole) and seq < upper(hole)
                  and seq >= lower($2) and seq < upper($2) order by seq limit $4) as m    -- said twice for the planner: only these segments
            order by m.seq limit $4
        ), parked as (
            insert into headrace.parked (consumer_id, seq, key_hash, attempts, due_at)
            select $1, seq, hash, 0, '-infinity' from late
            where wanted and exists (
                select from headrace.parked as p where p.consumer_id = $1 and p.key_hash = hash and p.seq >= $3)
            on conflict do nothing
            returning seq
        )
        select range_agg(int8range(seq, seq + 1)), min(seq), count(*),
               (select case when count(*) >= $4 then max(seq) end from late)
        from parked
        $sql$, headrace.source(p_stream, lower(p_cursor.holes), upper(p_cursor.holes)), p_consumer.condition)
        into v_late, v_lowest, v_count, v_until
        using p_consumer.id, p_cursor.holes, p_cursor.parked_floor, p_look;
    if v_late is not null then
        p_cursor.holes := p_cursor.holes - v_late;
        p_cursor.parked_floor := least(p_cursor.parked_floor, v_lowest);
    end if;
    return row(p_cursor, v_count, v_until)::headrace.admitted;
end $$;

-- Write the cursor's next version, if it differs; see the table.
create function headrace.move(p_cursor headrace.cursors, p_next headrace.cursors) returns void
language plpgsql as $$
begin
    if p_next is distinct from p_cursor then
        p_next.version := p_cursor.version + 1;
        insert into headrace.cursors select p_next.*;
        delete from headrace.cursors where consumer_id = p_cursor.consumer_id and version = p_cursor.version;
    end if;
end $$;
