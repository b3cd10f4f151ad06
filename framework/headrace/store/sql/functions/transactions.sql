-- Acks that commit together with the effects of a handler, or not at all.
--
-- A handler that writes to this database calls headrace.ack in its own transaction, as the last statement before COMMIT:
--
--   begin;
--   insert into shipments …;
--   select headrace.ack(7::int, array[7340033]::bigint[], array[42]::bigint[]);     -- consumer, lease and seq
--   commit;
--
-- It locks the lease FOR KEY SHARE, until the end of the transaction. That is in nobody's way but theirs who would end the
-- lease, or give one of its messages back: expiry skips such a lease, and the others wait. If the lease has ended before, the ack
-- raises, and the handler's transaction can't commit. So either the effects are there and the message is acked, or neither.
--
-- Which messages are acked in this way is written in rows of their own; the lease is left as it is. Whoever ends it afterwards
-- looks there first, in a statement after the one that locked it: what is acked is never put back.

-- p_leases, p_seqs: the messages, in parallel. p_timeline: what the leases were given in, see history.sql; null to leave that open. Returns the transaction's id, by which pg_xact_status tells what became of a
-- COMMIT whose answer was lost.
create function headrace.ack(
    p_consumer int, p_leases bigint[], p_seqs bigint[], p_now timestamptz default clock_timestamp(), p_timeline uuid default null
) returns xid8
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_leases  bigint[];
    v_lost    bigint;
begin
    -- A process that freezes between its ack and its COMMIT would keep the lease for ever.
    perform set_config('idle_in_transaction_session_timeout', '2s', true);
    if p_timeline is not null and p_timeline is distinct from (
        select headrace.timeline_identity(id, xmin) from headrace.history order by id limit 1) then
        perform headrace.raise_lease_lost(p_seqs[1]);
    end if;
    if cardinality(p_seqs) = 1 then
        -- Handlers of single messages come by here once for each: what other messages of the lease are acked is not walked through.
        perform from headrace.leases
            where consumer_id = p_consumer and lease_id = p_leases[1] and expires_at > p_now and p_seqs[1] = any (seqs)
            for key share;
        if not found or exists (
            select from headrace.acks
            where consumer_id = p_consumer and lease_id = p_leases[1] and cardinality(seqs) > 1 and p_seqs[1] = any (seqs))
        then
            perform headrace.raise_lease_lost(p_seqs[1]);
        end if;
        insert into headrace.acks (consumer_id, lease_id, seqs) values (p_consumer, p_leases[1], p_seqs) on conflict do nothing;
        if not found then
            perform headrace.raise_lease_lost(p_seqs[1]);
        end if;
        return pg_current_xact_id();
    end if;
    v_leases := array(
        select lease_id from headrace.leases
        where consumer_id = p_consumer and lease_id = any (p_leases) and expires_at > p_now
        order by lease_id for key share);
    -- An ack that has been committed is not given twice, or an effect might be.
    select seq into v_lost from (
        select * from unnest(p_leases, p_seqs) as asked(lease_id, seq)
        except (
            select lease_id, unnest(seqs) from headrace.leases where consumer_id = p_consumer and lease_id = any (v_leases)
            except
            select * from headrace.acked(p_consumer, v_leases))) as lost
        order by seq limit 1;
    if found then
        perform headrace.raise_lease_lost(v_lost);
    end if;
    insert into headrace.acks (consumer_id, lease_id, seqs)
        select p_consumer, lease_id, array_agg(seq) from unnest(p_leases, p_seqs) as asked(lease_id, seq) group by lease_id;
    return pg_current_xact_id();
end $$;

create function headrace.raise_lease_lost(p_seq bigint) returns void
language plpgsql as $$
begin
    raise exception using errcode = 'HR007', message = format(
        'The lease of the message %s was lost: it expired, or it was ended. Somebody else may have the message by now; nothing of this transaction is committed.',
        p_seq);
end $$;

-- What has been acked of these leases, each message once.
create function headrace.acked(p_consumer int, p_leases bigint[]) returns table (lease_id bigint, seq bigint)
language sql stable as $$
    select distinct a.lease_id, s.seq from headrace.acks as a cross join unnest(a.seqs) as s(seq)
    where a.consumer_id = p_consumer and a.lease_id = any (p_leases)
$$;

-- The messages that are leased and not acked.
create function headrace.in_flight(p_consumer int, p_floor bigint) returns setof bigint
language sql stable as $$
    select m.seq from headrace.leases as l cross join unnest(l.seqs) as m(seq)
    where l.consumer_id = p_consumer and l.lease_id >= p_floor
      and not exists (select from headrace.acks as a
                      where a.consumer_id = l.consumer_id and a.lease_id = l.lease_id and m.seq = any (a.seqs))
$$;

-- Forget the acks of those of these leases that have ended.
create function headrace.forget_acks(p_consumer int, p_leases bigint[]) returns void
language sql as $$
    delete from headrace.acks as a
    where a.consumer_id = p_consumer and a.lease_id = any (p_leases)
      and not exists (select from headrace.leases as l where l.consumer_id = a.consumer_id and l.lease_id = a.lease_id)
$$;

