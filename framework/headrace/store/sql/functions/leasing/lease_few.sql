-- lease_few: lease a few messages: those that were published since the last call, to a consumer that is up to date, or as
-- few as the caller wants. A single message is read by a statement of its own, since that is the usual case of all.
--
-- It does what headrace_internal.lease does, in fewer steps, and it is tried first. It leases only if nothing is in the way:
-- no hole, no message that is parked or blocks its key, no lease that has expired, no seq that is missing, no key that
-- another owner holds. Otherwise it writes nothing and returns a batch without a version, and headrace_internal.lease goes on.
--
-- The order of the reads is the same: the last seq that was drawn, then the leases and the parked messages, here in one
-- snapshot, then the fresh messages.

-- A message as its stream has it.
create type headrace_internal.stored_message as (
    seq bigint, key text, data json, headers json, created_at timestamptz
);

-- The number of fresh messages up to which this way costs less. With more, it would cost more for each of them.
create or replace function headrace_internal.few_messages() returns int language sql immutable as 'select 30';

-- The result of a lease call that leases nothing.
create or replace function headrace_internal.empty_batch(p_version int, p_due_in float8) returns headrace_internal.batch
language sql immutable as $$
    select row(null, null, null, null, null, null, null, 0, false, p_due_in, p_version, null, null, null, null, null)::headrace_internal.batch
$$;

-- Return when to call again after messages were leased: soon if further seqs were drawn, since of publishers that are in
-- flight at the same time only one notifies, see headrace_internal.notify_stream. Once, since such a transaction may stay open for long:
-- a call that leases nothing does not say so.
create or replace function headrace_internal.seconds_until_more(p_due_in float8, p_in_flight boolean) returns float8
language sql immutable as $$
    select case when p_in_flight then least(p_due_in, 0.001) else p_due_in end
$$;

-- The parameters: see headrace_internal.lease.
create or replace function headrace_internal.lease_few(
    p_consumer headrace_internal.consumers, p_cursor headrace_internal.cursors, p_owner uuid, p_limit int, p_shares int[],
    p_cached int8multirange, p_last_drawn bigint, p_now timestamptz
) returns headrace_internal.batch
language plpgsql as $$
declare
    c_few     constant int := headrace_internal.few_messages();
    c_page    constant bigint := 8192;      -- a message that fits a page is not moved to the TOAST table
    c_lag     constant bigint := 1000;      -- seqs by which the floors may lag behind, and a tenth of it in leases
    v_state   record;
    v_busy    bigint[];
    v_hashes  bigint[];
    v_room    int;
    v_rows    headrace_internal.stored_message[];
    v_one     record;
    v_found   record;
    v_batch   headrace_internal.batch;
