-- Lists that were not read in pages.

-- Return the backfills of a source, or of all sources, the newest first.
create or replace function headrace_internal.backfill_info(p_source uuid default null, p_limit int default 100)
returns table (
    id uuid, source text, relation text, condition json, rate int, state text, reason text, total bigint, read bigint, published bigint,
    created_at timestamptz, started_at timestamptz, updated_at timestamptz, finished_at timestamptz
)
language sql stable as $$
    select b.uid, o.name, b.relation, b.condition, b.rate, b.state, b.reason, b.total, b.read, b.published, b.created_at, b.started_at,
           b.updated_at, b.finished_at
    from headrace_internal.backfills as b join headrace_internal.sources as o on o.id = b.source_id
    where p_source is null or o.uid = p_source order by b.id desc limit p_limit
$$;

-- Return the changes that could not be made into messages, the oldest first.
create or replace function headrace_internal.capture_failures(p_source uuid, p_above bigint default 0, p_limit int default 100)
returns table (id bigint, key text, data json, error text, failed_at timestamptz, attempts int, retry boolean)
language sql stable as $$
    select f.id, f.key, f.data, f.error, f.failed_at, f.attempts, f.retry
    from headrace_internal.capture_failures as f join headrace_internal.sources as o on o.id = f.source_id
    where o.uid = p_source and f.id > p_above order by f.id limit p_limit
$$;

-- The keys that a dead letter blocks, in the order of these letters' seqs. `waiting`: the number of messages of the
-- key behind it.
create or replace function headrace_internal.blocked_keys(
    p_consumer int, p_limit int, p_above bigint default 0, p_below bigint default null, p_newest boolean default false
)
returns table (key text, seq bigint, since timestamptz, waiting bigint, error text)
language sql stable set enable_seqscan = off set enable_bitmapscan = off as $$
    select letter.key, letter.seq, letter.died_at,
           letter.others + (select count(*) from headrace_internal.tails as t where t.consumer_id = p_consumer and t.key_hash = letter.key_hash),
           letter.error
    from (
        select distinct on (d.key_hash) d.*, count(*) over (partition by d.key_hash) - 1 as others
        from headrace_internal.dead_letters as d where d.consumer_id = p_consumer and d.blocks order by d.key_hash, d.seq) as letter
    where letter.seq > p_above and letter.seq < coalesce(p_below, 9223372036854775807)
    order by case when p_newest then - letter.seq else letter.seq end limit p_limit
$$;

-- Return at most p_limit messages of each state with a seq above p_after, in the order of seq, until their size as text
-- exceeds p_bytes. To find those that come next, at most p_scan_limit messages are examined.
create or replace function headrace_internal.peek(
    p_consumer int, p_limit int, p_scan_limit int default 10000, p_after bigint default 0, p_bytes bigint default null
) returns setof headrace_internal.peeked
language plpgsql stable as $$
declare
    v_message  headrace_internal.peeked;
    v_bytes    bigint := 0;
begin
    for v_message in select * from headrace_internal.peek_states(p_consumer, p_limit, p_scan_limit, p_after) order by seq loop
        return next v_message;
        v_bytes := v_bytes + octet_length(v_message.data::text) + coalesce(octet_length(v_message.headers::text), 0);
        exit when v_bytes >= p_bytes;
    end loop;
end $$;

-- Return at most p_limit messages of each state with a seq above p_after, state by state.
create or replace function headrace_internal.peek_states(p_consumer int, p_limit int, p_scan_limit int, p_after bigint) returns setof headrace_internal.peeked
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_consumer  headrace_internal.consumers;
    v_stream    headrace_internal.streams;
    v_cursor    headrace_internal.cursors;
    v_seqs bigint[]; v_attempts int[]; v_owners uuid[]; v_leases bigint[]; v_held int[]; v_until timestamptz[];
