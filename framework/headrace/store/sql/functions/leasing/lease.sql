-- lease: lease a batch of messages to an owner, for the consumer's ack_wait.
--
-- One call at a time runs per consumer, under a transaction-level advisory lock. Calls are short. The ORDER of the
-- reads is part of the proof, and so is the order of the steps of headrace_internal.lease. Under read committed every statement
-- sees a newer state. A step that is a function of its own is volatile, so its statements do, too.
--
-- A nack moves a message from the leases to the parked messages, so busy keys are read before parked messages. In the
-- other order, a nack that commits in between would let a later message of its key overtake it.
--
-- The transactions that can still fill a hole are read before the holes are searched. In the other order, messages
-- that commit in between would be forgotten together with their hole.

create type headrace_internal.batch as (
    lease_id    bigint,         -- null when nothing was leased
    seqs bigint[], attempts int[], keys text[], data json[], headers json[], created_at timestamptz[],
                                -- attempts: null when every message is at its first attempt
    looked_at   int,            -- number of messages examined, above the cursor and in its holes
    more        boolean,        -- whether another call may find more immediately
    due_in      float8,         -- seconds until a call may find more: a message or lease falls due, a pause or a
                                -- rate limit ends, or a publisher that is in flight commits. Null if none
    version     int,            -- of the consumer's settings
    crashes     int[],          -- for each message, how often in a row its worker died. Null when none did
    lease_ids   bigint[],       -- the leases of the shares, if the batch was split into shares. lease_id is the first
                                -- of them
    history     uuid,           -- the history that the messages were read from, see history.sql. May be null when
                                -- nothing was leased
    timeline    uuid,           -- the timeline that the lease was given in. May be null, likewise
    busy        boolean         -- nothing was examined, because enough other calls wait for the consumer's lock already, or
                                -- because other owners have not checked in, see check_in.sql
);

-- The bounds of a lease call. messages, scan_limit, bytes: see headrace_internal.read_request. The keys that other owners
-- hold are busy. free_keys: those of this owner are busy, too, because it can start no more messages of them.
create type headrace_internal.lease_bounds as (messages int, scan_limit int, bytes bigint, free_keys boolean);

-- Return a new lease id. Lease ids rise, and none is ever used twice, not even after a crash. A lease commits without
-- waiting for the disk, so a crash may revert its row and the sequence with it, while its owner survives and settles.
-- The 20 random bits keep the next id different.
create or replace function headrace_internal.new_lease_id() returns bigint
language sql volatile as $$
    select (nextval('headrace_internal.lease_ids') << 20) + floor(random() * 1048576)::bigint
$$;

-- Return the owner of a share. No other lease has it, since ids of leases are never used twice. A random one would cost more.
create or replace function headrace_internal.owner_of_share(p_lease bigint) returns uuid
language sql immutable as $$
    select lpad(to_hex(p_lease), 32, '0')::uuid
$$;

-- Split a batch into leases of these sizes, as far as its messages suffice, and return the ids of the leases. The
-- owner of such a lease never reports which of its messages it has started, so all messages that crashed before count
-- as started, see headrace_internal.expire_leases. p_lowest: no seq is smaller.
create or replace function headrace_internal.lease_shares(
    p_consumer headrace_internal.consumers, p_seqs bigint[], p_hashes bigint[], p_attempts int[], p_crashes int[], p_shares int[],
    p_lowest bigint, p_now timestamptz
) returns bigint[]
language plpgsql as $$
declare
    v_leases  bigint[];
begin
    with bounds as (
        select place, (sum(size) over (order by place) - size + 1)::int as first, (sum(size) over (order by place))::int as last
        from unnest(p_shares) with ordinality as s(size, place)
    ), shares as materialized (
        select place, headrace_internal.new_lease_id() as lease_id, p_seqs[first:last] as seqs, p_hashes[first:last] as hashes,
               p_attempts[first:last] as attempts, p_crashes[first:last] as crashes
        from bounds where first <= cardinality(p_seqs)
    ), leased as (
        insert into headrace_internal.leases (consumer_id, lease_id, owner, since, expires_at, held, lowest, seqs, hashes, attempts, crashes, started)
            select p_consumer.id, lease_id, headrace_internal.owner_of_share(lease_id), p_now, p_now + p_consumer.ack_wait, cardinality(seqs), p_lowest,
                   seqs, hashes, attempts, crashes, case when crashes is not null then seqs end
            from shares
    )
    select array_agg(lease_id order by place) into v_leases from shares;
    return v_leases;
