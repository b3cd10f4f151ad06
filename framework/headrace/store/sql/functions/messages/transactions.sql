-- Acks that commit together with the effects of a handler, or not at all.
--
-- A handler that writes to this database calls headrace.ack in its own transaction, as the last statement before COMMIT:
--
--   begin;
--   insert into shipments …;
--   select headrace.ack(7::int, array[7340033]::bigint[], array[42]::bigint[]);     -- consumer, lease and seq
--   commit;
--
-- It locks the lease FOR KEY SHARE, until the end of the transaction. That blocks only calls that would end the
-- lease, or put one of its messages back. Expiry skips such a lease, and the other calls wait. If the lease has ended
-- before, the ack raises, and the handler's transaction can't commit, so either the effects are committed and the
-- message is acked, or neither.
--
-- These acks are written to rows of their own, one for each message, and the lease is not changed. A call that ends the
-- lease afterwards reads those rows first, in a statement after the one that locked the lease, so an acked message is never
-- put back. If two transactions ack a message at the same time, the second one waits for the first. If that commits, the
-- second one has lost the lease.
--
-- If all messages of a lease are acked at once, the lease is emptied instead, and its row remains until it is settled. That
-- locks it FOR UPDATE, so even extending it waits. Therefore it is done only where the server has got the COMMIT already.

-- Ack messages in the caller's transaction.
-- p_leases, p_seqs: the messages, in parallel. p_timeline: the history in which the caller has the leases, see
-- history.sql. Null skips that check. p_process, p_seconds: the worker process and how long its handler has taken, which a
-- history keeps, see completions.sql. Null for a client. Returns the transaction's id. If the response to a COMMIT is lost,
-- pg_xact_status reports by this id whether it took place.
-- Granted: consume
create or replace function headrace_internal.ack_messages(
    p_consumer int, p_leases bigint[], p_seqs bigint[], p_now timestamptz, p_timeline uuid, p_process text default null,
    p_seconds real default null
) returns xid8
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
begin
    -- A process that freezes between its ack and its COMMIT would keep the lease forever.
    perform set_config('idle_in_transaction_session_timeout', '2s', true);
    perform headrace_internal.ack_at_commit(p_consumer, p_leases, p_seqs, p_now, p_timeline, null, p_process, p_seconds);
    return pg_current_xact_id();
end $$;

-- Ack messages as headrace_internal.ack_messages does, in a transaction whose COMMIT the server has got already.
-- p_xid: the transaction's id. In another transaction, which user code has begun, this raises. Null skips that check.
-- Returns 1. The statement that calls it must return no rows.
-- Granted: consume
create or replace function headrace_internal.ack_at_commit(
    p_consumer int, p_leases bigint[], p_seqs bigint[], p_now timestamptz, p_timeline uuid, p_xid bigint, p_process text default null,
    p_seconds real default null
) returns int
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_keeps  boolean;       -- whether the consumer keeps a history
begin
    if p_xid is not null and pg_current_xact_id_if_assigned() is distinct from p_xid::text::xid8 then
        raise exception using errcode = 'invalid_transaction_state', message = format('The transaction %s has ended.', p_xid);
    elsif cardinality(p_seqs) <> 1 then
        v_keeps := (select c.history is not null from headrace_internal.consumers as c where c.id = p_consumer);
    else
        -- Handlers of single messages call this once for each message, so it is one statement without a join. The primary key
        -- refuses a message that was acked before, and waits for a transaction that is acking it.
        insert into headrace_internal.acks (consumer_id, lease_id, seq)
            select p_consumer, p_leases[1], p_seqs[1] from headrace_internal.leases
            where consumer_id = p_consumer and lease_id = p_leases[1] and expires_at > p_now and (p_seqs[1] = any (seqs) or headrace_internal.spans(seqs, lowest, held, p_seqs[1]))
              and (p_timeline is null or p_timeline = (
                  select headrace_internal.fence_identity(id, xmin, p_timeline) from headrace_internal.history order by id limit 1))
            for key share
            on conflict do nothing
            returning (select c.history is not null from headrace_internal.consumers as c where c.id = p_consumer) into v_keeps;
        if not found then
            perform headrace_internal.raise_lease_lost(p_seqs[1]);
        end if;
    end if;
    if v_keeps then
        perform headrace_internal.record_acks(
            p_consumer, '{}', p_leases, p_seqs,
            case when p_process is not null then
                row(p_process, null, null, null, p_seqs, array_fill(p_seconds, array[cardinality(p_seqs)]), null)
                    ::headrace_internal.handling_report end, true, p_now);
    end if;
    if cardinality(p_seqs) <> 1 then        -- at last, since it may empty the leases. If one has changed since, it raises
        perform headrace_internal.ack_several(p_consumer, p_leases, p_seqs, p_now, p_timeline, p_xid is not null);
    end if;
    return 1;
