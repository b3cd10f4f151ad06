-- cancellations: a consumer is done with messages that its handler has not handled, because an operator says so.
--
-- A message that waits in a table of the consumer is removed there. Nothing more is needed, and its key continues.
--
-- A message that the consumer has not read yet, or that is at work, has a pending row in headrace_internal.cancellations, and
-- the consumer's cursor says that there is one. Without that, no lease call looks. A lease call reads such a message as if
-- it did not match the consumer's filter.
--
-- A message at work stays in its lease until the lease settles it or expires, so its key is busy as long as its handler is
-- at it. Then an ack counts. Any other outcome ends the message (headrace_internal.put_back), so it is not delivered again
-- whatever becomes of its process. A cancellation locks the leases of its messages, as an ack in a transaction does, so a
-- settle that puts a message back has ended before, or sees the request.
--
-- A process hears of requests when it looks at the history of the database (headrace_internal.watched), several times in the
-- wait for a lease.
--
-- Ended rows are kept for the journeys of messages, as far as there is room, until the messages are to be delivered again.

-- Return a condition over the columns of a message that the consumer has not read yet: it matches, and is not cancelled.
create or replace function headrace_internal.unread_condition(p_consumer headrace_internal.consumers, p_position bigint) returns text
language plpgsql set enable_seqscan = off as $$
declare
    v_cancelled  int8multirange;
begin
    select range_agg(int8range(seq, seq + 1)) into v_cancelled from headrace_internal.cancellations
        where consumer_id = p_consumer.id and ended_at is null and (lease_id is null or seq > p_position);
    return case when v_cancelled is null then p_consumer.condition
                else format('(%s) and not seq <@ %L::int8multirange', p_consumer.condition, v_cancelled) end;
end $$;

-- End the requests whose messages the consumer has read and no lease has any more. Returns whether others are pending. The
-- caller has the consumer's lock.
create or replace function headrace_internal.end_cancellations(p_cursor headrace_internal.cursors, p_now timestamptz) returns boolean
language plpgsql set enable_seqscan = off as $$
begin
    update headrace_internal.cancellations set ended_at = p_now, outcome = case when lease_id is null then 'cancelled' else 'finished' end
        where consumer_id = p_cursor.consumer_id and ended_at is null and seq <= p_cursor.position
          and not seq <@ (select * from headrace_internal.cursor_holes(p_cursor))
          and seq not in (select m.seq from headrace_internal.leases as l cross join headrace_internal.messages_of_lease(l) as m
                          where l.consumer_id = p_cursor.consumer_id and l.lease_id >= p_cursor.lease_floor);
    return exists (select from headrace_internal.cancellations where consumer_id = p_cursor.consumer_id and ended_at is null);
end $$;

-- Forget the requests that have ended of messages above a position that a consumer is moved to, since they are delivered
-- again. A pending one holds for its message wherever it is. Returns whether any is pending. p_position: null for the end.
create or replace function headrace_internal.move_cancellations(p_consumer int, p_position bigint) returns boolean
language plpgsql set enable_seqscan = off as $$
begin
    delete from headrace_internal.cancellations where consumer_id = p_consumer and ended_at is not null and seq > p_position;
    update headrace_internal.cancellations as c set lease_id = null
        where consumer_id = p_consumer and ended_at is null and lease_id is not null
          and not exists (select from headrace_internal.leases as l where l.consumer_id = p_consumer and l.lease_id = c.lease_id);
    return exists (select from headrace_internal.cancellations where consumer_id = p_consumer and ended_at is null);
end $$;

-- Forget the requests of messages that are to be replayed. None of these is at work. A request may be pending, if its message
-- was acked in a transaction that left its lease.
create or replace function headrace_internal.forget_replayed_cancellations(p_consumer int) returns void
language plpgsql set enable_seqscan = off as $$
begin
    delete from headrace_internal.cancellations as c
        where c.consumer_id = p_consumer and exists (select from headrace_internal.replays as r where r.consumer_id = p_consumer and r.seq = c.seq);
end $$;

-- Make room for requests of a consumer, by forgetting the oldest ones that have ended. Raises if too many are pending.
create or replace function headrace_internal.make_room_for_cancellations(p_consumer int, p_count int) returns void
language plpgsql set enable_seqscan = off as $$
declare
    c_most     constant int := 10000;   -- per consumer
    v_pending  int;
    v_ended    int;
begin
    select count(*) filter (where ended_at is null), count(ended_at) into v_pending, v_ended
        from headrace_internal.cancellations where consumer_id = p_consumer;
    if v_pending + p_count > c_most then
        raise exception using errcode = 'HR004', message = format(
            'The cancellations of %s messages are pending, and a consumer has at most %s at a time: cancel further ones when it has passed these, or move it with seek.',
            v_pending, c_most);
    end if;
    delete from headrace_internal.cancellations where consumer_id = p_consumer and seq = any (array(
        select seq from headrace_internal.cancellations where consumer_id = p_consumer and ended_at is not null
        order by ended_at, seq limit greatest(v_pending + v_ended + p_count - c_most, 0)));
