-- Read messages without leasing them: those of a stream, or those that a consumer has in hand or will get next.

create type headrace_internal.peeked as (
    state       text,           -- in_flight, parked, blocked, or next
    seq bigint, key text, data json, headers json, created_at timestamptz,
    attempts    int,            -- deliveries so far that counted, including the one in flight
    owner       uuid,           -- the owner, if it is in flight ...
    lease_id    bigint,         -- ... the lease ...
    held        int,            -- ... and the number of messages in the lease
    until       timestamptz,    -- when the lease ends, or when a parked message is due, null for now
    failed_at   timestamptz,    -- of its last attempt, if it is parked, or if it blocks its key ...
    error text, error_type text,
    failed_by   text            -- ... and the process, as headrace_internal.failed_attempt has it
);

-- A message that was found, without its contents.
create or replace function headrace_internal.peeked_seq(
    p_state text, p_seq bigint, p_attempts int, p_until timestamptz default null, p_failure headrace_internal.failed_attempt default null
) returns headrace_internal.peeked
language sql immutable as $$
    select row(p_state, p_seq, null, null, null, null, p_attempts, null, null, null, p_until,
               p_failure.at, p_failure.error, p_failure.error_type, p_failure.process)::headrace_internal.peeked
$$;

-- Return at most p_limit messages of each state, in the order of seq, until their size as text exceeds p_bytes: the first
-- ones above p_after, or the last ones below p_before in descending order. To find those that come next, at most
-- p_scan_limit messages are examined. p_states: which states, null for all.
-- Granted: consume
create or replace function headrace_internal.peek_page(
    p_consumer int, p_limit int, p_scan_limit int default 10000, p_after bigint default 0, p_bytes bigint default null,
    p_before bigint default null, p_states text[] default null
) returns setof headrace_internal.peeked
language plpgsql as $$
declare
    v_message  headrace_internal.peeked;
    v_bytes    bigint := 0;
begin
    for v_message in
        select * from headrace_internal.peek_states_page(p_consumer, p_limit, p_scan_limit, p_after, p_before, p_states)
        order by case when p_before is null then seq else - seq end
    loop
        return next v_message;
        v_bytes := v_bytes + octet_length(v_message.data::text) + coalesce(octet_length(v_message.headers::text), 0);
        exit when v_bytes >= p_bytes;
    end loop;
end $$;

-- Return at most p_limit messages of each state between two seqs, state by state: the first ones, or the last if p_before
-- is given.
create or replace function headrace_internal.peek_states_page(
    p_consumer int, p_limit int, p_scan_limit int, p_after bigint, p_before bigint, p_states text[]
) returns setof headrace_internal.peeked
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_consumer  headrace_internal.consumers;
    v_stream    headrace_internal.streams;
    v_cursor    headrace_internal.cursors;
    v_below     bigint := coalesce(p_before, 9223372036854775807);
    v_order     text := case when p_before is null then 'asc' else 'desc' end;
    v_states    text[] := coalesce(p_states, '{in_flight,parked,blocked,next}');
    v_part      text;
    v_count     int;
    v_rest      int := p_limit;
    v_found     headrace_internal.peeked[];