end $$;

-- Ack messages as headrace_internal.ack_at_commit does, which has looked at the rest.
-- p_at_commit: whether the server has got the COMMIT, so that leases may be locked FOR UPDATE.
create or replace function headrace_internal.ack_several(
    p_consumer int, p_leases bigint[], p_seqs bigint[], p_now timestamptz, p_timeline uuid, p_at_commit boolean
) returns void
-- Arrays of thousands of messages are joined, and the planner takes them for ten.
language plpgsql set enable_nestloop = off set enable_mergejoin = off as $$
declare
    v_count  bigint := 0;
    v_whole  bigint[];
begin
    if p_timeline is not null and p_timeline is distinct from (
        select headrace_internal.fence_identity(id, xmin, p_timeline) from headrace_internal.history order by id limit 1) then
        perform headrace_internal.raise_lease_lost(p_seqs[1]);
    end if;
    if p_at_commit and current_setting('transaction_isolation') = 'read committed' then
        v_whole := headrace_internal.ack_whole(p_consumer, p_leases, p_seqs, p_now);
        if v_whole <> '{}' then
            select array_agg(lease_id), array_agg(seq) into p_leases, p_seqs
                from unnest(p_leases, p_seqs) as asked(lease_id, seq) where lease_id not in (select unnest(v_whole));
            if p_leases is null then
                return;
            end if;
        end if;
    end if;
    begin       -- a subtransaction costs less than ON CONFLICT DO NOTHING for each of many rows
        with locked as materialized (
            select lease_id, seqs, lowest, held from headrace_internal.leases
            where consumer_id = p_consumer and headrace_internal.is_one_of(lease_id, p_leases) and expires_at > p_now
            order by lease_id for key share
        )
        insert into headrace_internal.acks (consumer_id, lease_id, seq)
            select distinct p_consumer, lease_id, seq
            from unnest(p_leases, p_seqs) as asked(lease_id, seq) join locked as l using (lease_id)
            where headrace_internal.spans(l.seqs, l.lowest, l.held, seq) or (lease_id, seq) in (select lease_id, unnest(seqs) from locked)
            order by lease_id, seq;     -- so that two transactions with the same messages don't deadlock
        get diagnostics v_count = row_count;
    exception when unique_violation then
        null;
    end;
    if v_count < cardinality(p_seqs) and v_count < (select count(distinct (lease_id, seq)) from unnest(p_leases, p_seqs) as asked(lease_id, seq)) then
        perform headrace_internal.raise_lease_lost(coalesce((
            select min(seq) from unnest(p_leases, p_seqs) as asked(lease_id, seq)
            where v_count = 0 and (lease_id, seq) in (select * from headrace_internal.acked_messages(p_consumer, p_leases))
               or (lease_id, seq) not in (select l.lease_id, m.seq from headrace_internal.leases as l cross join headrace_internal.messages_of_lease(l) as m
                                          where l.consumer_id = p_consumer and headrace_internal.is_one_of(l.lease_id, p_leases))), p_seqs[1]));
    end if;
end $$;

-- Ack those leases that have exactly these messages, and none was acked before. They are emptied. Returns them.
-- Transactions that ack single messages of a lease hold a lock of it, so after the leases are locked, another statement sees
-- the acks of all that have committed, and the later ones will see empty leases. A lease that was extended only after it was
-- passed over as expired is not locked, so it is left to headrace_internal.ack_several.
create or replace function headrace_internal.ack_whole(p_consumer int, p_leases bigint[], p_seqs bigint[], p_now timestamptz) returns bigint[]
language plpgsql as $$
declare
    v_locked  bigint[];
    v_whole   bigint[];
begin
    -- Mostly a batch is a part of one lease, which the first look finds without counting.
    if not exists (
            select from headrace_internal.leases where consumer_id = p_consumer and headrace_internal.is_one_of(lease_id, p_leases) and held <= cardinality(p_seqs))
       or not exists (
            select from (select lease_id, count(*) as count from unnest(p_leases) as lease_id group by lease_id) as a
            join headrace_internal.leases as l using (lease_id)
            where l.consumer_id = p_consumer and headrace_internal.is_one_of(l.lease_id, p_leases) and l.held <= a.count) then
        return '{}';
    end if;
    v_locked := array(
        select lease_id from headrace_internal.leases where consumer_id = p_consumer and headrace_internal.is_one_of(lease_id, p_leases) and expires_at > p_now
        order by lease_id for update);
    with asked as materialized (
        select distinct lease_id, seq from unnest(p_leases, p_seqs) as a(lease_id, seq)
    ), locked as materialized (
        select l.lease_id, l.seqs, l.lowest, l.held from headrace_internal.leases as l
        where l.consumer_id = p_consumer and headrace_internal.is_one_of(l.lease_id, v_locked) and l.held > 0
          and l.lease_id not in (select a.lease_id from headrace_internal.acked_messages(p_consumer, v_locked) as a)
    )
    select coalesce(array_agg(lease_id), '{}') into v_whole from (
        select l.lease_id from locked as l join asked as a using (lease_id)
        group by l.lease_id, l.held having count(*) = l.held and bool_and(
            headrace_internal.spans(l.seqs, l.lowest, l.held, a.seq) or (a.lease_id, a.seq) in (select lease_id, unnest(seqs) from locked))) as w;
    update headrace_internal.leases set held = 0, seqs = null, hashes = '{}', attempts = null, crashes = null, started = null
        where consumer_id = p_consumer and headrace_internal.is_one_of(lease_id, v_whole);
    return v_whole;
