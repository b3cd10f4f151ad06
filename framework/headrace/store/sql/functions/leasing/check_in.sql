-- check_in: an owner compares its leases with the store, and keeps the keys of the messages that it is at.
--
-- A rewind (see history.sql) reverts leases, and settles of leases. An owner that works on a message has not given it up,
-- whatever the store says, so in a new history each owner CHECKS IN before it leases or settles anything:
--
-- - A lease that the store still has is extended. The owner compares its messages with those that it knows.
-- - For a lease that the store has lost, the owner gets a HOLD. It keeps the keys of its messages for this owner, and has
--   no messages. Each key is free again once the outcome of its message is settled, or once the owner dies.
--
-- Leases commit without waiting for the disk, so a crash loses the newest of them. Another owner could be the first to
-- lease their messages. So in the first moments of a history nothing is leased for a consumer until all of its owners
-- have checked in, as far as they are in headrace_internal.owners, or until these moments are over. Owners that hold only
-- one message of each key, and settle by lease and seq, are not there: those of HTTP clients. After a rewind to an earlier
-- time owners may be missing there. The first one that checks in shows that, since it was checked in later than its row
-- says. Then nothing is leased in these moments.
--
-- A hold is a row of headrace_internal.leases with negated seqs. No message has such a seq, so the lease is settled,
-- extended and expired as any other, and nothing is put back.

-- Whether an owner of the consumer has not checked in in this history.
create or replace function headrace_internal.awaits_check_in(p_consumer int, p_history uuid) returns boolean
language plpgsql set enable_seqscan = off as $$
begin
    return exists (
        select from headrace_internal.owners as o
        where o.consumer_id = p_consumer and o.history <> p_history and (not o.unknown or o.owner = p_history));
end $$;

-- Check in.
-- p_stream, p_name: the names of the consumer. It may be another one that has its id after a failover.
-- p_before: the history in which it has checked in before. Null if it has not.
-- p_messages: those of the owner's leases, as [[lease, seq, key], …]. A lease that is lost becomes a hold.
-- p_known: release all other leases of the owner, before that. Null releases none.
-- Returns a row for each lease that the owner has now. `replaced` is the lost lease that a hold stands for. held_seqs are
-- the messages that are not acked, in the order of held_hashes, without those of a hold. Returns no row in a database
-- without a timeline: the caller begins it, and calls again. Without leases it returns one row, for the history.
-- Granted: consume
create or replace function headrace_internal.check_in(
    p_consumer int, p_owner uuid, p_stream text, p_name text, p_before uuid, p_known bigint[], p_messages json,
    p_now timestamptz default clock_timestamp()
) returns table (in_history uuid, held_lease bigint, replaced bigint, held_seqs bigint[], held_hashes bigint[])
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_wait   interval;
    v_owners uuid[] := array[p_owner, headrace_internal.repeating_owner(p_owner)];
    v_lost   bigint[];
    v_holds  bigint[];