begin
    select * into v_consumer from headrace_internal.consumers where id = p_consumer;
    select * into v_stream from headrace_internal.streams where id = v_consumer.stream_id;
    select * into v_cursor from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1;
    if not found then       -- read last, so that the others were there
        perform headrace_internal.raise_consumer_gone();
    end if;

    if 'in_flight' = any (v_states) then
        execute format($sql$
            select array(
                select row('in_flight', m.seq, null, null, null, null, m.attempt, l.owner, l.lease_id, l.held, l.expires_at,
                           null, null, null, null)::headrace_internal.peeked
                from headrace_internal.leases as l cross join headrace_internal.messages_of_lease(l) as m
                where l.consumer_id = $1 and l.lease_id >= $2 and m.seq > $3 and m.seq < $4 order by m.seq %s limit $5)
            $sql$, v_order)
            into v_found using p_consumer, v_cursor.lease_floor, p_after, v_below, p_limit;
        return query select * from headrace_internal.peek_seqs(v_stream, v_found);
    end if;

    if 'parked' = any (v_states) then
        execute format($sql$
            select array(select headrace_internal.peeked_seq('parked', seq, attempts, nullif(due_at, '-infinity'), failure) from (
                (select seq, attempts, due_at, failure from headrace_internal.parked
                 where consumer_id = $1 and seq >= $2 and seq > $3 and seq < $4 order by seq %1$s limit $5)
                union all
                (select seq, 0, '-infinity', null from headrace_internal.tails as t
                 where consumer_id = $1 and seq > $3 and seq < $4 and not exists (
                    select from headrace_internal.dead_letters as d where d.consumer_id = $1 and d.key_hash = t.key_hash and d.blocks)
                 order by seq %1$s limit $5)
                order by seq %1$s limit $5) as p)
            $sql$, v_order)
            into v_found using p_consumer, v_cursor.parked_floor, p_after, v_below, p_limit;
        return query select * from headrace_internal.peek_seqs(v_stream, v_found);
    end if;

    if 'blocked' = any (v_states) then
        execute format($sql$
            select array(select headrace_internal.peeked_seq('blocked', seq, 0, null, failure) from (
                (select seq, row(died_at, error, error_type, null)::headrace_internal.failed_attempt as failure from headrace_internal.dead_letters
                 where consumer_id = $1 and blocks and seq > $2 and seq < $3 order by seq %1$s limit $4)
                union all
                (select seq, null from headrace_internal.tails as t
                 where consumer_id = $1 and seq > $2 and seq < $3 and exists (
                    select from headrace_internal.dead_letters as d where d.consumer_id = $1 and d.key_hash = t.key_hash and d.blocks)
                 order by seq %1$s limit $4)
                order by seq %1$s limit $4) as b)
            $sql$, v_order)
            into v_found using p_consumer, p_after, v_below, p_limit;
        return query select * from headrace_internal.peek_seqs(v_stream, v_found);
    end if;

    -- Replayed messages come before anything new, so they are the last when it is read backwards.
    foreach v_part in array case when 'next' <> all (v_states) then '{}' when p_before is null then '{replayed,new}' else '{new,replayed}' end::text[] loop
        exit when v_rest = 0;
        if v_part = 'replayed' then
            execute format(
                $sql$select array(select headrace_internal.peeked_seq('next', seq, 0) from headrace_internal.replays
                                  where consumer_id = $1 and seq >= $2 and seq > $3 and seq < $4 order by seq %s limit $5)$sql$,
                v_order) into v_found using p_consumer, v_cursor.replay_floor, p_after, v_below, v_rest;
            v_rest := v_rest - cardinality(v_found);
            return query select * from headrace_internal.peek_seqs(v_stream, v_found);
        else
            return query execute format($sql$
                select 'next', m.seq, m.key, m.data, m.headers, m.created_at, 0, null::uuid, null::bigint, null::int, null::timestamptz,
                       null::timestamptz, null, null, null
                from (select seq, key, data, headers, created_at, (%1$s) as wanted from %2$s
                      where seq > $1 and seq < $6 order by seq %3$s limit $2) as m
                where wanted and not ($3 and exists (
                    select from headrace_internal.dead_letters as d where d.consumer_id = $4 and d.key_hash = hashtextextended(m.key, 0) and d.blocks))
                order by m.seq %3$s limit $5
                $sql$, headrace_internal.unexpired(headrace_internal.unread_condition(v_consumer, v_cursor.position), clock_timestamp()), v_stream.relation,
                v_order)
                using greatest(v_cursor.position, p_after), p_scan_limit, v_consumer.ordered, p_consumer, v_rest, v_below;
            get diagnostics v_count = row_count;
            v_rest := v_rest - v_count;
        end if;
    end loop;
end $$;

-- Return those of these messages that are still in the stream, with their contents. They are in the order of seq, or in
-- the opposite one.
create or replace function headrace_internal.peek_seqs(p_stream headrace_internal.streams, p_found headrace_internal.peeked[])
returns setof headrace_internal.peeked
language plpgsql as $$
declare
    v_first  bigint := p_found[1].seq;
    v_last   bigint := p_found[cardinality(p_found)].seq;
begin
    if v_first is not null then
        return query execute format($sql$
            select s.state, m.seq, m.key, m.data, m.headers, m.created_at, s.attempts, s.owner, s.lease_id, s.held, s.until,
                   s.failed_at, s.error, s.error_type, s.failed_by
            from unnest($1) as s
            cross join lateral (select t.seq, t.key, t.data, t.headers, t.created_at from %s as t where t.seq = s.seq) as m
            order by m.seq
            $sql$, headrace_internal.table_of_range(p_stream, least(v_first, v_last), greatest(v_first, v_last)))
            using p_found;
    end if;
end $$;

-- Return the messages of these seqs that are still in the stream. It reads a single segment where that suffices.
-- Granted: consume
create or replace function headrace_internal.messages_at(p_stream int, p_seqs bigint[])
returns table (seq bigint, key text, data json, headers json, created_at timestamptz)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream  headrace_internal.streams;
begin
    select * into v_stream from headrace_internal.streams where id = p_stream;
    if found then
        return query execute format(
            'select seq, key, data, headers, created_at from %s where seq = any ($1)',
            headrace_internal.table_of_range(v_stream, (select min(s) from unnest(p_seqs) as s), (select max(s) from unnest(p_seqs) as s))) using p_seqs;
    end if;
end $$;