end $$;

create or replace function headrace_internal.raise_lease_lost(p_seq bigint) returns void
language plpgsql as $$
begin
    raise exception using errcode = 'HR007', message = format(
        'The lease of the message %s was lost: it expired, or it was ended. Somebody else may have the message by now; nothing of this transaction is committed.',
        p_seq);
end $$;

-- Return the acked messages of these leases.
create or replace function headrace_internal.acked_messages(p_consumer int, p_leases bigint[]) returns table (lease_id bigint, seq bigint)
language sql stable as $$
    select a.lease_id, a.seq from headrace_internal.acks as a where a.consumer_id = p_consumer and headrace_internal.is_one_of(a.lease_id, p_leases)
$$;

-- Return the seqs of the messages that are leased and not acked.
create or replace function headrace_internal.in_flight_seqs(p_consumer int, p_floor bigint) returns setof bigint
language sql stable as $$
    select m.seq from headrace_internal.leases as l cross join headrace_internal.messages_of_lease(l) as m
    where l.consumer_id = p_consumer and l.lease_id >= p_floor
      and not exists (select from headrace_internal.acks as a
                      where a.consumer_id = l.consumer_id and a.lease_id = l.lease_id and a.seq = m.seq)
$$;

-- Delete the acks of those of these leases that have ended.
create or replace function headrace_internal.delete_ended_acks(p_consumer int, p_leases bigint[]) returns void
language plpgsql as $$
begin
    delete from headrace_internal.acks as a
    where a.consumer_id = p_consumer and headrace_internal.is_one_of(a.lease_id, p_leases)
      and a.lease_id not in (select l.lease_id from headrace_internal.leases as l
                             where l.consumer_id = p_consumer and headrace_internal.is_one_of(l.lease_id, p_leases));
end $$;

-- Return the status of a transaction as pg_xact_status does, or null when the server has forgotten it. An id that the
-- server has not assigned yet belonged to a transaction that a crash reverted, so it returns `aborted`. This raises
-- on a standby, which may lag behind. An id alone doesn't identify the transaction, see headrace_internal.commit_status and
-- headrace_internal.ack_status.
-- Granted: any
create or replace function headrace_internal.transaction_status(p_xid bigint) returns text
language plpgsql as $$
begin
    if pg_is_in_recovery() then
        raise exception using errcode = 'read_only_sql_transaction', message = 'the server is a standby, which may lag behind what was committed';
    end if;
    return pg_xact_status(p_xid::text::xid8);
exception when invalid_parameter_value then
    return 'aborted';
end $$;

-- The status of a transaction that acked these messages. While their lease exists, the ack itself is checked, too. A
-- server that crashed may have assigned the id of a transaction which had written nothing to disk to another
-- transaction. Without the lease, the status may be that of the other transaction. That does no harm: an outcome for
-- a lease that no longer exists changes nothing, and if an ack was reverted, its message is delivered again.
-- Granted: consume
create or replace function headrace_internal.ack_status(p_consumer int, p_leases bigint[], p_seqs bigint[], p_xid bigint) returns text
-- The last two, and reading the messages first, since a join would compare each message with each.
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off set enable_mergejoin = off as $$
declare
    v_status  text := headrace_internal.transaction_status(p_xid);
    v_open    boolean := false;     -- whether a lease still has one of the messages
begin
    if v_status = 'committed' then
        with held as materialized (
            select l.lease_id, m.seq from headrace_internal.leases as l cross join headrace_internal.messages_of_lease(l) as m
            where l.consumer_id = p_consumer and headrace_internal.is_one_of(l.lease_id, p_leases)
        ), acked as materialized (
            select lease_id, seq from headrace_internal.acked_messages(p_consumer, p_leases)
        )
        select exists (
            select from held join unnest(p_leases, p_seqs) as asked(lease_id, seq) using (lease_id, seq)
            left join acked as a using (lease_id, seq) where a.seq is null) into v_open;
    end if;
    return case when v_open then 'aborted' else v_status end;
