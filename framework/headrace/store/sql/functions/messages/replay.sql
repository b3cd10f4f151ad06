-- replay: deliver messages again to one consumer, or publish them again into another stream.

create type headrace_internal.selection as (
    clause  text,       -- a condition over a message's columns, with every literal quoted by Postgres
    first   bigint,     -- the first seq that can match ...
    last    bigint      -- ... and the last one. Bounds for the planner, and for choosing the segments
);

-- Combine a selection into one clause: {"filter", "where", "start_seq", "end_seq", "start_time", "end_time"}, each optional.
-- All bounds are inclusive. Messages that have expired don't match.
create or replace function headrace_internal.compile_selection(p_stream headrace_internal.streams, p_selection json) returns headrace_internal.selection
language plpgsql as $$
declare
    v_from    constant timestamptz := p_selection ->> 'start_time';
    v_to      constant timestamptz := p_selection ->> 'end_time';
    v_chosen  headrace_internal.selection;
begin
    v_chosen.clause := headrace_internal.unexpired(headrace_internal.selection_condition(p_selection), clock_timestamp());
    v_chosen.first := greatest((p_selection ->> 'start_seq')::bigint, 1);
    v_chosen.last := least((p_selection ->> 'end_seq')::bigint, coalesce(pg_sequence_last_value(p_stream.sequence::regclass), 0));
    if v_from is not null then
        v_chosen.clause := v_chosen.clause || ' and created_at >= ' || headrace_internal.quoted_time(v_from);
        v_chosen.first := greatest(v_chosen.first, headrace_internal.seq_near(p_stream, v_from - interval '1 minute'));
    end if;
    if v_to is not null then
        v_chosen.clause := v_chosen.clause || ' and created_at <= ' || headrace_internal.quoted_time(v_to);
        v_chosen.last := least(v_chosen.last, headrace_internal.seq_near(p_stream, v_to + interval '1 minute'));
    end if;
    return v_chosen;
end $$;

-- The seqs of a selection that a consumer has examined: those up to its position that are no holes.
create or replace function headrace_internal.examined_seqs(p_cursor headrace_internal.cursors, p_chosen headrace_internal.selection) returns int8multirange
language sql as $$
    select int8multirange(int8range(p_chosen.first, greatest(least(p_chosen.last, p_cursor.position) + 1, p_chosen.first)))
           - (select * from headrace_internal.cursor_holes(p_cursor))
$$;

-- Return the SQL that selects seq and hash of the messages of a selection that a consumer's filters match and that no replay
-- has yet. Parameters: $1 the consumer, $2 the seqs that it has examined.
create or replace function headrace_internal.replayable_messages(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_chosen headrace_internal.selection
) returns text
language plpgsql as $$
begin
    return format($sql$
        from unnest($2) as examined cross join lateral (
            select seq, hashtextextended(key, 0) as hash from %s
            where seq >= lower(examined) and seq < upper(examined) and (%s) and (%s)) as m
        where not exists (select from headrace_internal.replays as r where r.consumer_id = $1 and r.seq = m.seq)
        $sql$, headrace_internal.table_of_range(p_stream, p_chosen.first, p_chosen.last), p_consumer.condition, p_chosen.clause);
end $$;

-- Add these messages to the consumer's replay.
create or replace function headrace_internal.add_replayed(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_chosen headrace_internal.selection, p_examined int8multirange,
    out count bigint, out first bigint
)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
begin
    execute format($sql$
        with added as (
            insert into headrace_internal.replays (consumer_id, seq, key_hash) select $1, m.seq, m.hash %s
            on conflict do nothing returning seq
        )
        select count(*), min(seq) from added
        $sql$, headrace_internal.replayable_messages(p_consumer, p_stream, p_chosen)) into count, first using p_consumer.id, p_examined;
end $$;

