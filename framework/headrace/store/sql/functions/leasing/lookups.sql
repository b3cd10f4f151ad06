-- How parked messages, tails and dead letters are looked up.
--
-- Each lookup must read its own index from a floor up, because below it there may be very many dead rows. The
-- planner's statistics can't be relied on for that. These tables are empty at one moment and hold a hundred thousand
-- rows at the next, so all indexes of a table seem to cost the same. So each lookup asks for an order that only one
-- index has, written as a comparison of rows, and the functions that call it turn sorting off.
--
-- The lookups are inlined into the statements that call them, and so cost nothing by themselves. For that they return
-- a set and are stable, and their arguments are neither volatile nor subqueries.

-- The ends of a list of ids. Mostly it is in order, and then no query is needed.
create or replace function headrace_internal.lowest_of(p_ids bigint[]) returns bigint
language plpgsql immutable as $$
begin
    return case when p_ids[1] <= all (p_ids) then p_ids[1] else (select min(id) from unnest(p_ids) as id) end;
end $$;

create or replace function headrace_internal.highest_of(p_ids bigint[]) returns bigint
language plpgsql immutable as $$
begin
    return case when p_ids[cardinality(p_ids)] >= all (p_ids) then p_ids[cardinality(p_ids)] else (select max(id) from unnest(p_ids) as id) end;
end $$;

-- Whether an id, after a consumer's in an index, is one of these. Before version 17 of the server, an index is read with such an
-- array or without it, whichever seems cheaper. Where few rows are expected, all rows of the consumer would be read, with the dead
-- ones, so their range bounds it in any case.
create or replace function headrace_internal.is_one_of(p_id bigint, p_ids bigint[]) returns boolean
language sql immutable as $$
    select p_id = any (p_ids) and p_id >= headrace_internal.lowest_of(p_ids) and p_id <= headrace_internal.highest_of(p_ids)
$$;

-- The lowest parked message of a consumer.
create or replace function headrace_internal.first_parked(p_consumer int, p_floor bigint) returns setof bigint
language sql stable as $$
    select seq from headrace_internal.parked where consumer_id = p_consumer and seq >= p_floor order by seq limit 1
$$;

-- The lowest parked message of a key.
create or replace function headrace_internal.first_parked_of_key(p_consumer int, p_hash bigint, p_floor bigint) returns setof bigint
language sql stable as $$
    select seq from headrace_internal.parked
    where consumer_id = p_consumer and (key_hash, seq) >= (p_hash, p_floor) and key_hash <= p_hash
    order by key_hash, seq limit 1
$$;

-- The parked messages that are due immediately, in the order of seq.
create or replace function headrace_internal.parked_ready(p_consumer int, p_floor bigint) returns setof headrace_internal.parked
language sql stable as $$
    select * from headrace_internal.parked
    where consumer_id = p_consumer and (due_at, seq) >= ('-infinity', p_floor) and due_at <= '-infinity'
    order by due_at, seq
$$;

-- The other parked messages that are due, in the order of their times.
create or replace function headrace_internal.parked_due(p_consumer int, p_floor timestamptz, p_now timestamptz) returns setof headrace_internal.parked
language sql stable as $$
    select * from headrace_internal.parked
    where consumer_id = p_consumer and due_at > '-infinity' and due_at >= p_floor and due_at <= p_now
    order by due_at, seq
$$;

-- The lowest dead letter that blocks a key.
create or replace function headrace_internal.first_blocking(p_consumer int, p_floor bigint) returns setof bigint
language sql stable as $$
    select seq from headrace_internal.dead_letters
    where consumer_id = p_consumer and (blocks, seq) >= (true, p_floor) order by blocks, seq limit 1
$$;

-- The lowest dead letter that blocks this key.
create or replace function headrace_internal.first_blocking_of_key(p_consumer int, p_hash bigint, p_floor bigint) returns setof bigint
language sql stable as $$
    select seq from headrace_internal.dead_letters
    where consumer_id = p_consumer and blocks and (key_hash, seq) >= (p_hash, p_floor) and key_hash <= p_hash
    order by key_hash, seq limit 1
$$;

create type headrace_internal.parked_state as (
    lowest    bigint,       -- the lowest of all that are parked
    ready     bigint,       -- the lowest of those that are due immediately
    due_at    timestamptz,  -- the earliest time of the others that are due
    due_next  timestamptz,  -- the earliest time of those that are not due
    blocked   bigint        -- the lowest message that blocks its key
);

