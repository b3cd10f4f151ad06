-- Dead letters: what became of messages that were rejected, did not fit, or failed too often; and the ways out.

-- Deliver dead letters again, attempts counted from zero. A key that was blocked goes on from the message that blocked it; if
-- several block it (a run that died as a whole), all of them are delivered again.
-- p_seqs: which, or null for all. Returns how many.
create function headrace.redrive(p_consumer int, p_seqs bigint[] default null) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_cursor  headrace.cursors;
    v_next    headrace.cursors;
    v_keys    bigint[];
    v_count   bigint;
begin
    perform pg_advisory_xact_lock(1212498508, p_consumer);
    select * into v_cursor from headrace.cursors where consumer_id = p_consumer order by version desc limit 1;
    v_next := v_cursor;
    with redriven as (
        delete from headrace.dead_letters
        where consumer_id = p_consumer
          and (p_seqs is null or seq = any (p_seqs)
               or blocks and key_hash in (select key_hash from headrace.dead_letters
                                          where consumer_id = p_consumer and blocks and seq = any (p_seqs)))
        returning seq, key_hash, blocks
    ), parked as (
        -- After the cursor was moved back, what lies ahead of it comes by itself, and what is leased again is there already.
        insert into headrace.parked (consumer_id, seq, key_hash, attempts, due_at)
        select p_consumer, seq, key_hash, 0, '-infinity' from redriven
        where not blocks and seq <= v_cursor.position
          and not exists (select from headrace.leases as l
                          where l.consumer_id = p_consumer and l.lease_id >= v_cursor.lease_floor and redriven.seq = any (l.seqs))
        on conflict do nothing
    )
    select count(*), least(min(seq), v_cursor.parked_floor), array_agg(key_hash) filter (where blocks)
        into v_count, v_next.parked_floor, v_keys from redriven;
    v_next.parked_floor := least(v_next.parked_floor, headrace.unblock(p_consumer, v_keys));
    perform headrace.move(v_cursor, v_next);
    return v_count;
end $$;

-- Forget dead letters. A key that was blocked goes on after the last message that blocked it. Returns how many.
create function headrace.discard(p_consumer int, p_seqs bigint[] default null) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_cursor  headrace.cursors;
    v_next    headrace.cursors;
    v_keys    bigint[];
    v_heads   bigint[];
    v_count   bigint;
begin
    perform pg_advisory_xact_lock(1212498508, p_consumer);
    select * into v_cursor from headrace.cursors where consumer_id = p_consumer order by version desc limit 1;
    v_next := v_cursor;
    with discarded as (
        delete from headrace.dead_letters
        where consumer_id = p_consumer and (p_seqs is null or seq = any (p_seqs))
        returning seq, key_hash, blocks
    )
    select count(*), least(min(seq), v_cursor.parked_floor),
           array_agg(key_hash) filter (where blocks), array_agg(seq) filter (where blocks)
        into v_count, v_next.parked_floor, v_keys, v_heads from discarded;
    delete from headrace.blocked where consumer_id = p_consumer and key_hash = any (v_keys) and seq = any (v_heads);
    v_keys := array(select key_hash from unnest(v_keys) as k(key_hash) where not exists (
        select from headrace.dead_letters as d where d.consumer_id = p_consumer and d.blocks and d.key_hash = k.key_hash));
    v_next.parked_floor := least(v_next.parked_floor, headrace.unblock(p_consumer, v_keys));
    perform headrace.move(v_cursor, v_next);
    return v_count;
end $$;

-- The messages of blocked keys become parked ones, due now. The caller holds the consumer's lock. Returns the lowest seq, from
-- which they must be looked for: one that committed late may be lower than the message that blocked its key.
create function headrace.unblock(p_consumer int, p_keys bigint[]) returns bigint
language sql as $$
    with freed as (
        delete from headrace.blocked where consumer_id = p_consumer and key_hash = any (p_keys) returning seq, key_hash
    ), parked as (
        insert into headrace.parked (consumer_id, seq, key_hash, attempts, due_at)
        select p_consumer, seq, key_hash, 0, '-infinity' from freed on conflict do nothing
    )
    select min(seq) from freed
$$;