-- Deliver again the messages below a consumer's cursor that match both its own filters and the given ones. Messages
-- that are above the cursor, parked or blocked are delivered anyway, and are neither taken nor counted. So are those in
-- flight, unless an earlier message of their key is replayed: see headrace_internal.repeat_in_flight.
-- p_selection: see headrace_internal.compile_selection. p_dry_run: only count. Returns the number of messages.
-- Granted: admin
create or replace function headrace_internal.replay(p_consumer int, p_selection json, p_dry_run boolean) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_consumer  headrace_internal.consumers;
    v_stream    headrace_internal.streams;
    v_cursor    headrace_internal.cursors;
    v_chosen    headrace_internal.selection;
    v_examined  int8multirange;
    v_added     record;
    v_later     record;
    v_anyway    bigint[];
    v_gone      bigint;
begin
    perform headrace_internal.require_read_committed('headrace_internal.replay');
    select * into v_consumer from headrace_internal.consumers where id = p_consumer;
    if not found then
        perform headrace_internal.raise_consumer_gone();
    end if;
    select * into v_stream from headrace_internal.streams where id = v_consumer.stream_id;
    v_chosen := headrace_internal.compile_selection(v_stream, p_selection);
    -- The position and the holes are read before the messages. Messages that were missing when the cursor passed and
    -- have arrived since are still to be delivered.
    select * into v_cursor from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1;
    v_examined := headrace_internal.examined_seqs(v_cursor, v_chosen);
    if p_dry_run then
        execute format($sql$
            with keys as materialized (
                select m.hash, count(*) as count, min(m.seq) as first %s
                   and m.seq not in (select i.seq from headrace_internal.in_flight_seqs($1, 0) as i(seq))
                   and not exists (select from headrace_internal.parked as p where p.consumer_id = $1 and p.seq = m.seq)
                   and not exists (select from headrace_internal.tails as t where t.consumer_id = $1 and t.seq = m.seq)
                   and not exists (select from headrace_internal.dead_letters as d where d.consumer_id = $1 and d.seq = m.seq and d.blocks)
                group by m.hash
            )
            select coalesce(sum(count), 0) + (
                select count(*)
                from (select array_agg(hash) as hashes, array_agg(first) as firsts from keys
                      where hash in (select unnest(hashes) from headrace_internal.leases where consumer_id = $1)) as k
                cross join lateral headrace_internal.later_in_flight($3, $4, 0, k.hashes, k.firsts) as later
                where not exists (select from headrace_internal.tails as t where t.consumer_id = $1 and t.seq = later.seq))
            from keys
            $sql$, headrace_internal.replayable_messages(v_consumer, v_stream, v_chosen)) into v_gone using p_consumer, v_examined, v_consumer, v_stream;
        return v_gone;
    end if;

    -- This search may take long, and blocks no other session. The rows that it writes are not visible to others until
    -- the commit.
    v_added := headrace_internal.add_replayed(v_consumer, v_stream, v_chosen, v_examined);
    -- Then take the consumer's lock, and read its settings again, which an edit may have changed. Add the messages that it
    -- has examined meanwhile, and delete those that are delivered anyway by now, or were erased.
    v_consumer := headrace_internal.lock_consumer(p_consumer);
    perform headrace_internal.lock_out_erasures(v_stream.id);
    select * into v_cursor from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1;
    v_later := headrace_internal.add_replayed(v_consumer, v_stream, v_chosen, headrace_internal.examined_seqs(v_cursor, v_chosen) - v_examined);
    if v_added.count + v_later.count = 0 then
        return 0;
    end if;
    v_anyway := array(
        select i.seq from headrace_internal.in_flight_seqs(p_consumer, v_cursor.lease_floor) as i(seq)
        union all
        select p.seq from headrace_internal.parked as p where p.consumer_id = p_consumer and p.seq >= v_cursor.parked_floor
        union all
        select d.seq from headrace_internal.dead_letters as d where d.consumer_id = p_consumer and d.blocks
        union all
        select r.seq from headrace_internal.replays as r where r.consumer_id = p_consumer and exists (
            select from headrace_internal.tails as t where t.consumer_id = p_consumer and t.seq = r.seq)
        union all
        select r.seq from headrace_internal.cursor_holes(v_cursor) as h(holes) cross join unnest(h.holes) as hole cross join lateral (
            select seq from headrace_internal.replays where consumer_id = p_consumer and seq >= lower(hole) and seq < upper(hole)) as r
        union all
        select r.seq from headrace_internal.replays as r where r.consumer_id = p_consumer and r.seq > v_cursor.position
        union all
        select seq from headrace_internal.erased_replays(p_consumer, v_stream.id) as seq);
    delete from headrace_internal.replays where consumer_id = p_consumer and headrace_internal.is_one_of(seq, v_anyway);
    get diagnostics v_gone = row_count;
    perform headrace_internal.forget_replayed_cancellations(p_consumer);
    perform headrace_internal.start_replay(p_consumer, least(v_added.first, v_later.first));
    v_gone := v_gone - (
        select headrace_internal.repeat_in_flight(v_consumer, v_stream, v_cursor.lease_floor, array_agg(key_hash), array_agg(first))
        from (select key_hash, min(seq) as first from headrace_internal.replays
              where consumer_id = p_consumer and key_hash in (
                  select unnest(hashes) from headrace_internal.leases where consumer_id = p_consumer and lease_id >= v_cursor.lease_floor)
              group by key_hash) as k);
    perform headrace_internal.notify_stream(v_stream.id);
    return v_added.count + v_later.count - v_gone;