begin
    select * into v_consumer from headrace_internal.consumers where id = p_consumer;
    if not found then
        raise exception using errcode = 'HR002', message = 'The consumer no longer exists: declare it again.';
    end if;
    select * into v_stream from headrace_internal.streams where id = v_consumer.stream_id;
    select * into v_cursor from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1;

    select array_agg(l.seq), array_agg(l.attempt), array_agg(l.owner), array_agg(l.lease_id), array_agg(l.held), array_agg(l.expires_at)
        into v_seqs, v_attempts, v_owners, v_leases, v_held, v_until from (
            select m.seq, coalesce(m.attempt, 1) as attempt, held.owner, held.lease_id, held.held, held.expires_at
            from headrace_internal.leases as held cross join unnest(held.seqs, held.attempts) as m(seq, attempt)
            where held.consumer_id = p_consumer and held.lease_id >= v_cursor.lease_floor and m.seq > p_after order by m.seq limit p_limit) as l;
    return query select * from headrace_internal.peek_seqs(v_stream, 'in_flight', v_seqs, v_attempts, v_owners, v_leases, v_held, v_until);

    select array_agg(p.seq), array_agg(p.attempts), array_agg(nullif(p.due_at, '-infinity'))
        into v_seqs, v_attempts, v_until from (
            select seq, attempts, due_at from headrace_internal.parked
            where consumer_id = p_consumer and seq >= v_cursor.parked_floor and seq > p_after
            union all
            (select seq, 0, '-infinity' from headrace_internal.tails as t
             where consumer_id = p_consumer and seq > p_after and not exists (
                select from headrace_internal.dead_letters as d where d.consumer_id = p_consumer and d.key_hash = t.key_hash and d.blocks)
             order by seq limit p_limit)
            order by seq limit p_limit) as p;
    return query select * from headrace_internal.peek_seqs(v_stream, 'parked', v_seqs, v_attempts, null, null, null, v_until);

    v_seqs := array(
        select seq from headrace_internal.dead_letters where consumer_id = p_consumer and blocks and seq > p_after
        union all
        (select seq from headrace_internal.tails as t
         where consumer_id = p_consumer and seq > p_after and exists (
            select from headrace_internal.dead_letters as d where d.consumer_id = p_consumer and d.key_hash = t.key_hash and d.blocks)
         order by seq limit p_limit)
        order by seq limit p_limit);
    return query select * from headrace_internal.peek_seqs(v_stream, 'blocked', v_seqs, null, null, null, null, null);

    -- Replayed messages come before anything new.
    v_seqs := array(select seq from headrace_internal.replays
                    where consumer_id = p_consumer and seq >= v_cursor.replay_floor and seq > p_after order by seq limit p_limit);
    return query select * from headrace_internal.peek_seqs(v_stream, 'next', v_seqs, null, null, null, null, null);
    if p_limit > cardinality(v_seqs) then
        return query execute format($sql$
            select 'next', m.seq, m.key, m.data, m.headers, m.created_at, 0, null::uuid, null::bigint, null::int, null::timestamptz
            from (select seq, key, data, headers, created_at, (%s) as wanted from %s where seq > $1 order by seq limit $2) as m
            where wanted and not ($3 and exists (
                select from headrace_internal.dead_letters as d where d.consumer_id = $4 and d.key_hash = hashtextextended(m.key, 0) and d.blocks))
            order by m.seq limit $5
            $sql$, v_consumer.condition, v_stream.relation)
            using greatest(v_cursor.position, p_after), p_scan_limit, v_consumer.ordered, p_consumer, p_limit - cardinality(v_seqs);
    end if;
end $$;

-- Dead letters without the type of their error, and selected by less.

create or replace function headrace_internal.find_dead_letters(
    p_consumer int, p_filters text[], p_where json, p_above bigint, p_limit int,
    p_below bigint default null, p_newest boolean default false, p_bytes bigint default null
) returns setof headrace_internal.dead_letters
language sql stable as $$
    select * from headrace_internal.dead_letter_page(p_consumer, null, p_filters, p_where, p_above, p_limit, p_below, p_newest, p_bytes)
$$;

create or replace function headrace_internal.select_dead_letters(p_consumer int, p_seqs bigint[], p_key text, p_filters text[], p_where json)
returns bigint[]
language sql stable as $$
    select headrace_internal.chosen_dead_letters(p_consumer, json_build_object('seqs', p_seqs, 'key', p_key), p_filters, p_where)
$$;

create or replace function headrace_internal.redrive(
    p_consumer int, p_seqs bigint[] default null, p_key text default null, p_filters text[] default null,
    p_where json default null, p_dry_run boolean default false
) returns bigint
language sql as $$
    select headrace_internal.redrive_chosen(p_consumer, json_build_object('seqs', p_seqs, 'key', p_key), p_filters, p_where, p_dry_run)
$$;

create or replace function headrace_internal.discard(
    p_consumer int, p_seqs bigint[] default null, p_key text default null, p_filters text[] default null,
    p_where json default null, p_dry_run boolean default false
) returns bigint
language sql as $$
    select headrace_internal.discard_chosen(p_consumer, json_build_object('seqs', p_seqs, 'key', p_key), p_filters, p_where, p_dry_run)
$$;

create or replace function headrace_internal.settle(
    p_consumer int, p_whole bigint[],
    p_leases bigint[], p_seqs bigint[], p_outcomes text[], p_delays float8[], p_errors text[], p_tracebacks text[],
    p_now timestamptz default clock_timestamp(), p_timeline uuid default null
) returns table (lost_lease bigint, lost_seq bigint, lease_gone boolean)
language sql as $$
    select * from headrace_internal.settle_outcomes(p_consumer, p_whole, p_leases, p_seqs, p_outcomes, p_delays, p_errors, null,
                                                    p_tracebacks, p_now, p_timeline)
