-- Dead letters: messages that were rejected, invalid, or failed too often. They can be redriven or discarded.

-- Return the SQL condition of the dead letters that match everything that is given.
--
-- p_choice: {"seqs", "key", "filter", "where", "reason", "error", "error_type", "since", "until"}, each optional. An empty
-- error or error_type selects those without one. since and until are times of death, until is exclusive. Texts are equal,
-- or they don't match. filter and where: see headrace_internal.selection_condition.
create or replace function headrace_internal.dead_letter_condition(p_choice json) returns text
language sql stable as $$
    select concat_ws(' and ',
        -- The bounds are for the planner. Without them it reads all dead letters of the consumer, by any of its indexes.
        (select format('seq >= %s and seq <= %s', min(s::bigint), max(s::bigint)) from json_array_elements_text(p_choice -> 'seqs') as s
         having count(*) > 0),
        'seq = any (' || quote_literal(translate(p_choice ->> 'seqs', '[]', '{}')) || '::bigint[])',
        'key = ' || quote_literal(p_choice ->> 'key'),
        'reason = ' || quote_literal(p_choice ->> 'reason'),
        case p_choice ->> 'error_type' when '' then 'error_type is null' else 'error_type = ' || quote_literal(p_choice ->> 'error_type') end,
        case p_choice ->> 'error' when '' then 'error is null' else 'error = ' || quote_literal(p_choice ->> 'error') end,
        'died_at >= ' || quote_literal(p_choice ->> 'since') || '::timestamptz',
        'died_at < ' || quote_literal(p_choice ->> 'until') || '::timestamptz',
        '(' || headrace_internal.selection_condition(p_choice) || ')')
$$;

-- List a consumer's dead letters that match, with a seq above p_above, in the order of seq.
--
-- p_choice: which ones, see headrace_internal.dead_letter_condition.
-- p_below, p_newest: the last p_limit of them below this seq, in descending order. p_bytes: until their size as text
-- exceeds this.
-- Granted: consume
create or replace function headrace_internal.dead_letter_page(
    p_consumer int, p_choice json, p_above bigint, p_limit int,
    p_below bigint default null, p_newest boolean default false, p_bytes bigint default null
) returns setof headrace_internal.dead_letters
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_letter  headrace_internal.dead_letters;
    v_bytes   bigint := 0;
begin
    for v_letter in execute format(
        'select * from headrace_internal.dead_letters where consumer_id = $1 and seq > $2 and seq < $4 and %s order by seq %s limit $3',
        headrace_internal.dead_letter_condition(p_choice), case when p_newest then 'desc' else '' end)
        using p_consumer, p_above, p_limit, coalesce(p_below, 9223372036854775807)
    loop
        return next v_letter;
        v_bytes := v_bytes + octet_length(v_letter.data::text) + coalesce(octet_length(v_letter.headers::text), 0)
            + coalesce(octet_length(v_letter.error), 0) + coalesce(octet_length(v_letter.traceback), 0);
        exit when v_bytes >= p_bytes;
    end loop;
end $$;