end $$;

-- Of each of these keys, the messages that are in flight and later than p_firsts. An unordered consumer has none.
create or replace function headrace_internal.later_in_flight(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_floor bigint, p_hashes bigint[], p_firsts bigint[]
) returns table (owner uuid, seq bigint, hash bigint)
language sql stable as $$
    select l.owner, m.seq, m.hash
    from headrace_internal.leases as l cross join headrace_internal.messages_of_lease(l) as m
    join (select hash, min(first) as first from unnest(p_hashes, p_firsts) as b(hash, first) group by hash) as b on b.hash = m.hash and b.first < m.seq
    where p_consumer.ordered and not p_stream.one_message_per_key and l.consumer_id = p_consumer.id and l.lease_id >= p_floor
      and not exists (select from headrace_internal.acks as a
                      where a.consumer_id = l.consumer_id and a.lease_id = l.lease_id and a.seq = m.seq)
$$;

-- Messages of these keys were put back, from p_firsts on, and later ones of the same keys are in flight. Their handlers
-- continue and their acks count, but afterwards these messages are delivered again, since their keys would end with an
-- older message otherwise, so they join the tails of their keys. Until they are settled, their keys are busy for their
-- own process, too: its leases get an owner that makes no lease calls. All of its leases, since a run of a key
-- may span several. Returns the number of messages that will be delivered again. The caller has the consumer's lock and
-- headrace_internal.lock_out_erasures.
create or replace function headrace_internal.repeat_in_flight(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_floor bigint, p_hashes bigint[], p_firsts bigint[]
) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_later  record;
    v_count  bigint;
begin
    select array_agg(distinct owner) as owners, array_agg(seq) as seqs, array_agg(hash) as hashes into v_later
        from headrace_internal.later_in_flight(p_consumer, p_stream, p_floor, p_hashes, p_firsts);
    if v_later.seqs is null then
        return 0;
    end if;
    perform from headrace_internal.leases where consumer_id = p_consumer.id and lease_id >= p_floor and owner = any (v_later.owners)
        order by lease_id for no key update;
    update headrace_internal.leases set owner = headrace_internal.repeating_owner(owner)
        where consumer_id = p_consumer.id and lease_id >= p_floor and owner = any (v_later.owners);
    -- One that was settled meanwhile is still delivered once more, or once if it has been parked.
    insert into headrace_internal.tails (consumer_id, key_hash, seq)
        select p_consumer.id, hash, seq from unnest(v_later.hashes, v_later.seqs) as m(hash, seq)
        where not headrace_internal.is_erased(p_stream.id, seq) on conflict do nothing;
    get diagnostics v_count = row_count;
    return v_count;
end $$;

-- Publish the messages of a stream that match, in their order, into another stream, or into the same one (the
-- messages that exist now). Runs in the caller's transaction: all or none. p_selection: see
-- headrace_internal.compile_selection. p_dry_run: only count. Returns the number of messages.
-- Granted: consume
create or replace function headrace_internal.republish(p_stream text, p_target text, p_selection json, p_dry_run boolean) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    c_messages  constant int := 1000;
    c_bytes     constant bigint := 4000000;
    v_stream    headrace_internal.streams;
    v_chosen    headrace_internal.selection;
    v_messages  text;
    v_message   record;
    v_keys      text[] := '{}';
    v_data      json[] := '{}';
    v_headers   json[] := '{}';
    v_bytes     bigint := 0;
    v_count     bigint := 0;