end $$;

-- --- transactions of services, which ack nothing

-- Leave a witness that the COMMIT took place, as the last statement before it. `xid` is null if the transaction has
-- written nothing. `at` is null if the transaction can't write the witness either. Runs with the rights of the
-- schema's owner, since the transaction may have changed its role.
-- Granted: any
create or replace function headrace_internal.leave_witness(p_nonce uuid, out xid bigint, out at timestamptz, out timeline uuid)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_xid  xid8 := pg_current_xact_id_if_assigned();
begin
    if v_xid is null then
        return;
    end if;
    xid := v_xid::text::bigint;
    if current_setting('transaction_read_only') = 'on' then
        return;
    end if;
    insert into headrace_internal.commits as c (xid, nonce) values (v_xid, p_nonce) returning c.at into at;
    select headrace_internal.history_identity(headrace_internal.timeline_identity(h.id, h.xmin)) into timeline from headrace_internal.history as h order by h.id limit 1;
end $$;

-- How long witnesses are kept, while the server is up.
-- Granted: any
create or replace function headrace_internal.witness_retention() returns interval
language sql immutable as $$
    select interval '10 minutes'
$$;

-- Return the status of a transaction that left a witness: `committed`, `aborted` or `in progress`. Null when it can't
-- be known any more. The witness decides, also on a server that the row was replicated to. The status by xid is read
-- before the witness. If that status is final and this statement's snapshot sees the transaction, then its witness is
-- here, or the xid was another transaction's. p_at, p_timeline: as leave_witness returned them.
-- Granted: any
create or replace function headrace_internal.commit_status(
    p_xid bigint, p_nonce uuid, p_at timestamptz, p_timeline uuid, p_now timestamptz default clock_timestamp()
) returns text
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_status  text := headrace_internal.transaction_status(p_xid);
begin
    if exists (select from headrace_internal.commits where xid = p_xid::text::xid8 and nonce = p_nonce) then
        return 'committed';
    end if;
    if v_status = 'in progress'
       or v_status = 'committed' and not pg_visible_in_snapshot(p_xid::text::xid8, pg_current_snapshot()) then
        return 'in progress';
    end if;
    if v_status = 'aborted' or p_at >= p_now - headrace_internal.witness_retention() then
        return 'aborted';
    end if;
    -- The witness may have been removed. In the same history nothing was reverted, so the status by xid is still
    -- right. `timeline` and p_timeline are the identity of the history.
    return (select case when headrace_internal.history_identity(headrace_internal.timeline_identity(h.id, h.xmin)) = p_timeline then v_status end
            from headrace_internal.history as h order by h.id limit 1);
end $$;

-- Remove witnesses that no process can still ask for. A process that lost the response to a COMMIT asks again every
-- few seconds, but not while the server is down.
-- p_floor, p_timeline: what an earlier call returned, so that rows removed before are not read again. In another
-- history xids are assigned again.
-- `more`: whether there may be more to remove.
-- Granted: all
create or replace function headrace_internal.delete_old_witnesses(
    p_floor bigint default 0, p_timeline uuid default null, p_now timestamptz default clock_timestamp(),
    out floor bigint, out timeline uuid, out more boolean
)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    c_scan_limit    constant int := 10000;
    v_before  timestamptz := p_now - headrace_internal.witness_retention();
    v_since   timestamptz;
    v_examined  record;
begin
    select headrace_internal.history_identity(headrace_internal.timeline_identity(h.id, h.xmin)), greatest(h.since, pg_postmaster_start_time()) into timeline, v_since
        from headrace_internal.history as h order by h.id limit 1;
    floor := case when timeline = p_timeline then p_floor else 0 end;
    more := false;
    if v_since is null then
        perform headrace_internal.begin_timeline();
        select headrace_internal.history_identity(headrace_internal.timeline_identity(h.id, h.xmin)) into timeline from headrace_internal.history as h order by h.id limit 1;
        return;
    end if;
    if v_since >= v_before then
        return;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    with looked as materialized (
        select c.xid, c.nonce, c.at < v_before as old from headrace_internal.commits as c where c.xid >= floor::text::xid8 order by c.xid limit c_scan_limit
    ), removed as (
        delete from headrace_internal.commits as c using looked as l where l.old and c.xid = l.xid and c.nonce = l.nonce
    )
    select count(*) as count, min(xid) filter (where not old) as kept, max(xid) as last into v_examined from looked;
    floor := coalesce(coalesce(v_examined.kept, v_examined.last)::text::bigint, floor);
    more := v_examined.count = c_scan_limit and v_examined.kept is null;
end $$;