end $$;

-- Take one of the few places for calls that wait for the consumer's lock. Returns whether a place was free. These
-- places suffice to keep the lock in use. More callers would only wait.
create or replace function headrace_internal.take_waiting_place(p_consumer int) returns boolean
language plpgsql as $$
declare
    c_places  constant int := 4;
begin
    for i in 1 .. c_places loop
        if pg_try_advisory_xact_lock(1212498520 + i, p_consumer) then
            return true;
        end if;
    end loop;
    return false;
end $$;

-- Raise what is wrong with the transaction of a lease call.
create or replace function headrace_internal.refuse_lease() returns void
language plpgsql as $$
begin
    if pg_is_in_recovery() then
        raise exception using errcode = 'read_only_sql_transaction', message = 'the server is a standby, which leases nothing';
    end if;
    raise exception using errcode = 'HR003', message =
        'headrace_internal.lease must be a transaction of its own, under read committed: each read must see the newest state, and its xid stamps the holes of earlier calls.';
end $$;

-- Wait for the consumer's lock, unless the caller does not want to wait (p_wait) and enough other calls wait for it
-- already. Returns whether it is locked now.
create or replace function headrace_internal.wait_for_consumer(p_consumer int, p_wait boolean) returns boolean
language plpgsql as $$
begin
    if not p_wait and not headrace_internal.take_waiting_place(p_consumer) then
        return false;
    end if;
    perform pg_advisory_xact_lock(1212498508, p_consumer);
    return true;
end $$;

-- Return the batch of a call that did not wait for the lock.
create or replace function headrace_internal.busy_batch(p_consumer int) returns headrace_internal.batch
language plpgsql as $$
declare
    v_batch  headrace_internal.batch;
begin
    v_batch.busy := true;
    v_batch.looked_at := 0;
    v_batch.more := false;
    v_batch.due_in := 0.01 + 0.04 * random();
    select version into v_batch.version from headrace_internal.consumers where id = p_consumer;
    return v_batch;
end $$;

create type headrace_internal.live_leases as (
    floor   bigint,         -- the smallest id of a lease, null if there is none
    lowest  bigint,         -- no leased message has a smaller seq
    held    bigint,         -- number of messages in flight
    since   timestamptz,    -- when the oldest lease was given
    due_in  float8,         -- seconds until a lease expires. Null if there is none
    busy    bigint[]        -- the hashes of the keys that can't be leased to this owner. Null if there is none
);

-- Bound leases to the longest ack_wait that the consumer has had, from now, after the clock was set back. A lease keeps its
-- end when ack_wait is edited, so its present value would not do. It is read here, since an edit may have committed after the
-- caller read the consumer, and an extension by it. The time is that of now, even if the
-- caller has waited for a lock since p_now: another session may have extended a lease meanwhile. A lease that another
-- session has locked is left to the next call.
create or replace function headrace_internal.bound_leases(p_consumer int, p_floor bigint, p_now timestamptz) returns void
language plpgsql as $$
declare
    v_longest  constant interval := (select longest_wait from headrace_internal.consumers where id = p_consumer);
begin
    p_now := p_now + (clock_timestamp() - statement_timestamp());
    update headrace_internal.leases set expires_at = p_now + v_longest where consumer_id = p_consumer and lease_id >= p_floor and lease_id = any (array(
        select lease_id from headrace_internal.leases
        where consumer_id = p_consumer and lease_id >= p_floor and headrace_internal.is_ahead(expires_at - v_longest, p_now)
        order by lease_id for no key update skip locked));
end $$;

-- Expire the leases past their time, and return what the others hold.
-- p_owner: the owner whose keys are not busy, or null if there is none.
create or replace function headrace_internal.live_leases(
    p_consumer headrace_internal.consumers, p_stream headrace_internal.streams, p_floor bigint, p_owner uuid, p_now timestamptz
) returns headrace_internal.live_leases
language plpgsql as $$
declare
    v_found    record;
    v_bounded  boolean := false;
    v_expired  boolean := false;
    v_leases   headrace_internal.live_leases;