begin
    select l.*, (select seq from headrace_internal.first_parked(p_consumer.id, p_cursor.parked_floor) as seq) as parked,
           (select seq from headrace_internal.first_blocking(p_consumer.id, p_cursor.blocked_floor) as seq) as blocked,
           s.relation
        into v_state
        from (
            select min(lease_id) as floor, min(lowest) as lowest, coalesce(sum(held), 0) as held, min(since) as since,
                   extract(epoch from min(expires_at) - p_now)::float8 as due_in, max(expires_at) as latest, bool_or(owner <> p_owner) as others
            from headrace_internal.leases where consumer_id = p_consumer.id and lease_id >= p_cursor.lease_floor) as l
        left join (
            select relation from headrace_internal.segments
            where stream_id = p_consumer.stream_id and lower <= p_cursor.position + 1
              and coalesce(upper > least(p_last_drawn, p_cursor.position + c_few), true)
            order by lower desc limit 1) as s on true;
    if v_state.parked is not null or v_state.due_in <= 0 or headrace_internal.is_ahead(v_state.latest - p_consumer.longest_wait, p_now) then
        return null;
    end if;
    v_room := least(p_limit, p_consumer.max_ack_pending - v_state.held);
    if p_last_drawn <= p_cursor.position or v_room <= 0 then
        -- Nothing is written. But the next calls must not walk many dead rows, so the floors rise from time to time.
        if v_room > 0 and (coalesce(v_state.lowest, p_cursor.position) - p_cursor.parked_floor >= c_lag
                           or v_state.floor - p_cursor.lease_floor >= c_lag / 10 << 20) then
            return null;
        end if;
        return headrace_internal.empty_batch(p_consumer.version, v_state.due_in);
    end if;
    if v_state.blocked is not null or v_state.relation is null then
        return null;
    end if;
    if v_state.others and p_consumer.ordered then
        -- A nack may have moved one of their messages since. So what is parked or blocks its key is read again, together
        -- with their keys.
        select array_agg(hash), (select seq from headrace_internal.first_parked(p_consumer.id, p_cursor.parked_floor) as seq),
               (select seq from headrace_internal.first_blocking(p_consumer.id, p_cursor.blocked_floor) as seq)
            into v_busy, v_state.parked, v_state.blocked
            from (select unnest(hashes) as hash from headrace_internal.leases
                  where consumer_id = p_consumer.id and lease_id >= p_cursor.lease_floor and owner <> p_owner) as l;
        if v_state.parked is not null or v_state.blocked is not null then
            return null;
        end if;
    end if;

    -- These statements are planned at each call, so they are kept small. Large payloads are left out, so that it reads none.
    if least(v_room, p_last_drawn - p_cursor.position) = 1 then
        execute format('select key, data, headers, created_at, hashtextextended(key, 0) as hash from %s where seq = $1', v_state.relation)
            into v_one using p_cursor.position + 1;
        if v_one.key is null then
            -- A seq that was drawn by a transaction that has not committed: it becomes a hole if further ones were drawn.
            return case when p_last_drawn = p_cursor.position + 1 then headrace_internal.empty_batch(p_consumer.version, v_state.due_in) end;
        elsif pg_column_size(v_one.data) > c_page or pg_column_compression(v_one.data) is not null or v_one.hash = any (v_busy) then
            return null;
        end if;
        if v_one.headers is not null then
            if pg_column_size(v_one.headers) > c_page or pg_column_compression(v_one.headers) is not null
               or headrace_internal.may_expire(array[v_one.headers]) then
                return null;
            end if;
        end if;
        v_hashes := array[v_one.hash];
        if p_cursor.position + 1 <@ p_cached then
            v_one.key := null;
            v_one.data := null;
            v_one.headers := null;
            v_one.created_at := null;
        end if;
        v_batch := row(null, array[p_cursor.position + 1], null, array[v_one.key], array[v_one.data], array[v_one.headers], array[v_one.created_at], 1,
                       v_room = 1, v_state.due_in, p_consumer.version, null, null, null, null, null)::headrace_internal.batch;
    else
        execute format('select array(select row(seq, key, case when pg_column_size(data) + coalesce(pg_column_size(headers), 0) <= $3 then data end,
                                                case when pg_column_size(headers) <= $3 then headers end, created_at)::headrace_internal.stored_message
                                     from %s where seq > $1 order by seq limit $2)', v_state.relation)
            into v_rows using p_cursor.position, least(v_room, c_few), c_page;
        if cardinality(v_rows) = 0 then   -- the seqs were drawn by transactions that have not committed
            return headrace_internal.empty_batch(p_consumer.version, v_state.due_in);
        end if;
        select array_agg(seq) as seqs, array_agg(hashtextextended(key, 0)) as hashes, array_agg(case when known then null else key end) as keys,
               array_agg(case when whole then data end) as data, array_agg(case when whole then headers end) as headers,
               array_agg(case when known then null else created_at end) as created_at,
               bool_and(whole or known) and max(seq) - p_cursor.position = count(*) as complete
            into v_found
            from (
                select *, not known and data is not null and pg_column_compression(data) is null and pg_column_compression(headers) is null as whole
                from (select *, coalesce(seq <@ p_cached, false) as known from unnest(v_rows)) as m) as m;
        if not v_found.complete or headrace_internal.may_expire(v_found.headers) then
            return null;
        end if;
        if v_found.hashes && v_busy
           or p_shares is not null and p_consumer.ordered and (select count(*) > count(distinct hash) from unnest(v_found.hashes) as hash) then
            return null;
        end if;

        v_batch := row(null, v_found.seqs, null, v_found.keys, v_found.data, v_found.headers, v_found.created_at, cardinality(v_found.seqs),
                       cardinality(v_found.seqs) >= least(v_room, c_few),
                       headrace_internal.seconds_until_more(v_state.due_in, cardinality(v_found.seqs) < least(v_room, c_few, p_last_drawn - p_cursor.position)), p_consumer.version, null, null, null, null, null)::headrace_internal.batch;
        v_hashes := v_found.hashes;
    end if;
    if p_shares is null then
        v_batch.lease_id := headrace_internal.new_lease_id();
        insert into headrace_internal.leases (consumer_id, lease_id, owner, since, expires_at, held, lowest, seqs, hashes)
            values (p_consumer.id, v_batch.lease_id, p_owner, p_now, p_now + p_consumer.ack_wait, v_batch.looked_at,
                    v_batch.seqs[1], v_batch.seqs, v_hashes);
    else
        v_batch.lease_ids := headrace_internal.lease_shares(p_consumer, v_batch.seqs, v_hashes, null, null, p_shares, v_batch.seqs[1], p_now);
        v_batch.lease_id := (select min(id) from unnest(v_batch.lease_ids) as id);
    end if;
    if v_batch.lease_id < p_cursor.lease_floor then
        perform headrace_internal.raise_sequence_behind('headrace_internal.lease_ids', v_batch.lease_id >> 20, p_cursor.lease_floor >> 20);
    end if;
    -- The floors rise with the position, as in headrace_internal.lease.
    p_cursor.version := p_cursor.version + 1;
    p_cursor.position := p_cursor.position + v_batch.looked_at;
    p_cursor.lease_floor := coalesce(v_state.floor, v_batch.lease_id);
    p_cursor.parked_room := p_cursor.parked_room - v_batch.looked_at;
    p_cursor.parked_floor := least(v_state.lowest, v_batch.seqs[1]);
    p_cursor.ready_floor := p_cursor.parked_floor;
    p_cursor.blocked_floor := p_cursor.parked_floor;
    p_cursor.due_floor := least(v_state.since, p_now);
    with gone as (
        delete from headrace_internal.cursors where consumer_id = p_consumer.id and version = p_cursor.version - 1
    )
    insert into headrace_internal.cursors select p_cursor.*;
    if p_shares is not null then
        v_batch.lease_id := v_batch.lease_ids[1];
    end if;
    return v_batch;
end $$;