-- Count a consumer's dead letters that match, in groups of equal values, and return the p_limit largest groups.
--
-- p_by: 'type', 'error', 'reason', 'key', 'hour' or 'day' (of their death, in UTC). The value of a group is null for dead letters
-- without one.
-- Granted: consume
create or replace function headrace_internal.dead_letter_groups(
    p_consumer int, p_by text, p_limit int, p_choice json default null
) returns table (value text, messages bigint, first_died_at timestamptz, last_died_at timestamptz, lowest bigint, highest bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set work_mem = '64MB' as $$
begin
    -- Times become text only after they are counted, since that costs more than counting them.
    return query execute format($sql$
        select %s, counted.messages, counted.first, counted.last, counted.lowest, counted.highest from (
            select %s as value, count(*) as messages, min(died_at) as first, max(died_at) as last, min(seq) as lowest, max(seq) as highest
            from headrace_internal.dead_letters where consumer_id = $1 and %s group by 1 order by 2 desc, 1 limit $2) as counted
        order by 2 desc, counted.value
        $sql$, case p_by when 'hour' then $c$to_char(counted.value, 'YYYY-MM-DD"T"HH24:00"Z"')$c$ when 'day' then $c$to_char(counted.value, 'YYYY-MM-DD')$c$
                         else 'counted.value' end,
        case p_by when 'type' then 'error_type' when 'error' then 'error' when 'reason' then 'reason' when 'key' then 'key'
                  when 'hour' then $c$date_trunc('hour', died_at at time zone 'UTC')$c$
                  when 'day' then $c$date_trunc('day', died_at at time zone 'UTC')$c$ end,
        headrace_internal.dead_letter_condition(p_choice))
        using p_consumer, p_limit;
end $$;

-- Return the seqs of the dead letters that match, see headrace_internal.dead_letter_condition.
create or replace function headrace_internal.chosen_dead_letters(p_consumer int, p_choice json) returns bigint[]
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_seqs  bigint[];
begin
    execute format(
        'select coalesce(array_agg(seq), ''{}'') from headrace_internal.dead_letters where consumer_id = $1 and %s',
        headrace_internal.dead_letter_condition(p_choice)) into v_seqs using p_consumer;
    return v_seqs;
end $$;

-- The next two functions look up each dead letter that was chosen. A hash or merge join would read all of the consumer.

-- Deliver dead letters again. Attempts count from zero, and messages of a key keep their order: later ones that are in
-- flight are delivered again, see headrace_internal.repeat_in_flight. A blocked key continues from the message that blocked it. If several messages block it (a run that died as a whole), all of them
-- are delivered again.
--
-- If retention has removed a dead letter's message, it can't be delivered. It stays, and isn't counted. (In a stream
-- with one message per key, a newer message may have replaced it, and that one is delivered in any case.)
-- p_choice: which dead letters, see headrace_internal.dead_letter_condition. p_dry_run: only count.
-- Returns the number of dead letters.
-- Granted: admin
create or replace function headrace_internal.redrive_chosen(
    p_consumer int, p_choice json default null, p_dry_run boolean default false
) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    v_consumer  headrace_internal.consumers;
    v_stream    headrace_internal.streams;
    v_cursor    headrace_internal.cursors;
    v_next      headrace_internal.cursors;
    v_seqs      bigint[];
    v_redriven  record;
