-- Unique keys: publish a message unless the last one with the same unique key is pending.
--
--   select headrace.publish_unique('invoices', 'invoice.17', '{"id": 17}', 'invoice-17');
--
-- A message is pending while some consumer of the stream is not done with it. Consumers write nothing for that. The
-- publisher looks where the message is: ahead of a consumer's position, in a hole, parked, in a tail, to be replayed or
-- in flight. What is acked, dead-lettered, filtered out, passed by, expired or removed is not pending.
--
-- Two publishers of one unique key take turns. The second one waits for the first one's transaction, at the row of the
-- last message, which both delete, or at the primary key of the first version, which both insert. Several keys are
-- taken in their order, so that two publishers don't deadlock.

-- Return the last message of each of these unique keys that has one. `scheduled`: whether it waits for its time.
create or replace function headrace_internal.last_unique(p_stream int, p_unique_keys text[])
returns table (unique_key text, version bigint, seq bigint, scheduled boolean)
language sql stable as $$
    select given.unique_key, last.version, last.seq,
           exists (select from headrace_internal.scheduled as s
                   where s.stream_id = p_stream and s.deliver_at = last.deliver_at and s.id = last.scheduled_id)
    from unnest(p_unique_keys) as given(unique_key)
    cross join lateral (
        select u.version, u.seq, u.deliver_at, u.scheduled_id from headrace_internal.unique_keys as u
        where u.stream_id = p_stream and u.unique_key = given.unique_key order by u.version desc limit 1) as last
$$;

-- Return those of these messages that are pending. p_unique_while: 'waiting' leaves out those that are in flight.
--
-- What each consumer does with a message is read in one statement, since it moves from the cursor to a lease, from
-- there to the parked messages and back, and must not be overlooked in between. Conditions are evaluated afterwards,
-- and only on messages that the consumer has not read yet. Without consumers, a message waits for the first one.
create or replace function headrace_internal.pending_messages(p_stream headrace_internal.streams, p_seqs bigint[], p_unique_while text) returns bigint[]
language plpgsql as $$
declare
    v_table     text;
    v_stored    bigint[];       -- those that are still in the stream
    v_live      bigint[];       -- those of them that have not expired: a consumer that has not got one yet waits for it
    v_left      bigint[];       -- those that no consumer waits for, as far as the consumers were looked at
    v_unread    bigint[];
    v_consumer  record;
