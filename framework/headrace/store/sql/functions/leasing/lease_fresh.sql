-- lease_fresh: lease the messages that follow the cursor, while nothing is in the way.
--
-- It does what headrace_internal.lease does, in fewer steps, and it is tried first. It leases only if there is no hole, no
-- message that is parked or blocks its key, and no lease that has expired. Otherwise it writes nothing and returns a
-- batch without a version, and headrace_internal.lease continues. It ends before the first message that must wait for another
-- one of its key, and before the first seq that is missing, which mostly commits before the next call. If that leaves
-- less than half of the messages, it leases nothing, and headrace_internal.lease parks those that wait, and notes the hole.
--
-- The order of the reads is the same: the last seq that was drawn, then the leases with their keys and the parked messages,
-- here in one snapshot, then the fresh messages.

-- The number of messages up to which it costs less to try this than to look first whether payloads are large.
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
create or replace function headrace_internal.lease_fresh(
    p_consumer headrace_internal.consumers, p_cursor headrace_internal.cursors, p_owner uuid, p_bounds headrace_internal.lease_bounds, p_shares int[],
    p_cached int8multirange, p_last_drawn bigint, p_now timestamptz
) returns headrace_internal.batch
language plpgsql as $$
declare
    c_lag     constant bigint := 1000;      -- seqs by which the floors may lag behind, and a tenth of it in leases
    v_state   record;
    v_room    int;
    v_read    headrace_internal.fresh_messages;
    v_count   int;
    v_bytes   bigint;
    v_first   int;
    v_batch   headrace_internal.batch;
begin
    select l.*, (select seq from headrace_internal.first_parked(p_consumer.id, p_cursor.parked_floor) as seq) as parked,
           (select seq from headrace_internal.first_blocking(p_consumer.id, p_cursor.blocked_floor) as seq) as blocked,
           (select array_agg(hash) from (
                select unnest(hashes) as hash from headrace_internal.leases
                where consumer_id = p_consumer.id and lease_id >= p_cursor.lease_floor and (owner <> p_owner or p_bounds.free_keys) and p_consumer.ordered) as o) as busy,
           s.relation, s.upper, s.reader
        into v_state
        from (
            select min(lease_id) as floor, min(lowest) as lowest, coalesce(sum(held), 0) as held, min(since) as since,
                   extract(epoch from min(expires_at) - p_now)::float8 as due_in, max(expires_at) as latest
            from headrace_internal.leases where consumer_id = p_consumer.id and lease_id >= p_cursor.lease_floor) as l
        left join (
            select g.relation, g.upper, to_regprocedure(headrace_internal.reader_signature(g.stream_id)) as reader
            from headrace_internal.segments as g
            where g.stream_id = p_consumer.stream_id and g.lower <= p_cursor.position + 1
              and coalesce(g.upper > least(p_last_drawn, p_cursor.position + p_bounds.messages), true)
            order by g.lower desc limit 1) as s on true;
    if v_state.parked is not null or v_state.due_in <= 0 or headrace_internal.is_ahead(v_state.latest - p_consumer.longest_wait, p_now) then
        return null;
    end if;
    v_room := least(p_bounds.messages, p_consumer.max_ack_pending - v_state.held);
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
    v_count := least(v_room, p_last_drawn - p_cursor.position);
    if v_count * headrace_internal.small_payload() > p_bounds.bytes then
        v_bytes := p_bounds.bytes;
    elsif v_count > headrace_internal.few_messages() then
        v_bytes := (select p_bounds.bytes from pg_class where oid = v_state.relation::regclass and pg_relation_size(reltoastrelid) > 0);
    end if;

    v_read := headrace_internal.read_fresh(v_state.reader, v_state.relation, p_cursor.position, v_room, p_cached, v_bytes);
    if not v_read.whole then
        v_read := headrace_internal.read_fresh(v_state.reader, v_state.relation, p_cursor.position, v_room, p_cached, p_bounds.bytes);
    end if;
    if v_read.found = 0 then
        -- The seqs were drawn by transactions that have not committed. But there may be messages in later segments.
        return case when coalesce(v_state.upper > p_last_drawn, true) then headrace_internal.empty_batch(p_consumer.version, v_state.due_in) end;
    end if;
    v_batch.looked_at := coalesce(cardinality(v_read.seqs), 0);
    if v_read.seqs[v_batch.looked_at] > p_cursor.position + v_batch.looked_at then
        v_batch.looked_at := (select min(place) - 1 from unnest(v_read.seqs) with ordinality as s(seq, place) where seq > p_cursor.position + place);
    end if;
    if p_consumer.ordered and (v_state.busy is not null or p_shares is not null) then
        v_first := headrace_internal.first_waiting(v_read.hashes, v_state.busy, p_shares is not null);
        v_batch.looked_at := least(v_batch.looked_at, v_first - 1);
    end if;
    if v_batch.looked_at = 0 or v_batch.looked_at * 2 < v_read.found and not v_read.full_up or headrace_internal.may_expire(v_read.headers) then
        return null;
    end if;
    v_batch.more := v_read.found >= v_room or v_batch.looked_at < v_read.found;
    v_batch.due_in := headrace_internal.seconds_until_more(v_state.due_in, v_batch.looked_at < v_count and not v_batch.more);
    if v_batch.looked_at < cardinality(v_read.seqs) then
        v_read.seqs := v_read.seqs[:v_batch.looked_at];
        v_read.hashes := v_read.hashes[:v_batch.looked_at];
        v_read.keys := v_read.keys[:v_batch.looked_at];
        v_read.data := v_read.data[:v_batch.looked_at];
        v_read.headers := v_read.headers[:v_batch.looked_at];
        v_read.created_at := v_read.created_at[:v_batch.looked_at];
    end if;
    v_batch.seqs := v_read.seqs;
    v_batch.keys := v_read.keys;
    v_batch.data := v_read.data;
    v_batch.headers := v_read.headers;
    v_batch.created_at := v_read.created_at;
    v_batch.version := p_consumer.version;
    if p_shares is null then
        v_batch.lease_id := headrace_internal.new_lease_id();
        insert into headrace_internal.leases (consumer_id, lease_id, owner, since, expires_at, held, lowest, hashes)     -- no seq is missing
            values (p_consumer.id, v_batch.lease_id, p_owner, p_now, p_now + p_consumer.ack_wait, v_batch.looked_at,
                    v_batch.seqs[1], v_read.hashes);
    else
        v_batch.lease_ids := headrace_internal.lease_shares(p_consumer, v_batch.seqs, v_read.hashes, null, null, p_shares, v_batch.seqs[1], p_now);
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