begin
    v_consumer := headrace_internal.lock_consumer(p_consumer);
    select * into v_cursor from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1;
    select * into v_stream from headrace_internal.streams where id = v_consumer.stream_id;
    v_seqs := headrace_internal.chosen_dead_letters(p_consumer, p_choice);
    -- The keys are looked up one by one, since thousands of dead letters of other keys may block these.
    v_seqs := array(
        select unnest(v_seqs)
        union
        select d.seq
        from (
            select distinct b.key_hash from unnest(v_seqs) as c(seq)
            join headrace_internal.dead_letters as b on b.consumer_id = p_consumer and b.seq = c.seq
            where b.blocks) as k
        cross join lateral (
            select b.seq from headrace_internal.dead_letters as b
            where b.consumer_id = p_consumer and b.blocks and (b.key_hash, b.seq) >= (k.key_hash, 0) and b.key_hash <= k.key_hash
            order by b.key_hash, b.seq) as d);
    if not v_stream.one_message_per_key then
        execute format('select array_agg(m.seq) from unnest($1) as wanted cross join lateral (
                            select t.seq from %s as t where t.seq = wanted) as m', v_stream.relation) into v_seqs using v_seqs;
    end if;
    -- A message that has expired would not be delivered, so it stays a dead letter, until it is discarded.
    v_seqs := array(
        select d.seq from unnest(v_seqs) as c(seq)
        join headrace_internal.dead_letters as d on d.consumer_id = p_consumer and d.seq = c.seq
        where not headrace_internal.is_expired(d.headers, d.created_at, clock_timestamp()));
    if p_dry_run or v_seqs = '{}' then
        return cardinality(v_seqs);
    end if;
    perform headrace_internal.end_cancellations(v_cursor, clock_timestamp());
    v_next := v_cursor;
    perform headrace_internal.lock_out_erasures(v_stream.id);
    with redriven as (
        delete from headrace_internal.dead_letters as d using unnest(v_seqs) as c(seq)
        where d.consumer_id = p_consumer and d.seq = c.seq
        returning d.seq, d.key_hash, d.blocks,
            -- After the cursor was moved back, messages above it are delivered from the stream. Messages that are
            -- leased again, or wait for a replay, are there already.
            d.blocks or d.seq <= v_cursor.position
                and d.seq not in (select i.seq from headrace_internal.in_flight_seqs(p_consumer, v_cursor.lease_floor) as i(seq))
                and not exists (select from headrace_internal.replays as r where r.consumer_id = p_consumer and r.seq = d.seq)
                and not exists (select from headrace_internal.parked as p where p.consumer_id = p_consumer and p.seq = d.seq)
                and not exists (select from headrace_internal.tails as t where t.consumer_id = p_consumer and t.seq = d.seq) as missing
    )
    select count(*) as count, min(seq) as first, array_agg(key_hash) filter (where blocks) as keys,
           array_agg(seq) filter (where missing) as seqs, array_agg(key_hash) filter (where missing) as hashes
        into v_redriven from redriven;
    v_next.parked_floor := least(v_redriven.first, v_cursor.parked_floor);
    perform headrace_internal.park_by_key(p_consumer, v_redriven.seqs, v_redriven.hashes, v_next.parked_floor,
                             v_consumer.ordered, v_stream.one_message_per_key);
    v_next.parked_floor := least(v_next.parked_floor, headrace_internal.promote_tails(p_consumer, v_redriven.keys, null, v_next.parked_floor));
    v_next.ready_floor := least(v_next.ready_floor, v_next.parked_floor);
    perform headrace_internal.repeat_in_flight(v_consumer, v_stream, v_cursor.lease_floor, v_redriven.hashes, v_redriven.seqs);
    perform headrace_internal.write_cursor(v_cursor, v_next);
    perform headrace_internal.notify_stream(v_stream.id);
    return v_redriven.count;
end $$;

-- Delete dead letters. A blocked key continues after the last message that blocked it.
-- p_choice: which dead letters, see headrace_internal.dead_letter_condition. p_dry_run: only count.
-- Returns the number of dead letters.
-- Granted: admin
create or replace function headrace_internal.discard_chosen(
    p_consumer int, p_choice json default null, p_dry_run boolean default false
) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    v_consumer  headrace_internal.consumers;
    v_cursor    headrace_internal.cursors;
    v_next      headrace_internal.cursors;
    v_seqs      bigint[];
    v_keys      bigint[];
    v_count     bigint;
begin
    v_consumer := headrace_internal.lock_consumer(p_consumer);
    select * into v_cursor from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1;
    v_seqs := headrace_internal.chosen_dead_letters(p_consumer, p_choice);
    if p_dry_run or v_seqs = '{}' then
        return cardinality(v_seqs);
    end if;
    v_next := v_cursor;
    with discarded as (
        delete from headrace_internal.dead_letters as d using unnest(v_seqs) as c(seq)
        where d.consumer_id = p_consumer and d.seq = c.seq
        returning d.seq, d.key_hash, d.blocks
    )
    select count(*), least(min(seq), v_cursor.parked_floor),
           array_agg(key_hash) filter (where blocks)
        into v_count, v_next.parked_floor, v_keys from discarded;
    v_next.parked_floor := least(v_next.parked_floor, headrace_internal.promote_tails(p_consumer, v_keys, null, v_next.parked_floor));
    v_next.ready_floor := least(v_next.ready_floor, v_next.parked_floor);
    perform headrace_internal.write_cursor(v_cursor, v_next);
    if v_keys is not null then
        perform headrace_internal.notify_stream(v_consumer.stream_id);
    end if;
    return v_count;
end $$;
