-- erasures: single messages are deleted for good, with every copy that the database has of them.
--
-- Two steps. headrace_internal.erase_messages deletes the contents, in one transaction for all consumers: the row in
-- the stream, the contents of dead letters, message ids and unique keys. It takes no consumer's lock, so it waits for no lease
-- call, however many consumers there are. headrace_internal.forget_erased then removes the message from the state of
-- one consumer after the other. What it removes has no contents. If a process ends in between, a dead letter without
-- contents is left, and erasing the same messages again continues.
--
-- A dead letter is a copy of its message, and a message that is parked or replayed keeps its key waiting. Whatever makes one
-- of these holds the lock of headrace_internal.lock_out_erasures, so none is made of a message that is being erased.

-- Wait for an erasure in the stream, and let none begin before the end of the transaction. For whoever puts messages
-- back. Only an erasure waits for it, and holds nothing else that a settle waits for.
create or replace function headrace_internal.lock_out_erasures(p_stream int) returns void
language sql volatile as $$
    select pg_advisory_xact_lock_shared(1212498512, p_stream)
$$;

-- Whether a message was erased while it was leased. Then there is nothing to deliver again or to keep.
create or replace function headrace_internal.is_erased(p_stream int, p_seq bigint) returns boolean
language plpgsql as $$
begin
    return exists (select from headrace_internal.erasures where stream_id = p_stream and seq = p_seq);
end $$;

-- The messages of a consumer's replay that were erased after the replay had found them. The caller has the lock of
-- headrace_internal.lock_out_erasures: an erasure doesn't see a replay that is not committed.
create or replace function headrace_internal.erased_replays(p_consumer int, p_stream int) returns setof bigint
language sql stable as $$
    select e.seq from headrace_internal.erasures as e
    where e.stream_id = p_stream and exists (select from headrace_internal.replays as r where r.consumer_id = p_consumer and r.seq = e.seq)
$$;

-- Erase messages. Those of which there is nothing are left out. `erased`: the seqs of those that were erased now.
-- `consumers`: the consumers that have something of any of these messages, for headrace_internal.forget_erased.
-- Granted: admin
create or replace function headrace_internal.erase_messages(
    p_stream text, p_seqs bigint[], p_by text, p_reason text, p_now timestamptz default clock_timestamp(),
    out erased bigint[], out consumers int[]
)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream     headrace_internal.streams;
    v_there      bigint[];
    v_seqs       bigint[];
    v_consumers  int[];
begin
    perform headrace_internal.require_read_committed('headrace_internal.erase_messages');      -- it reads after it has the lock
    v_stream := headrace_internal.require_stream(p_stream);
    -- Locks are taken in the order in which others take them: the stream's row as a deletion of the stream does, then as
    -- publishers do. The lock that settles wait for comes last, since publishers may keep their locks for long.
    perform from headrace_internal.streams where id = v_stream.id for key share;
    execute format('lock table only %s in row exclusive mode', v_stream.relation);
    -- Messages that commit from here on are not there yet. Their unique keys and ids may be overlooked below.
    execute format('select array_agg(seq) from %s where seq = any ($1)', v_stream.relation) into v_there using p_seqs;
    -- Neither unique keys nor message ids have an index of their seqs, since erasing is rare.
    with locked as materialized (
        select unique_key, version from headrace_internal.unique_keys
        where stream_id = v_stream.id and seq = any (p_seqs) order by unique_key, version for update
    )
    delete from headrace_internal.unique_keys as u using locked
        where u.stream_id = v_stream.id and u.unique_key = locked.unique_key and u.version = locked.version and u.seq = any (p_seqs);
    with locked as materialized (
        select message_id from headrace_internal.message_ids
        where stream_id = v_stream.id and seq = any (p_seqs) order by message_id for update
    )
    delete from headrace_internal.message_ids as i using locked
        where i.stream_id = v_stream.id and i.message_id = locked.message_id and i.seq = any (p_seqs);
    execute format('select from %s where seq = any ($1) order by key for update', v_stream.relation) using v_there;
    perform pg_advisory_xact_lock(1212498512, v_stream.id);
    execute format('with gone as (delete from %s where seq = any ($1) returning seq) select array_agg(seq) from gone', v_stream.relation)
        into v_seqs using v_there;
    v_consumers := array(select id from headrace_internal.consumers where stream_id = v_stream.id);
    -- Also of messages that retention has removed meanwhile.
    with wiped as (
        update headrace_internal.dead_letters set key = 'erased', data = 'null', headers = null, error = null, error_type = null, traceback = null
        where consumer_id = any (v_consumers) and headrace_internal.is_one_of(seq, p_seqs) returning seq
    )
    select v_seqs || array_agg(seq) into v_seqs from wiped;
    with traced as (
        insert into headrace_internal.erasures (stream_id, seq, erased_at, erased_by, reason)
            select distinct v_stream.id, seq, p_now, coalesce(p_by, session_user), p_reason from unnest(v_seqs) as seq order by seq
            on conflict do nothing returning seq
    )
    select coalesce(array_agg(seq order by seq), '{}') into erased from traced;
    consumers := array(
        select consumer from unnest(v_consumers) as consumer
        where exists (select from headrace_internal.dead_letters where consumer_id = consumer and headrace_internal.is_one_of(seq, p_seqs))
           or exists (select from headrace_internal.parked where consumer_id = consumer and headrace_internal.is_one_of(seq, p_seqs))
           or exists (select from headrace_internal.tails where consumer_id = consumer and headrace_internal.is_one_of(seq, p_seqs))
           or exists (select from headrace_internal.replays where consumer_id = consumer and headrace_internal.is_one_of(seq, p_seqs)));
end $$;

-- Remove erased messages from the state of a consumer. The next messages of their keys are delivered. Leases keep erased
-- messages, so that a handler that has one in hand can settle it.
-- Granted: admin
create or replace function headrace_internal.forget_erased(p_consumer int, p_seqs bigint[]) returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_cursor   headrace_internal.cursors;
    v_seqs     bigint[];
    v_removed  record;
begin
    perform headrace_internal.require_read_committed('headrace_internal.forget_erased');
    perform pg_advisory_xact_lock(1212498508, p_consumer);
    select * into v_cursor from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1;
    if not found then
        return;     -- it was deleted, with all of its state
    end if;
    v_seqs := array(
        select e.seq from headrace_internal.erasures as e
        where e.stream_id = (select stream_id from headrace_internal.consumers where id = p_consumer) and e.seq = any (p_seqs));
    v_removed := headrace_internal.remove_waiting(v_cursor, v_seqs, true);
    if v_removed.removed is null then
        return;
    end if;
    perform headrace_internal.write_cursor(v_cursor, v_removed.next);
    perform headrace_internal.notify_stream(stream_id) from headrace_internal.consumers where id = p_consumer;
end $$;

-- Return the erased messages of a stream in the order of seq: the first p_limit of them above p_above, or the last ones
-- below p_below in descending order.
-- Granted: admin
create or replace function headrace_internal.erasure_page(p_stream text, p_limit int, p_above bigint default 0, p_below bigint default null)
returns table (seq bigint, erased_at timestamptz, erased_by text, reason text)
language sql as $$
    select e.seq, e.erased_at, e.erased_by, e.reason
    from headrace_internal.erasures as e
    where e.stream_id = (select (headrace_internal.require_stream(p_stream)).id)
      and e.seq > p_above and e.seq < coalesce(p_below, 9223372036854775807)
    order by case when p_below is null then e.seq else - e.seq end limit p_limit
$$;