-- What became of a transaction: as pg_xact_status, null when the server has forgotten it. An id that was never given is one of a
-- transaction that a crash of the server took back. A standby can't tell: it may not have come that far. An id alone doesn't say whose it was: see headrace.commit_status and headrace.ack_status.
create function headrace.transaction_status(p_xid bigint) returns text
language plpgsql as $$
begin
    if pg_is_in_recovery() then
        raise exception using errcode = 'read_only_sql_transaction', message = 'the server is a standby, which may lag behind what was committed';
    end if;
    return pg_xact_status(p_xid::text::xid8);
exception when invalid_parameter_value then
    return 'aborted';
end $$;

-- The same of a transaction that acked these messages. Its ack is asked for, too, while their lease is there to tell: a server that
-- crashed may have given the id of a transaction which had written nothing to disk to another one. Without the lease the answer may be that of
-- the other one. It does no harm: an outcome for a lease that is gone changes nothing, and an ack that was taken back comes again with its message.
create function headrace.ack_status(p_consumer int, p_leases bigint[], p_seqs bigint[], p_xid bigint) returns text
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_status  text := headrace.transaction_status(p_xid);
begin
    if v_status = 'committed' and exists (
        select from unnest(p_leases, p_seqs) as asked(lease_id, seq)
        join headrace.leases as l on l.consumer_id = p_consumer and l.lease_id = asked.lease_id
        where (asked.lease_id, asked.seq) not in (select * from headrace.acked(p_consumer, p_leases)))
    then
        return 'aborted';
    end if;
    return v_status;
end $$;

-- --- transactions of services, which ack nothing

-- The last statement before the COMMIT: leave a witness that it happened. `xid` is null for a transaction that has written nothing, `at` where it
-- may not write this either. Under the rights of the schema's owner, since the transaction may have taken another role.
create function headrace.leave_witness(p_nonce uuid, out xid bigint, out at timestamptz, out timeline uuid)
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
    insert into headrace.commits as c (xid, nonce) values (v_xid, p_nonce) returning c.at into at;
    select headrace.timeline_identity(h.id, h.xmin) into timeline from headrace.history as h order by h.id limit 1;
end $$;

-- For how long witnesses are kept, while the server is up.
create function headrace.witnesses_kept() returns interval
language sql immutable as $$
    select interval '10 minutes'
$$;

-- What became of a transaction that left a witness: `committed`, `aborted`, `in progress`; null when that can't be known any more. The witness has
-- the last word, also on a server that the row was replicated to. The status by the xid is read before it: whatever that calls ended and this
-- statement can see has left its witness here, or was somebody else's. p_at, p_timeline: as leave_witness returned them.
create function headrace.commit_status(
    p_xid bigint, p_nonce uuid, p_at timestamptz, p_timeline uuid, p_now timestamptz default clock_timestamp()
) returns text
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_status  text := headrace.transaction_status(p_xid);
begin
    if exists (select from headrace.commits where xid = p_xid::text::xid8 and nonce = p_nonce) then
        return 'committed';
    end if;
    if v_status = 'in progress'
       or v_status = 'committed' and not pg_visible_in_snapshot(p_xid::text::xid8, pg_current_snapshot()) then
        return 'in progress';
    end if;
    if v_status = 'aborted' or p_at >= p_now - headrace.witnesses_kept() then
        return 'aborted';
    end if;
    -- It may have been removed. Where nothing was taken back, the xid is still what it was.
    return (select case when headrace.timeline_identity(h.id, h.xmin) = p_timeline then v_status end
            from headrace.history as h order by h.id limit 1);
end $$;

-- Remove witnesses that nobody can still ask for: who lost the answer to a COMMIT asks again every few seconds, but not while the server is down.
-- p_floor, p_timeline: what an earlier call returned, so that rows removed before are not walked through; in another timeline xids are given again.
-- `more`: whether there may be more to remove.
create function headrace.forget_commits(
    p_floor bigint default 0, p_timeline uuid default null, p_now timestamptz default clock_timestamp(),
    out floor bigint, out timeline uuid, out more boolean
)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    c_look    constant int := 10000;
    v_before  timestamptz := p_now - headrace.witnesses_kept();
    v_since   timestamptz;
    v_looked  record;
begin
    select headrace.timeline_identity(h.id, h.xmin), greatest(h.since, pg_postmaster_start_time()) into timeline, v_since
        from headrace.history as h order by h.id limit 1;
    floor := case when timeline = p_timeline then p_floor else 0 end;
    more := false;
    if v_since is null then
        perform headrace.begin_timeline();
        select headrace.timeline_identity(h.id, h.xmin) into timeline from headrace.history as h order by h.id limit 1;
        return;
    end if;
    if v_since >= v_before then
        return;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    with looked as materialized (
        select c.xid, c.nonce, c.at < v_before as old from headrace.commits as c where c.xid >= floor::text::xid8 order by c.xid limit c_look
    ), removed as (
        delete from headrace.commits as c using looked as l where l.old and c.xid = l.xid and c.nonce = l.nonce
    )
    select count(*) as count, min(xid) filter (where not old) as kept, max(xid) as last into v_looked from looked;
    floor := coalesce(coalesce(v_looked.kept, v_looked.last)::text::bigint, floor);
    more := v_looked.count = c_look and v_looked.kept is null;
end $$;