begin
    loop
        select min(lease_id) as floor, min(lowest) as lowest, coalesce(sum(held), 0) as held, min(expires_at) as expires_at,
               max(expires_at) as latest, min(since) as since, coalesce(bool_or(owner is distinct from p_owner), false) as others
            into v_found
            from headrace_internal.leases where consumer_id = p_consumer.id and lease_id >= p_floor;
        if headrace_internal.is_ahead(v_found.latest - p_consumer.longest_wait, p_now) and not v_bounded then
            perform headrace_internal.bound_leases(p_consumer.id, p_floor, p_now);
            v_bounded := true;
            continue;
        end if;
        exit when v_expired or v_found.expires_at is null or v_found.expires_at > p_now;
        perform headrace_internal.expire_leases(p_consumer, p_stream, p_floor, p_now);
        v_expired := true;
    end loop;
    v_leases.floor := v_found.floor;
    v_leases.lowest := v_found.lowest;
    v_leases.held := v_found.held;
    v_leases.since := v_found.since;
    -- If a lease is past its time still, another transaction has it locked, and will release it soon.
    v_leases.due_in := case when v_found.expires_at <= p_now then 0.1 else extract(epoch from v_found.expires_at - p_now) end;
    if (v_found.others or p_stream.one_message_per_key and v_found.held > 0) and p_consumer.ordered then
        -- With one message per key, an owner gets the next message of a key only after it has settled the previous
        -- one.
        select array_agg(hash) into v_leases.busy
            from (select unnest(hashes) as hash from headrace_internal.leases
                  where consumer_id = p_consumer.id and lease_id >= p_floor
                    and (owner is distinct from p_owner or p_stream.one_message_per_key)) as l;
    end if;
    return v_leases;
end $$;

-- Lease a batch. Hot tables are read only by their indexes, from a floor up. A sequential or bitmap scan would walk
-- all dead rows that an old snapshot pins. The settings hold for the functions called from here, too.
--
-- p_owner: the worker process, which handles the messages of a key in order. Its own keys are not busy for it, unless
-- p_bounds.free_keys.
--
-- p_shares: split the messages into a lease for each of these sizes, in their order. Each lease gets an owner of its
-- own, which holds no other lease. No key has two messages in one lease or in all of them together. The bound of
-- messages is the sum.
--
-- p_wait: wait for the consumer's lock, however many callers do. Otherwise only a few callers wait, and any
-- further call returns immediately. The callers that wait will find whatever there is now.
--
-- p_cached, p_history: the caller has the messages of p_cached from this history, see headrace_internal.read_request. In
-- another history the same seqs may be other messages.
-- Granted: consume
create or replace function headrace_internal.lease(
    p_consumer int, p_owner uuid, p_bounds headrace_internal.lease_bounds, p_now timestamptz default clock_timestamp(),
    p_shares int[] default null, p_cached int8multirange default null, p_history uuid default null, p_wait boolean default true
) returns headrace_internal.batch
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan as $$
declare
    c_check_in   constant interval := '2.5 seconds';     -- a process that lost its connection comes back within 2 seconds
    v_setting    text;
    v_state      record;
    v_consumer   headrace_internal.consumers;
    v_stream     headrace_internal.streams;
    v_before     headrace_internal.cursors;
    v_cursor     headrace_internal.cursors;
    v_last_drawn bigint;
    v_leases     headrace_internal.live_leases;
    v_bucket     headrace_internal.token_bucket;
    v_holes      headrace_internal.hole_search;
    v_until      bigint;
    v_parked     headrace_internal.parked_state;
    v_due        headrace_internal.due_messages;
    v_fresh      headrace_internal.scanned;
    v_batch      headrace_internal.batch;
    v_fresh_batch headrace_internal.batch;
    v_request    headrace_internal.read_request;
    v_lowest     bigint;