end $$;

-- Cancel messages of a consumer.
-- p_by: who asks. Null for the role of the session.
-- `cancelled`: they were waiting, and will not be handled. `stopping`: they are at work. `others`: neither. They are done, dead
-- letters, not wanted by the consumer, or not in the stream.
-- Granted: admin
create or replace function headrace_internal.cancel_messages(
    p_consumer int, p_seqs bigint[], p_by text, p_now timestamptz default clock_timestamp(),
    out cancelled bigint[], out stopping bigint[], out others bigint[]
)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_consumer  headrace_internal.consumers;
    v_stream    headrace_internal.streams;
    v_cursor    headrace_internal.cursors;
    v_removed   record;
    v_unread    bigint[];
begin
    perform headrace_internal.require_read_committed('headrace_internal.cancel_messages');
    v_consumer := headrace_internal.lock_consumer(p_consumer);
    select * into v_stream from headrace_internal.streams where id = v_consumer.stream_id;
    select * into v_cursor from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1;
    perform from headrace_internal.leases as l
        where consumer_id = p_consumer and lease_id >= v_cursor.lease_floor
          and exists (select from headrace_internal.messages_of_lease(l) as m where m.seq = any (p_seqs))
        order by lease_id for key share;
    perform headrace_internal.end_cancellations(v_cursor, p_now);
    perform headrace_internal.make_room_for_cancellations(p_consumer, cardinality(p_seqs));
    stopping := array(select i.seq from headrace_internal.in_flight_seqs(p_consumer, v_cursor.lease_floor) as i(seq) where i.seq = any (p_seqs));
    v_removed := headrace_internal.remove_waiting(v_cursor, p_seqs, false);
    cancelled := array(select unnest(v_removed.removed) except select unnest(stopping));
    v_unread := array(
        select seq from unnest(p_seqs) as seq
        where seq > v_cursor.position or seq <@ (select * from headrace_internal.cursor_holes(v_cursor))
        except select unnest(stopping) except select unnest(cancelled));
    if v_unread <> '{}' then
        execute format('select coalesce(array_agg(seq), ''{}'') from %s where seq = any ($1) and (%s)', v_stream.relation,
                       headrace_internal.unexpired(v_consumer.condition, p_now)) into v_unread using v_unread;
    end if;
    insert into headrace_internal.cancellations as c (consumer_id, seq, requested_at, requested_by, lease_id, ended_at, outcome)
        select p_consumer, m.seq, p_now, coalesce(p_by, session_user),
               (select max(l.lease_id) from headrace_internal.leases as l
                where m.state = 'stopping' and l.consumer_id = p_consumer and l.lease_id >= v_cursor.lease_floor and m.seq in (select k.seq from headrace_internal.messages_of_lease(l) as k)),
               case when m.state = 'cancelled' then p_now end, case when m.state = 'cancelled' then 'cancelled' end
        from (select seq, 'cancelled' as state from unnest(cancelled) as seq
              union all select seq, 'stopping' from unnest(stopping) as seq
              union all select seq, 'unread' from unnest(v_unread) as seq) as m
        order by m.seq
        on conflict (consumer_id, seq) do update
            set requested_at = excluded.requested_at, requested_by = excluded.requested_by, lease_id = excluded.lease_id,
                ended_at = excluded.ended_at, outcome = excluded.outcome
            where c.ended_at is not null or excluded.ended_at is not null;
    cancelled := cancelled || v_unread;
    others := array(select unnest(p_seqs) except select unnest(cancelled) except select unnest(stopping));
    v_removed.next.cancelling := exists (select from headrace_internal.cancellations where consumer_id = p_consumer and ended_at is null);
    perform headrace_internal.write_cursor(v_cursor, v_removed.next);
    if v_removed.removed is not null then
        perform headrace_internal.notify_stream(v_stream.id);
    end if;
end $$;

-- Cancel the messages of a key that wait for a consumer, in steps. Those at work are left to their handlers.
-- p_above: how far the last step came. p_until: the last seq that is meant, as the first step returned it. Null for the last
-- one that was drawn, so that no later message is meant.
-- `reached`: how far this step came. The steps end when it is `until`.
-- Granted: admin
create or replace function headrace_internal.cancel_key(
    p_consumer int, p_key text, p_above bigint, p_until bigint, p_by text, p_scan_limit int default 10000,
    p_now timestamptz default clock_timestamp(), out cancelled bigint[], out reached bigint, out until bigint
)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    c_hash      constant bigint := hashtextextended(p_key, 0);
    c_messages  constant int := 1000;
    v_consumer  headrace_internal.consumers;
    v_stream    headrace_internal.streams;
    v_cursor    headrace_internal.cursors;
    v_holes     int8multirange;
    v_seqs      bigint[];
    v_found     record;
