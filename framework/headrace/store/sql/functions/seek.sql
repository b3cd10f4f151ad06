-- seek: move a consumer to any place, forward or back. What was in flight ends: its leases are deleted, and with them every
-- ack that is still on its way. One cursor row, whatever the length of the history.

-- p_position: the next message delivered is the first one above; null for the end, that is only what commits from now on.
create function headrace.seek(p_consumer int, p_position bigint) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_relation  text;
    v_cursor    headrace.cursors;
    v_next      headrace.cursors;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using errcode = 'HR003', message =
            'headrace.seek must run under read committed: each of its reads must see the newest state.';
    end if;
    perform pg_advisory_xact_lock(1212498508, p_consumer);
    select s.relation into v_relation
        from headrace.consumers as c join headrace.streams as s on s.id = c.stream_id where c.id = p_consumer;
    if not found then
        raise exception using errcode = 'HR002', message = 'The consumer no longer exists: declare it again.';
    end if;
    select * into v_cursor from headrace.cursors where consumer_id = p_consumer order by version desc limit 1;
    delete from headrace.leases where consumer_id = p_consumer;
    delete from headrace.parked where consumer_id = p_consumer;
    delete from headrace.blocked where consumer_id = p_consumer;
    update headrace.dead_letters set blocks = false where consumer_id = p_consumer and blocks;

    v_next := v_cursor;
    v_next.young_holes := '{}';
    v_next.old_holes := '{}';
    v_next.old_stamp := null;
    v_next.suspects := null;
    v_next.suspects_at := null;
    v_next.lease_floor := headrace.new_lease_id();
    v_next.position := p_position;
    v_next.parked_floor := p_position;
    if p_position is null then
        -- The end, and the holes below it: who has drawn a seq there commits after now, and so is wanted. Holes can only
        -- be open while somebody holds the lock of an insert, so the walk for them is rare. The lock is asked for after the
        -- end was read, never before, or who took it in between would be forgotten.
        execute format('select coalesce(max(seq), 0) from %s', v_relation) into v_next.position;
        if exists (select from pg_locks where locktype = 'relation' and mode = 'RowExclusiveLock' and granted
                   and relation = v_relation::regclass
                   and database = (select oid from pg_database where datname = current_database())) then
            execute format($sql$
                select coalesce(max(seq), 0), coalesce(range_agg(int8range(previous + 1, seq)) filter (where seq > previous + 1), '{}')
                from (select seq, lag(seq, 1, 0::bigint) over (order by seq) as previous from %s) as s
                $sql$, v_relation) into v_next.position, v_next.young_holes;
        end if;
        v_next.parked_floor := 0;
    end if;
    perform headrace.move(v_cursor, v_next);
    return v_next.position;
end $$;