-- The state of the parked messages. p_lowest is the first parked message, and p_blocked the first message that blocks
-- its key. Each other value is the first entry of an index from its floor up. In an ordered consumer, a message of a
-- blocked key never falls due.
create or replace function headrace_internal.parked_state(
    p_consumer int, p_lowest bigint, p_blocked bigint, p_ordered boolean, p_ready_floor bigint, p_due_floor timestamptz, p_blocked_floor bigint,
    p_now timestamptz
) returns setof headrace_internal.parked_state
language sql stable as $$
    select p_lowest,
           (select seq from headrace_internal.parked_ready(p_consumer, p_ready_floor) limit 1),
           (select due_at from headrace_internal.parked_due(p_consumer, p_due_floor, p_now) limit 1),
           (select due_at from headrace_internal.parked as p
            where consumer_id = p_consumer and due_at > '-infinity' and due_at > p_now
              and not (p_ordered and p_blocked is not null
                       and exists (select from headrace_internal.first_blocking_of_key(p_consumer, p.key_hash, p_blocked_floor)))
            order by due_at, seq limit 1),
           p_blocked
$$;

-- Return the number of parked messages, counted up to p_limit.
create or replace function headrace_internal.count_parked(p_cursor headrace_internal.cursors, p_limit int) returns int
language plpgsql set enable_sort = off as $$
begin
    return (select count(*) from (
        select from headrace_internal.parked
        where consumer_id = p_cursor.consumer_id and seq >= p_cursor.parked_floor order by seq limit p_limit) as few);
end $$;

-- Return whether a parked message is due.
create or replace function headrace_internal.has_due_message(p_cursor headrace_internal.cursors, p_now timestamptz) returns boolean
language plpgsql set enable_sort = off as $$
begin
    return coalesce(
        (select true from headrace_internal.parked_ready(p_cursor.consumer_id, p_cursor.ready_floor) limit 1),
        (select true from headrace_internal.parked_due(p_cursor.consumer_id, p_cursor.due_floor, p_now) limit 1), false);
end $$;

-- Return those of these keys that have a parked message (if p_parked) or are blocked (if p_blocked).
create or replace function headrace_internal.filter_waiting_keys(
    p_hashes bigint[], p_consumer int, p_parked boolean, p_blocked boolean, p_parked_floor bigint, p_blocked_floor bigint
) returns bigint[]
language plpgsql set enable_sort = off as $$
begin
    return array(
        select hash from unnest(p_hashes) as hash
        where p_parked and (select true from headrace_internal.first_parked_of_key(p_consumer, hash, p_parked_floor))
           or p_blocked and (select true from headrace_internal.first_blocking_of_key(p_consumer, hash, p_blocked_floor)));
end $$;

-- The number of waiting keys up to which they are listed.
create or replace function headrace_internal.max_listed_keys() returns int language sql immutable as 'select 50';

create type headrace_internal.waiting_keys as (
    hashes   bigint[],  -- the listed keys, if there are few
    parked   boolean,   -- whether each key must be looked up among the parked messages instead
    blocked  boolean    -- whether each key must be looked up among the blocked keys instead
);

-- Return the keys that are parked or blocked, so that their fresh messages must wait. A list of a few keys is cheaper
-- than a lookup for each key of a batch.
create or replace function headrace_internal.waiting_keys(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_cursor headrace_internal.cursors, p_parked boolean, p_blocked boolean
) returns headrace_internal.waiting_keys
language plpgsql set enable_sort = off as $$
declare
    c_few     constant int := headrace_internal.max_listed_keys();
    v_hashes  bigint[];
    v_result  headrace_internal.waiting_keys;
begin
    v_result.parked := p_parked and p_consumer.ordered and not p_stream.one_message_per_key;
    v_result.blocked := p_blocked and p_consumer.ordered;
    if v_result.parked then
        v_hashes := array(select key_hash from headrace_internal.parked
                          where consumer_id = p_consumer.id and seq >= p_cursor.parked_floor order by seq limit c_few + 1);
        if cardinality(v_hashes) <= c_few then
            v_result.hashes := v_hashes;
            v_result.parked := false;
        end if;
    end if;
    if v_result.blocked then
        v_hashes := array(select key_hash from headrace_internal.dead_letters
                          where consumer_id = p_consumer.id and (blocks, seq) >= (true, p_cursor.blocked_floor)
                          order by blocks, seq limit c_few + 1);
        if cardinality(v_hashes) <= c_few then
            v_result.hashes := v_result.hashes || v_hashes;
            v_result.blocked := false;
        end if;
    end if;
    return v_result;
end $$;

-- Return the messages of a lease, in its order. `attempt` and `crash`: see the columns of the table.
create or replace function headrace_internal.messages_of_lease(p_lease headrace_internal.leases)
returns table (seq bigint, hash bigint, attempt int, crash int, place bigint)
language sql immutable as $$
    select coalesce(m.seq, p_lease.lowest + m.place - 1), m.hash, coalesce(m.attempt, 1), coalesce(m.crash, 0), m.place
    from unnest(p_lease.seqs, p_lease.hashes, p_lease.attempts, p_lease.crashes) with ordinality as m(seq, hash, attempt, crash, place)
$$;

-- Whether a lease whose seqs follow one another has this one. False for a lease with an array of seqs.
create or replace function headrace_internal.spans(p_seqs bigint[], p_lowest bigint, p_held int, p_seq bigint) returns boolean
language sql immutable as $$
    select p_seqs is null and p_seq >= p_lowest and p_seq < p_lowest + p_held
$$;