begin
    perform headrace_internal.require_read_committed('headrace_internal.cancel_key');
    v_consumer := headrace_internal.lock_consumer(p_consumer);
    select * into v_stream from headrace_internal.streams where id = v_consumer.stream_id;
    v_cursor := headrace_internal.newest_cursor(p_consumer);
    until := coalesce(p_until, headrace_internal.last_drawn_seq(v_stream));
    reached := until;
    v_seqs := '{}';
    -- Each of these reads a bounded number of rows, and the step ends where the first of them does.
    for v_found in
        (select seq, row_number() over (order by seq) as place, true as of_key, c_messages as most from (
            select seq from headrace_internal.parked
            where consumer_id = p_consumer and (key_hash, seq) > (c_hash, p_above) and key_hash <= c_hash and seq <= until
            order by key_hash, seq limit c_messages) as p)
        union all
        (select seq, row_number() over (order by seq), true, c_messages from (
            select seq from headrace_internal.tails
            where consumer_id = p_consumer and (key_hash, seq) > (c_hash, p_above) and key_hash <= c_hash and seq <= until
            order by key_hash, seq limit c_messages) as t)
        union all
        (select seq, row_number() over (order by seq), key_hash = c_hash, p_scan_limit from (
            select seq, key_hash from headrace_internal.replays
            where consumer_id = p_consumer and seq > p_above and seq <= until order by seq limit p_scan_limit) as r)
    loop
        if v_found.of_key then
            v_seqs := v_seqs || v_found.seq;
        end if;
        if v_found.place = v_found.most then
            reached := least(reached, v_found.seq);
        end if;
    end loop;
    v_holes := v_cursor.holes * int8multirange(int8range(p_above + 1, until + 1)) * int8multirange(int8range(null, v_cursor.position + 1));
    if v_holes <> '{}' then
        execute format('select array_agg(seq) filter (where key = $3) as seqs, case when count(*) >= $2 then max(seq) end as reached from (%s) as m',
                       headrace_internal.holes_query(v_stream, v_holes, 'seq, key', '$1', '$2'))
            into v_found using v_holes, p_scan_limit, p_key;
        v_seqs := v_seqs || v_found.seqs;
        reached := least(reached, v_found.reached);
    end if;
    if greatest(p_above, v_cursor.position) < until then
        execute format('select array_agg(seq) filter (where key = $4) as seqs, case when count(*) >= $3 then max(seq) end as reached
                        from (select seq, key from %s where seq > $1 and seq <= $2 order by seq limit $3) as m', v_stream.relation)
            into v_found using greatest(p_above, v_cursor.position), until, p_scan_limit, p_key;
        v_seqs := v_seqs || v_found.seqs;
        reached := least(reached, v_found.reached);
    end if;
    -- Only up to where all of these have read, only those of the key itself, and none that is at work.
    execute format('select array_agg(seq) from %s where seq = any ($1) and key = $2', v_stream.relation) into v_seqs
        using array(select distinct seq from unnest(v_seqs) as seq where seq <= reached
                    except select i.seq from headrace_internal.in_flight_seqs(p_consumer, v_cursor.lease_floor) as i(seq)), p_key;
    cancelled := '{}';
    if v_seqs is not null then
        select c.cancelled into cancelled from headrace_internal.cancel_messages(p_consumer, v_seqs, p_by, p_now) as c;
    end if;
end $$;

-- Cancel the message that holds a unique key. `scheduled`: it is not published yet, so no consumer can have done with it. For
-- the others see headrace_internal.cancel_messages. They are empty if there is no message.
-- Granted: admin
create or replace function headrace_internal.cancel_unique(
    p_consumer int, p_unique_key text, p_by text, p_now timestamptz default clock_timestamp(),
    out cancelled bigint[], out stopping bigint[], out others bigint[], out scheduled boolean
)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_last  record;
begin
    select last.* into v_last
        from headrace_internal.consumers as c cross join lateral headrace_internal.last_unique(c.stream_id, array[p_unique_key]) as last
        where c.id = p_consumer;
    scheduled := coalesce(v_last.scheduled, false);
    select c.cancelled, c.stopping, c.others into cancelled, stopping, others
        from headrace_internal.cancel_messages(
            p_consumer, case when v_last.seq is null then '{}' else array[v_last.seq] end::bigint[], p_by, p_now) as c;
end $$;

-- Return the identity of the history, and the messages at work in these consumers whose cancellation is requested, by their
-- leases. At most p_limit: what is settled makes room for others.
-- Granted: consume
create or replace function headrace_internal.watched(p_consumers int[], p_limit int default 1000)
returns table (history uuid, lease_id bigint, seqs bigint[])
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
begin
    return query
        select headrace_internal.history_identity(headrace_internal.timeline_identity(h.id, h.xmin)), c.lease_id, c.seqs
        from (select id, xmin from headrace_internal.history order by id limit 1) as h
        left join (
            select r.lease_id, array_agg(r.seq) as seqs
            from (select p.lease_id, p.seq from unnest(p_consumers) as consumer cross join lateral (
                      select q.lease_id, q.seq from headrace_internal.cancellations as q
                      where q.consumer_id = consumer and q.ended_at is null and q.lease_id is not null limit p_limit) as p
                  limit p_limit) as r
            group by r.lease_id) as c on true;
end $$;