begin
    if p_seqs = '{}' then
        return '{}';
    end if;
    v_table := headrace_internal.table_of_range(p_stream, (select min(s) from unnest(p_seqs) as s), (select max(s) from unnest(p_seqs) as s));
    execute format('select array_agg(seq), array_agg(seq) filter (where not headrace_internal.is_expired(headers, created_at, clock_timestamp()))
                    from %s where seq = any ($1)', v_table) into v_stored, v_live using p_seqs;
    if v_stored is null then
        return '{}';
    end if;
    v_left := v_stored;
    for v_consumer in
        select c.condition,
               array(select m from unnest(v_live) as m
                     where coalesce(
                         (select true from headrace_internal.parked where consumer_id = c.id and seq = m),
                         (select true from headrace_internal.tails where consumer_id = c.id and seq = m),
                         (select true from headrace_internal.replays where consumer_id = c.id and seq = m), false)
                     union all
                     (select unnest(v_stored) where p_unique_while = 'pending'
                      intersect
                      select m.seq from headrace_internal.leases as l cross join headrace_internal.messages_of_lease(l) as m
                      where l.consumer_id = c.id and l.lease_id >= u.lease_floor
                      except
                      select seq from headrace_internal.acks where consumer_id = c.id and lease_id >= u.lease_floor)) as held,
               array(select m from unnest(v_live) as m
                     where (m > u.position or m <@ (select * from headrace_internal.cursor_holes(u)))
                       and not (u.cancelling and exists (select from headrace_internal.cancellations where consumer_id = c.id and seq = m and ended_at is null))
                    ) as unread
        from headrace_internal.consumers as c
        cross join lateral (select * from headrace_internal.cursors where consumer_id = c.id order by version desc limit 1) as u
        where c.stream_id = p_stream.id
    loop
        v_left := array(select unnest(v_left) except select unnest(v_consumer.held));
        v_unread := array(select unnest(v_left) intersect select unnest(v_consumer.unread));
        if v_unread <> '{}' then
            execute format('select array_agg(seq) from %s where seq = any ($1) and (%s)', v_table, v_consumer.condition)
                into v_unread using v_unread;
            v_left := array(select unnest(v_left) except select unnest(v_unread));
        end if;
        exit when v_left = '{}';
    end loop;
    return case when found then array(select unnest(v_stored) except select unnest(v_left)) else coalesce(v_live, '{}') end;
end $$;

-- Take a unique key for a message, until the end of the transaction. Returns false if the last message is pending.
-- p_done: the seq of one that is not. Each repetition follows another publisher, or maintenance, that was faster.
create or replace function headrace_internal.take_unique_key(p_stream headrace_internal.streams, p_unique_key text, p_done bigint, p_unique_while text) returns boolean
language plpgsql as $$
declare
    v_last  record;
begin
    loop
        select * into v_last from headrace_internal.last_unique(p_stream.id, array[p_unique_key]);
        if not found then
            insert into headrace_internal.unique_keys (stream_id, unique_key, version) values (p_stream.id, p_unique_key, 1) on conflict do nothing;
            if found then
                return true;
            end if;
        elsif v_last.scheduled
              or v_last.seq is distinct from p_done and headrace_internal.pending_messages(p_stream, array[v_last.seq], p_unique_while) <> '{}' then
            return false;
        else
            delete from headrace_internal.unique_keys as u
                where u.stream_id = p_stream.id and u.unique_key = p_unique_key and u.version = v_last.version and u.seq is not distinct from v_last.seq;
            if found then
                insert into headrace_internal.unique_keys (stream_id, unique_key, version) values (p_stream.id, p_unique_key, v_last.version + 1);
                return true;
            end if;
        end if;
    end loop;
end $$;

-- Take those of these unique keys whose last message is not pending, and return them. All are looked at before any is
-- taken, because a key whose message is pending needs no lock.
create or replace function headrace_internal.take_unique_keys(p_stream headrace_internal.streams, p_unique_keys text[], p_unique_while text) returns text[]
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan as $$
declare
    v_seqs     bigint[];
    v_pending  bigint[];
    v_taken    text[] := '{}';
    v_key      record;
begin
    v_seqs := array(select seq from headrace_internal.last_unique(p_stream.id, p_unique_keys) where seq is not null);
    v_pending := headrace_internal.pending_messages(p_stream, v_seqs, p_unique_while);
    for v_key in
        select given.unique_key, last.seq
        from (select distinct unnest(p_unique_keys)) as given(unique_key)
        left join headrace_internal.last_unique(p_stream.id, p_unique_keys) as last using (unique_key)
        where given.unique_key is not null and not coalesce(last.scheduled or last.seq = any (v_pending), false)
        order by given.unique_key collate "C"
    loop
        if headrace_internal.take_unique_key(p_stream, v_key.unique_key, case when v_key.seq = any (v_seqs) then v_key.seq end, p_unique_while) then
            v_taken := v_taken || v_key.unique_key;
        end if;
    end loop;
    return v_taken;
end $$;

-- Record the last messages of unique keys, which have a row each: their seqs, or where they are scheduled. Of messages
-- without a unique key, nothing is recorded.
create or replace function headrace_internal.record_unique_keys(
    p_stream int, p_unique_keys text[], p_seqs bigint[], p_deliver_at timestamptz[], p_scheduled_ids bigint[]
) returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan as $$
begin
    -- An update with a join would read all rows whenever the planner believes that the table is empty.
    insert into headrace_internal.unique_keys (stream_id, unique_key, version, seq, deliver_at, scheduled_id)
        select p_stream, given.unique_key, last.version, given.seq, given.deliver_at, given.scheduled_id
        from unnest(p_unique_keys, p_seqs, p_deliver_at, p_scheduled_ids) as given(unique_key, seq, deliver_at, scheduled_id)
        cross join lateral headrace_internal.last_unique(p_stream, array[given.unique_key]) as last
        on conflict (stream_id, unique_key, version) do update
            set seq = excluded.seq, deliver_at = excluded.deliver_at, scheduled_id = excluded.scheduled_id;
end $$;

-- Delete unique keys whose last message is not pending, of at most p_limit keys after p_after. `reached`: the last one
-- that was looked at, null at the end. Rows that a publisher has locked are left.
-- Granted: admin
create or replace function headrace_internal.delete_done_unique_keys(
    p_stream int, p_after text default '', p_limit int default 1000, out deleted int, out reached text
)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan as $$
declare
    v_stream   headrace_internal.streams;
    v_keys     text[];
    v_seqs     bigint[];
begin
    deleted := 0;
    v_stream := headrace_internal.lock_stream_for_maintenance(p_stream);
    if v_stream.id is null then
        return;
    end if;
    v_keys := array(select u.unique_key from headrace_internal.unique_keys as u
                    where u.stream_id = p_stream and u.unique_key > p_after order by u.unique_key, u.version limit p_limit);
    if v_keys = '{}' then
        return;
    end if;
    reached := case when cardinality(v_keys) = p_limit then v_keys[p_limit] end;
    v_seqs := array(select seq from headrace_internal.last_unique(p_stream, v_keys) where seq is not null);
    v_seqs := array(select unnest(v_seqs) except select unnest(headrace_internal.pending_messages(v_stream, v_seqs, 'pending')));
    with done as materialized (
        select u.ctid as place from headrace_internal.last_unique(p_stream, v_keys) as last
        join headrace_internal.unique_keys as u
            on u.stream_id = p_stream and u.unique_key = last.unique_key and u.version = last.version and u.seq is not distinct from last.seq
        where last.seq in (select unnest(v_seqs)) or last.seq is null and not last.scheduled
        for update of u skip locked
    )
    delete from headrace_internal.unique_keys where ctid = any (array(select place from done));
    get diagnostics deleted = row_count;
end $$;

-- Return the streams that have unique keys.
-- Granted: all
create or replace function headrace_internal.streams_with_unique_keys() returns setof int
language sql set enable_seqscan = off set enable_bitmapscan = off as $$
    select s.id from headrace_internal.streams as s
    where exists (select from headrace_internal.unique_keys as u where u.stream_id = s.id) order by s.id
$$;
