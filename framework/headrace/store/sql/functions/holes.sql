-- The gap-aware cursor. Sequence numbers are drawn before commit, so they become visible out of order. A cursor is therefore
-- a position AND the holes below it: what was missing when the position passed. Each lease looks into the holes first.
--
-- A hole may be forgotten once nothing can fill it any more. Who fills it had his xid before he drew the seq, and drew it
-- before a later seq was seen; so his xid is smaller than that of any LATER lease. Two generations of holes are kept: the
-- old ones are stamped with the xid of a lease after the one that saw the last of them, and are dropped when xmin, read
-- before they were searched, has reached that stamp. Then the young ones take their place.
--
-- When an unrelated old transaction pins xmin, that never comes. Then pg_locks is asked: whoever inserted into the stream's
-- table holds a row-exclusive lock on it until his end, and becomes visible before he gives it up. The old holes are dropped
-- when everybody who held it at some time after they were seen is gone.

-- Before the holes are searched: is it settled that nothing can still come into the old ones? If so, old_stamp is null.
create function headrace.suspect(
    p_cursor headrace.cursors, p_relation text, p_xmin xid8, p_now timestamptz
) returns headrace.cursors
language plpgsql as $$
declare
    v_holders  text[];
begin
    if p_cursor.old_holes = '{}' then
        return p_cursor;
    elsif p_xmin >= p_cursor.old_stamp then
        p_cursor.old_stamp := null;
    elsif p_cursor.suspects_at is null or p_now not between p_cursor.suspects_at and p_cursor.suspects_at + interval '1 second' then
        select coalesce(array_agg(virtualtransaction), '{}') into v_holders
            from pg_locks
            where locktype = 'relation' and mode = 'RowExclusiveLock' and granted and relation = p_relation::regclass
              and database = (select oid from pg_database where datname = current_database());
        p_cursor.suspects := array(
            select holder from unnest(v_holders) as holder
            where p_cursor.suspects is null or holder = any (p_cursor.suspects));
        p_cursor.suspects_at := p_now;
        if p_cursor.suspects = '{}' then
            p_cursor.old_stamp := null;
        end if;
    end if;
    return p_cursor;
end $$;

-- After they were searched: take out what came, let the generations move on, add what is missing now.
create function headrace.advance(p_cursor headrace.cursors, p_scanned headrace.scanned) returns headrace.cursors
language plpgsql as $$
begin
    if p_scanned.late is not null then
        p_cursor.old_holes := p_cursor.old_holes - p_scanned.late;
        p_cursor.young_holes := p_cursor.young_holes - p_scanned.late;
    end if;
    if p_cursor.old_stamp is null and p_scanned.holes_searched then
        p_cursor.old_holes := '{}';
    end if;
    if p_cursor.old_holes = '{}' then
        p_cursor.old_holes := p_cursor.young_holes;
        p_cursor.young_holes := '{}';
        p_cursor.old_stamp := case when p_cursor.old_holes <> '{}' then pg_current_xact_id() end;
        p_cursor.suspects := null;
        p_cursor.suspects_at := null;
    end if;
    if p_scanned.missing is not null then
        p_cursor.young_holes := p_cursor.young_holes + p_scanned.missing;
    end if;
    p_cursor.position := p_scanned.position;
    return p_cursor;
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