begin
    perform headrace_internal.require_read_committed('headrace_internal.check_in');
    perform pg_advisory_xact_lock(1212498508, p_consumer);
    select c.ack_wait into v_wait
        from headrace_internal.consumers as c join headrace_internal.streams as s on s.id = c.stream_id
        where c.id = p_consumer and (s.name, c.name) = (p_stream, p_name);
    if not found then
        perform headrace_internal.raise_consumer_gone(p_stream, p_name);
    end if;
    select headrace_internal.history_identity(headrace_internal.timeline_identity(h.id, h.xmin)) into in_history
        from headrace_internal.history as h order by h.id limit 1;
    if not found then
        return;
    end if;
    if p_known is not null then
        perform headrace_internal.reclaim(p_consumer, p_owner, p_known);
    end if;
    -- By id, whatever the cursor's floor is: a rewind may have set it back.
    perform from headrace_internal.leases as l where l.consumer_id = p_consumer and l.owner = any (v_owners) order by l.lease_id for no key update;
    update headrace_internal.leases as l set expires_at = greatest(l.expires_at, p_now + v_wait)
        where l.consumer_id = p_consumer and l.owner = any (v_owners);
    with lost as materialized (
        select m.lease_id, min(m.seq) as lowest, array_agg(- m.seq order by m.place) as seqs,
               array_agg(hashtextextended(m.key, 0) order by m.place) as hashes
        from (select (value ->> 0)::bigint as lease_id, (value ->> 1)::bigint as seq, value ->> 2 as key, place
              from json_array_elements(p_messages) with ordinality as e(value, place)) as m
        where not exists (select from headrace_internal.leases as l
                          where l.consumer_id = p_consumer and l.lease_id = m.lease_id and l.owner = any (v_owners))
        group by m.lease_id
    ), held as materialized (
        select l.*, headrace_internal.new_lease_id() as hold from lost as l
    ), inserted as (
        insert into headrace_internal.leases (consumer_id, lease_id, owner, since, expires_at, held, lowest, seqs, hashes)
            select p_consumer, h.hold, p_owner, p_now, p_now + v_wait, cardinality(h.seqs), h.lowest, h.seqs, h.hashes from held as h
    )
    select array_agg(h.lease_id), array_agg(h.hold) into v_lost, v_holds from held as h;
    if p_before is not null and not exists (
            select from headrace_internal.owners as o
            where o.consumer_id = p_consumer and o.owner = p_owner and o.history in (p_before, in_history)) then
        insert into headrace_internal.owners (consumer_id, owner, history, unknown) values (p_consumer, in_history, p_before, true)
            on conflict do nothing;
    end if;
    insert into headrace_internal.owners as o (consumer_id, owner, history) values (p_consumer, p_owner, in_history)
        on conflict (consumer_id, owner) do update set history = excluded.history where o.history <> excluded.history;
    return query
        select in_history, l.lease_id, v_lost[array_position(v_holds, l.lease_id)], m.seqs, m.hashes
        from (select) as always
        left join headrace_internal.leases as l on l.consumer_id = p_consumer and l.owner = any (v_owners)
        left join lateral (
            select array_agg(u.seq) as seqs, array_agg(u.hash) as hashes from headrace_internal.messages_of_lease(l) as u
            where u.seq > 0 and not exists (
                select from headrace_internal.acks as a
                where a.consumer_id = p_consumer and a.lease_id = l.lease_id and a.seq = u.seq)) as m on true;
end $$;

-- Note that an owner has ended, so that no lease call waits for it.
-- Granted: consume
create or replace function headrace_internal.check_out(p_consumer int, p_owner uuid) returns void
language sql as $$
    delete from headrace_internal.owners where consumer_id = p_consumer and owner = p_owner
$$;

-- Whether another owner that has checked in could take messages: it holds none, not even by its repeating owner, and its
-- process reports no open circuit breaker. It may be one whose process has died, until its heartbeat is deleted. The owners
-- of all leases are hashed, since there may be 1,000 of them, and each looks once a second. The text of a heartbeat is
-- searched before it is parsed, since a heartbeat may have many consumers.
-- Granted: consume
create or replace function headrace_internal.has_idle_owner(p_consumer int, p_owner uuid) returns boolean
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_floor  bigint := (select lease_floor from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1);
    v_idle   uuid[];
begin
    v_idle := array(
        select o.owner from headrace_internal.owners as o
        where o.consumer_id = p_consumer and o.owner <> p_owner and not o.unknown and headrace_internal.repeating_owner(o.owner) not in (
            select headrace_internal.repeating_owner(l.owner) from headrace_internal.leases as l
            where l.consumer_id = p_consumer and l.lease_id >= v_floor));
    return v_idle <> '{}' and exists (
        select from unnest(v_idle) as i(owner) where i.owner::text not in (
            select c.entry ->> 'owner'
            from headrace_internal.workers as w cross join lateral json_array_elements(w.facts -> 'consumers') as c(entry)
            where strpos(w.facts::text, '"open"') > 0 and c.entry ->> 'breaker' = 'open' and c.entry ->> 'owner' is not null));
end $$;