$$;

create or replace function headrace_internal.requeue(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_seqs bigint[], p_hashes bigint[], p_attempts int[],
    p_crashes int[], p_outcomes text[], p_delays float8[], p_errors text[], p_tracebacks text[], p_now timestamptz,
    p_since timestamptz default '-infinity'
) returns void
language sql as $$
    select headrace_internal.put_back(p_consumer, p_stream, p_seqs, p_hashes, p_attempts, p_crashes, p_outcomes, p_delays, p_errors, null,
                                      p_tracebacks, p_now, p_since)
$$;

create or replace function headrace_internal.store_dead_letters(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_seqs bigint[], p_hashes bigint[], p_attempts int[],
    p_outcomes text[], p_errors text[], p_tracebacks text[], p_now timestamptz
) returns void
language sql as $$
    select headrace_internal.insert_dead_letters(p_consumer, p_stream, p_seqs, p_hashes, p_attempts, p_outcomes, p_errors, null,
                                                 p_tracebacks, p_now)
$$;

-- Backfills, without those that compare.

-- Create a backfill. Returns null if another one of that table is queued or running.
create or replace function headrace_internal.start_backfill(p_source uuid, p_relation text, p_condition json, p_rate int) returns uuid
language plpgsql as $$
begin
    return headrace_internal.request_backfill(p_source, p_relation, 'backfill', p_condition, p_rate);
end $$;

-- Return the backfills of a source, or of all sources, the newest first: the first p_limit that are older than a place of
-- this list, a time and an id, or the last ones that are newer than a place, the oldest first, until the size of their
-- conditions and reasons exceeds p_bytes.
create or replace function headrace_internal.backfill_page(
    p_source uuid default null, p_limit int default 100, p_after_time timestamptz default null, p_after uuid default null,
    p_before_time timestamptz default null, p_before uuid default null, p_bytes bigint default null
)
returns table (
    id uuid, source text, relation text, condition json, rate int, state text, reason text, total bigint, read bigint, published bigint,
    created_at timestamptz, started_at timestamptz, updated_at timestamptz, finished_at timestamptz
)
language plpgsql stable as $$
declare
    v_bytes  bigint := 0;
begin
    for id, source, relation, condition, rate, state, reason, total, read, published, created_at, started_at, updated_at, finished_at in
        select b.uid, o.name, b.relation, b.condition, b.rate, b.state, b.reason, b.total, b.read, b.published, b.created_at, b.started_at,
               b.updated_at, b.finished_at
        from headrace_internal.backfills as b join headrace_internal.sources as o on o.id = b.source_id
        where b.kind = 'backfill' and (p_source is null or o.uid = p_source)
        and (p_after is null or (b.created_at, b.uid) < (p_after_time, p_after))
        and (p_before is null or (b.created_at, b.uid) > (p_before_time, p_before))
        order by case when p_before is not null then b.created_at end, case when p_before is not null then b.uid end,
                 b.created_at desc, b.uid desc
        limit p_limit
    loop
        return next;
        v_bytes := v_bytes + coalesce(octet_length(condition::text), 0) + coalesce(octet_length(reason), 0);
        exit when v_bytes >= p_bytes;
    end loop;
end $$;

-- Return the backfill to work on: the one that is running, or else the oldest that is queued.
create or replace function headrace_internal.next_backfill(p_source int)
returns table (id int, relation text, condition json, rate int, state text, place json, read bigint, total bigint)
language sql stable as $$
    select b.id, b.relation, b.condition, b.rate, b.state, b.place, b.read, b.total
    from headrace_internal.backfills as b where b.source_id = p_source and b.kind = 'backfill' and b.state in ('queued', 'running') order by b.state = 'queued', b.id limit 1
$$;

-- Return the sources to capture, without those of shared slots. Processes that call this would give them slots of
-- their own.
create or replace function headrace_internal.list_captures(p_now timestamptz default clock_timestamp())
returns table (source_id int, uid uuid, name text, stream text, settings json, updated_at timestamptz, paused boolean, free boolean, holder uuid)
language sql stable as $$
    select c.source_id, o.uid, o.name, s.name, o.settings, o.updated_at, c.paused_at is not null,
           c.held_until is null or c.held_until <= p_now, c.holder
    from headrace_internal.captures as c join headrace_internal.sources as o on o.id = c.source_id join headrace_internal.streams as s on s.id = o.stream_id
    where o.settings ->> 'shared_slot' is null
    order by o.name
$$;