begin
    v_stream := headrace_internal.require_stream(p_stream);
    perform headrace_internal.require_stream(p_target);
    v_chosen := headrace_internal.compile_selection(v_stream, p_selection);
    v_messages := format('from %s where seq >= $1 and seq <= $2 and (%s)',
                         headrace_internal.table_of_range(v_stream, v_chosen.first, v_chosen.last), v_chosen.clause);
    if p_dry_run then
        execute 'select count(*) ' || v_messages into v_count using v_chosen.first, v_chosen.last;
        return v_count;
    end if;
    -- One cursor, and so one snapshot. It does not see what is published from here on, not even into the same stream.
    for v_message in execute 'select key, data, headers, pg_column_size(data) as bytes ' || v_messages || ' order by seq'
        using v_chosen.first, v_chosen.last
    loop
        v_keys := array_append(v_keys, v_message.key);
        v_data := array_append(v_data, v_message.data);
        v_headers := array_append(v_headers, v_message.headers);
        v_bytes := v_bytes + v_message.bytes;
        if cardinality(v_keys) >= c_messages or v_bytes >= c_bytes then
            v_count := v_count + headrace_internal.publish_messages(p_target, v_keys, v_data, v_headers);
            v_keys := '{}';
            v_data := '{}';
            v_headers := '{}';
            v_bytes := 0;
        end if;
    end loop;
    if v_keys <> '{}' then
        v_count := v_count + headrace_internal.publish_messages(p_target, v_keys, v_data, v_headers);
    end if;
    return v_count;
end $$;

-- The messages that are delivered apart from the cursor, those of a replay or the last of each key, may be many. They
-- are parked in portions. No fresh message is read before all are parked.

-- Record in the cursor that rows were added to headrace_internal.replays, the first of them p_first. The caller's transaction
-- holds the consumer's lock.
create or replace function headrace_internal.start_replay(p_consumer int, p_first bigint) returns void
language plpgsql as $$
declare
    v_cursor  headrace_internal.cursors;
    v_next    headrace_internal.cursors;
begin
    select * into v_cursor from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1;
    v_next := v_cursor;
    v_next.replay_floor := least(v_cursor.replay_floor, p_first);
    perform headrace_internal.write_cursor(v_cursor, v_next);
end $$;

-- Park the next p_scan_limit messages of a replay. Those that are leased or parked already are skipped.
create or replace function headrace_internal.park_replayed(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_cursor headrace_internal.cursors, p_scan_limit int
) returns headrace_internal.cursors
language plpgsql as $$
declare
    v_replayed  record;
begin
    with replayed as (
        delete from headrace_internal.replays where consumer_id = p_consumer.id and seq in (
            select seq from headrace_internal.replays where consumer_id = p_consumer.id and seq >= p_cursor.replay_floor order by seq limit p_scan_limit)
        returning seq, key_hash,
            seq in (select i.seq from headrace_internal.in_flight_seqs(p_consumer.id, p_cursor.lease_floor) as i(seq))
            or exists (select from headrace_internal.parked as p where p.consumer_id = p_consumer.id and p.seq = replays.seq)
            or exists (select from headrace_internal.tails as t where t.consumer_id = p_consumer.id and t.seq = replays.seq) as there
    )
    select array_agg(seq) filter (where not there) as seqs, array_agg(key_hash) filter (where not there) as hashes,
           min(seq) as first, max(seq) as last, count(*) as count
        into v_replayed from replayed;
    p_cursor.parked_floor := least(p_cursor.parked_floor, v_replayed.first);
    p_cursor.ready_floor := least(p_cursor.ready_floor, v_replayed.first);
    perform headrace_internal.park_by_key(p_consumer.id, v_replayed.seqs, v_replayed.hashes, p_cursor.parked_floor,
                             p_consumer.ordered, p_stream.one_message_per_key);
    p_cursor.replay_floor := case when v_replayed.count >= p_scan_limit then v_replayed.last + 1 end;
    return p_cursor;
end $$;