begin
    if current_setting('transaction_isolation') <> 'read committed' or pg_current_xact_id_if_assigned() is not null or pg_is_in_recovery() then
        perform headrace_internal.refuse_lease();
    end if;
    -- A crash can lose only a lease, and then its messages are delivered again.
    v_setting := set_config('synchronous_commit', 'off', true);
    if not pg_try_advisory_xact_lock(1212498508, p_consumer) and not headrace_internal.wait_for_consumer(p_consumer, p_wait) then
        return headrace_internal.busy_batch(p_consumer);
    end if;

    select c as consumer, s as stream, u as cursor, headrace_internal.timeline_identity(h.id, h.xmin) as timeline,
           greatest(h.since, pg_postmaster_start_time()) as since into v_state
        from headrace_internal.consumers as c
        join headrace_internal.streams as s on s.id = c.stream_id
        cross join lateral (
            select * from headrace_internal.cursors where consumer_id = c.id order by version desc limit 1) as u
        left join lateral (select id, xmin, since from headrace_internal.history order by id limit 1) as h on true
        where c.id = p_consumer;
    if not found then
        perform headrace_internal.raise_consumer_gone();
    end if;
    v_consumer := v_state.consumer;
    v_stream := v_state.stream;
    v_before := v_state.cursor;
    v_cursor := v_before;
    v_batch.version := v_consumer.version;
    v_batch.looked_at := 0;
    v_batch.more := false;
    if v_consumer.paused_until > p_now then
        v_batch.due_in := case when isfinite(v_consumer.paused_until) then extract(epoch from v_consumer.paused_until - p_now) end;
        return v_batch;
    end if;

    v_last_drawn := pg_sequence_last_value(v_stream.sequence::regclass);     -- before anything is written: see holes.sql
    v_batch.timeline := v_state.timeline;
    if v_batch.timeline is null then        -- the caller begins a timeline, and calls again
        v_batch.more := true;
        return v_batch;
    end if;
    v_batch.history := headrace_internal.history_identity(v_batch.timeline);
    if v_batch.history is distinct from p_history then
        p_cached := null;
    end if;
    -- While a history is young, its leases wait for all that may be at work. See check_in.sql.
    if statement_timestamp() between v_state.since and v_state.since + c_check_in then
        if headrace_internal.awaits_check_in(p_consumer, v_batch.history) then
            v_batch.busy := true;
            v_batch.due_in := 0.02 + 0.03 * random();
            return v_batch;
        end if;
    end if;
    if greatest(v_cursor.position, v_cursor.mark, v_cursor.settled) > coalesce(v_last_drawn, 0)
       and v_cursor.position is distinct from v_cursor.sought then
        perform headrace_internal.require_sequence_ahead(v_stream, greatest(v_cursor.position, v_cursor.mark, v_cursor.settled));
    end if;

    if v_cursor.cancelling then
        v_cursor.cancelling := headrace_internal.end_cancellations(v_cursor, p_now);
        v_consumer.condition := headrace_internal.unread_condition(v_consumer, v_cursor.position);
    end if;

    -- Mostly nothing is in the way of the messages that follow the cursor.
    if v_cursor.holes = '{}' and v_cursor.frozen = '{}' and v_cursor.replay_floor is null and v_consumer.rate_limit is null
       and not headrace_internal.must_tend_mark(v_cursor.position, v_cursor.settled, v_cursor.mark_stamp, v_cursor.mark)
       and v_last_drawn is not null
       and (v_last_drawn <= v_cursor.position
            or v_consumer.condition = 'true' and not v_stream.one_message_per_key and v_cursor.parked_room > 0) then
        v_fresh_batch := headrace_internal.lease_fresh(v_consumer, v_cursor, p_owner, p_bounds, p_shares, p_cached, v_last_drawn, p_now);
        if v_fresh_batch.version is not null then
            v_fresh_batch.history := v_batch.history;
            v_fresh_batch.timeline := v_batch.timeline;
            return v_fresh_batch;
        end if;
    end if;

    -- 1. Leases: expire those past their time, count the messages in flight, and note the busy keys.
    v_leases := headrace_internal.live_leases(v_consumer, v_stream, v_cursor.lease_floor, case when p_bounds.free_keys then null else p_owner end, p_now);
    v_batch.due_in := v_leases.due_in;
    v_request.messages := least(p_bounds.messages, v_consumer.max_ack_pending - v_leases.held);
    if v_request.messages <= 0 then
        return v_batch;
    end if;
    if v_consumer.rate_limit is not null then
        if headrace_internal.is_ahead(v_cursor.tokens_at, p_now) then
            v_cursor.tokens_at := p_now;
            perform headrace_internal.write_cursor(v_before, v_cursor);
            v_cursor.version := v_before.version + 1;
            v_before := v_cursor;
        end if;
        v_bucket := headrace_internal.grant_tokens(v_consumer, v_cursor, v_request.messages, p_now);
        v_request.messages := v_bucket.granted;
        if v_bucket.granted = 0 then
            v_batch.due_in := least(v_batch.due_in, headrace_internal.seconds_until_token(v_consumer, v_bucket.tokens));
            return v_batch;
        end if;
    end if;

    v_request.scan_limit := p_bounds.scan_limit;
    v_request.bytes := p_bounds.bytes;
    v_request.busy := v_leases.busy;
    v_request.cached := p_cached;
    v_request.distinct_keys := p_shares is not null and v_consumer.ordered;

    -- 2. Holes: determine whether a transaction that can fill them has ended.
    if v_cursor.holes <> '{}' or v_cursor.frozen <> '{}' then
        v_holes := headrace_internal.find_ended_holders(v_cursor, p_bounds.scan_limit);
        v_cursor := v_holes.cursor;
        v_until := v_holes.until;
    end if;

    -- 3. Parked messages that are due and first of their key, and the messages behind them.
    select (select seq from headrace_internal.first_parked(p_consumer, v_cursor.parked_floor) as seq),
           (select seq from headrace_internal.first_blocking(p_consumer, v_cursor.blocked_floor) as seq)
        into v_parked.lowest, v_parked.blocked;
    if v_parked.lowest is not null then
        select * into v_parked from headrace_internal.parked_state(
            p_consumer, v_parked.lowest, v_parked.blocked, v_consumer.ordered, v_cursor.ready_floor, v_cursor.due_floor, v_cursor.blocked_floor, p_now);
        if headrace_internal.is_ahead(v_parked.due_next, p_now) then
            v_parked.due_next := headrace_internal.bound_retries(v_cursor, v_parked.due_next, p_now);
            v_cursor.due_floor := least(v_cursor.due_floor, v_parked.due_next);
        end if;
        v_batch.due_in := least(v_batch.due_in, extract(epoch from v_parked.due_next - p_now));
    end if;
    if v_parked.ready is not null or v_parked.due_at is not null or v_parked.lowest is not null and v_holes.search
       or v_cursor.replay_floor is not null or v_cursor.parked_room <= 0 then
        v_due := headrace_internal.take_parked(v_consumer, v_stream, v_cursor, v_parked, v_holes.search, v_until, v_request, p_now);
        v_cursor := v_due.cursor;
        v_parked := v_due.parked;
        v_until := v_due.until;
        v_request.messages := v_request.messages - coalesce(cardinality(v_due.seqs), 0);
        v_request.bytes := v_request.bytes - v_due.bytes;
        v_batch.due_in := least(v_batch.due_in, extract(epoch from v_parked.due_next - p_now));
        if v_stream.one_message_per_key or v_request.distinct_keys then
            v_request.busy := v_request.busy || v_due.hashes;
        elsif v_consumer.ordered then
            v_request.taken := v_due.hashes;
        end if;
    end if;

    -- 4. Late arrivals and fresh messages. A full window of parked messages stops reading ahead. But if there were more
    -- late arrivals than one search takes in, the parked messages wait for them, so those are read.
    if v_request.messages > 0 and v_request.bytes > 0 and v_cursor.replay_floor is null and (v_cursor.parked_room > 0 or v_until is not null) then
        v_request.parked := v_parked.lowest is not null;
        v_request.blocked := v_parked.blocked is not null;
        v_fresh := headrace_internal.read_ahead(v_consumer, v_stream, v_cursor, v_holes, v_until is not null, v_request, v_last_drawn, p_now);
        v_cursor := v_fresh.cursor;
        v_batch.looked_at := coalesce(v_fresh.looked_at, 0);
        v_batch.more := v_fresh.more or coalesce(v_fresh.full_up, false) or v_until is not null;
    else
        v_batch.more := v_request.messages <= 0 or v_request.bytes <= 0 or v_cursor.replay_floor is not null and v_cursor.parked_room > 0;
    end if;
    -- Expired messages took the places of others that are due.
    v_batch.more := v_batch.more or coalesce(v_due.removed > coalesce(cardinality(v_due.seqs), 0), false);

    -- 5. The lease, and the new version of the cursor.
    v_batch.seqs := v_due.seqs || v_fresh.seqs;
    if v_batch.seqs is not null then
        v_batch.keys := v_due.keys || v_fresh.keys;
        v_batch.data := v_due.data || v_fresh.data;
        v_batch.created_at := v_due.created_at || v_fresh.created_at;
        v_batch.headers := v_due.headers || v_fresh.headers;
        if v_due.attempts is not null then
            v_batch.attempts := v_due.attempts || array_fill(1, array[coalesce(cardinality(v_fresh.seqs), 0)]);
        end if;
        if 0 < any (v_due.crashes) then
            v_batch.crashes := v_due.crashes || array_fill(0, array[coalesce(cardinality(v_fresh.seqs), 0)]);
        end if;
        v_lowest := least(v_due.seqs[1], v_fresh.seqs[1]);
        if p_shares is null then
            v_batch.lease_id := headrace_internal.new_lease_id();
            insert into headrace_internal.leases (consumer_id, lease_id, owner, since, expires_at, held, lowest, seqs, hashes, attempts, crashes)
                values (p_consumer, v_batch.lease_id, p_owner, p_now, p_now + v_consumer.ack_wait, cardinality(v_batch.seqs),
                        v_lowest, v_batch.seqs, v_due.hashes || v_fresh.hashes, v_batch.attempts, v_batch.crashes);
        else
            v_batch.lease_ids := headrace_internal.lease_shares(v_consumer, v_batch.seqs, v_due.hashes || v_fresh.hashes, v_batch.attempts,
                                                       v_batch.crashes, p_shares, v_lowest, p_now);
            v_batch.lease_id := v_batch.lease_ids[1];
            v_leases.floor := coalesce(v_leases.floor, (select min(id) from unnest(v_batch.lease_ids) as id));
        end if;
        if v_batch.lease_id < v_before.lease_floor then
            perform headrace_internal.raise_sequence_behind('headrace_internal.lease_ids', v_batch.lease_id >> 20, v_before.lease_floor >> 20);
        end if;
        if v_bucket.granted is not null then
            v_cursor.tokens := v_bucket.tokens - cardinality(v_batch.seqs);
            v_cursor.tokens_at := p_now;
            if v_bucket.short and cardinality(v_batch.seqs) = v_bucket.granted then
                v_batch.more := false;
                v_batch.due_in := least(v_batch.due_in, headrace_internal.seconds_until_token(v_consumer, v_cursor.tokens));
            end if;
        end if;
        if v_consumer.rate_limit is null and not v_batch.more then
            v_batch.due_in := headrace_internal.seconds_until_more(v_batch.due_in, v_fresh.missing is not null or v_last_drawn > v_cursor.position);
        end if;
        v_cursor.due_floor := least(v_parked.due_at, v_leases.since, p_now);
    end if;
    v_cursor.lease_floor := coalesce(v_leases.floor, v_batch.lease_id, v_cursor.lease_floor);
    -- When nothing waits, the floors rise with the position. Late arrivals and replayed messages lower them again.
    v_lowest := least(v_leases.lowest, v_due.lowest, v_fresh.seqs[1]);
    v_cursor.parked_floor := coalesce(least(v_parked.lowest, v_lowest, v_fresh.waiting_seqs[1]),
                                      greatest(v_cursor.parked_floor, v_cursor.position + 1));
    v_cursor.ready_floor := coalesce(least(v_parked.ready, v_lowest, v_fresh.waiting_seqs[1]),
                                     greatest(v_cursor.ready_floor, v_cursor.position + 1));
    v_cursor.blocked_floor := coalesce(least(v_parked.blocked, v_lowest), greatest(v_cursor.blocked_floor, v_cursor.position + 1));
    perform headrace_internal.write_cursor(v_before, v_cursor);
    return v_batch;
end $$;
