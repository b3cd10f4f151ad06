-- lease: lease a batch of messages to an owner, for the consumer's ack_wait.
--
-- One call at a time runs per consumer, under a transaction-level advisory lock. Calls are short. The ORDER of the
-- reads below is part of the proof. Under read committed every statement sees a newer state.
--
-- A nack moves a message from the leases to the parked messages. So busy keys are read before parked messages. In the
-- other order, a nack that commits in between would let a later message of its key overtake it.
--
-- The transactions that can still fill a hole are read before the holes are searched. In the other order, messages
-- that commit in between would be forgotten together with their hole.

create type headrace.batch as (
    lease_id    bigint,         -- null when nothing was leased
    seqs bigint[], attempts int[], keys text[], data json[], headers json[], created_at timestamptz[],
                                -- attempts: null when every message is at its first attempt
    looked_at   int,            -- number of messages examined, above the cursor and in its holes
    more        boolean,        -- whether another call may find more at once
    due_in      float8,         -- seconds until a call may find more: a message or lease falls due, or a pause or a
                                -- rate limit ends. Null if none
    version     int,            -- of the consumer's settings
    crashes     int[],          -- for each message, how often in a row its worker died. Null when none did
    lease_ids   bigint[],       -- the leases of the shares, if the batch was split into shares. lease_id is the first
                                -- of them
    history     uuid,           -- the history that the messages were read from, see history.sql. May be null when
                                -- nothing was leased
    timeline    uuid,           -- the timeline that the lease was given in. May be null, likewise
    busy        boolean         -- nothing was examined, because enough other calls wait for the consumer's lock already
);

-- Return a new lease id. Lease ids rise, and none is ever used twice, not even after a crash. A lease commits without
-- waiting for the disk, so a crash may revert its row and the sequence with it, while its owner survives and settles.
-- The 20 random bits keep the next id different.
create function headrace.new_lease_id() returns bigint
language sql volatile as $$
    select (nextval('headrace.lease_ids') << 20) + floor(random() * 1048576)::bigint
$$;

-- Split a batch into leases of these sizes, as far as its messages suffice, and return the ids of the leases. The
-- owner of such a lease never reports which of its messages it has started. So all messages that crashed before count
-- as started, see headrace.expire. p_lowest: no seq is smaller.
create function headrace.deal(
    p_consumer int, p_seqs bigint[], p_hashes bigint[], p_attempts int[], p_crashes int[], p_shares int[], p_lowest bigint,
    p_now timestamptz, p_until timestamptz
) returns bigint[]
language plpgsql as $$
declare
    v_leases  bigint[];
begin
    with bounds as (
        select place, (sum(size) over (order by place) - size + 1)::int as first, (sum(size) over (order by place))::int as last
        from unnest(p_shares) with ordinality as s(size, place)
    ), shares as materialized (
        select place, headrace.new_lease_id() as lease_id, p_seqs[first:last] as seqs, p_hashes[first:last] as hashes,
               p_attempts[first:last] as attempts, p_crashes[first:last] as crashes
        from bounds where first <= cardinality(p_seqs)
    ), leased as (
        insert into headrace.leases (consumer_id, lease_id, owner, since, expires_at, held, lowest, seqs, hashes, attempts, crashes, started)
            select p_consumer, lease_id, gen_random_uuid(), p_now, p_until, cardinality(seqs), p_lowest, seqs, hashes, attempts, crashes,
                   case when crashes is not null then seqs end
            from shares
    )
    select array_agg(lease_id order by place) into v_leases from shares;
    return v_leases;
end $$;

-- Take one of the few places for calls that wait for the consumer's lock. Returns whether a place was free. These
-- places suffice to keep the lock in use. More callers would only wait.
create function headrace.queue_up(p_consumer int) returns boolean
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

-- Lease a batch. Hot tables are read only by their indexes, from a floor up. A sequential or bitmap scan would walk
-- all dead rows that an old snapshot pins. The settings hold for the functions called from here, too.
--
-- p_owner: the worker process, which handles the messages of a key in order. Its own keys are not busy for it.
-- p_limit, p_look, p_bytes: see headrace.scan.
--
-- p_shares: split the messages into a lease for each of these sizes, in their order. Each lease gets an owner of its
-- own, which holds no other lease. No key has two messages in one lease or in all of them together. p_limit is the
-- sum.
--
-- p_patient: wait for the consumer's lock, however many callers do. Otherwise only a few callers wait, and any
-- further call returns at once. The callers that wait will find whatever there is now.
--
-- p_known, p_history: see headrace.scan. The caller has the messages of p_known from this history. In another history
-- the same seqs may be other messages.
create function headrace.lease(
    p_consumer int, p_owner uuid, p_limit int, p_look int, p_bytes bigint, p_now timestamptz default clock_timestamp(),
    p_shares int[] default null, p_known int8multirange default null, p_history uuid default null, p_patient boolean default true
) returns headrace.batch
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan as $$
declare
    c_window    constant int := 10000;      -- number of parked messages at which reading ahead stops, because that
                                            -- many keys wait or messages were put back
    v_state     record;
    v_consumer  headrace.consumers;
    v_stream    headrace.streams;
    v_before    headrace.cursors;
    v_cursor    headrace.cursors;
    v_next      headrace.cursors;
    v_leases    record;
    v_parked    headrace.parked_state;
    v_lowest    bigint;
    v_busy      bigint[];
    v_xmin      xid8;
    v_drawn     bigint;
    v_thawed    headrace.admitted;
    v_admitted  headrace.admitted;
    v_until     bigint;
    v_search    boolean := false;
    v_one_by_one  boolean;
    v_had_xid   boolean;
    v_progress  xid8[];
    v_picked    headrace.picked;
    v_waiting   headrace.waiting_keys;
    v_scanned   headrace.scanned;
    v_batch     headrace.batch;
    v_room      int;
    v_bytes     bigint := p_bytes;
    v_bucket    headrace.bucket;
    v_look      int;
    v_expired   boolean := false;
    v_singly    boolean;
begin
    if current_setting('transaction_isolation') <> 'read committed' or pg_current_xact_id_if_assigned() is not null then
        raise exception using errcode = 'HR003', message =
            'headrace.lease must be a transaction of its own, under read committed: each read must see the newest state, and its xid stamps the holes of earlier calls.';
    end if;
    if pg_is_in_recovery() then
        raise exception using errcode = 'read_only_sql_transaction', message = 'the server is a standby, which leases nothing';
    end if;
    -- A crash can lose only a lease, and then its messages are delivered again.
    perform set_config('synchronous_commit', 'off', true);
    if not pg_try_advisory_xact_lock(1212498508, p_consumer) then
        if not p_patient and not headrace.queue_up(p_consumer) then
            v_batch.busy := true;
            v_batch.looked_at := 0;
            v_batch.more := false;
            v_batch.due_in := 0.01 + 0.04 * random();
            select version into v_batch.version from headrace.consumers where id = p_consumer;
            return v_batch;
        end if;
        perform pg_advisory_xact_lock(1212498508, p_consumer);
    end if;

    select c as consumer, s as stream, u as cursor, headrace.timeline_identity(h.id, h.xmin) as timeline into v_state
        from headrace.consumers as c
        join headrace.streams as s on s.id = c.stream_id
        cross join lateral (
            select * from headrace.cursors where consumer_id = c.id order by version desc limit 1) as u
        left join lateral (select id, xmin from headrace.history order by id limit 1) as h on true
        where c.id = p_consumer;
    if not found then
        raise exception using errcode = 'HR002', message = 'The consumer no longer exists: declare it again.';
    end if;
    v_consumer := v_state.consumer;
    v_stream := v_state.stream;
    v_before := v_state.cursor;
    v_cursor := v_before;
    v_singly := p_shares is not null and v_consumer.ordered;
    v_batch.version := v_consumer.version;
    v_batch.looked_at := 0;
    v_batch.more := false;
    if v_consumer.paused_until > p_now then
        v_batch.due_in := case when isfinite(v_consumer.paused_until) then extract(epoch from v_consumer.paused_until - p_now) end;
        return v_batch;
    end if;

    v_drawn := pg_sequence_last_value(v_stream.sequence::regclass);     -- before anything is written: see holes.sql
    v_batch.timeline := v_state.timeline;
    if v_batch.timeline is null then        -- the caller begins a timeline, and calls again
        v_batch.more := true;
        return v_batch;
    end if;
    v_batch.history := headrace.history_identity(v_batch.timeline);
    if v_batch.history is distinct from p_history then
        p_known := null;
    end if;
    if greatest(v_cursor.position, v_cursor.mark, v_cursor.settled) > coalesce(v_drawn, 0)
       and v_cursor.position is distinct from v_cursor.sought then
        perform headrace.require_drawn(v_stream, greatest(v_cursor.position, v_cursor.mark, v_cursor.settled));
    end if;

    -- 1. Leases: expire those past their time, count the messages in flight, and note the keys that other owners are
    -- busy with.
    loop
        select min(lease_id) as floor, min(lowest) as lowest, coalesce(sum(held), 0) as held, min(expires_at) as expires_at, min(since) as since,
               coalesce(bool_or(owner <> p_owner), false) as others
            into v_leases
            from headrace.leases where consumer_id = p_consumer and lease_id >= v_cursor.lease_floor;
        exit when v_expired or v_leases.expires_at is null or v_leases.expires_at > p_now;
        perform headrace.expire(v_consumer, v_stream, v_cursor.lease_floor, p_now);
        v_expired := true;
    end loop;
    if (v_leases.others or v_stream.one_message_per_key and v_leases.held > 0) and v_consumer.ordered then
        -- With one message per key, an owner gets the next message of a key only after it has settled the previous
        -- one.
        select array_agg(hash) into v_busy from headrace.leases as l cross join unnest(l.hashes) as hash
            where l.consumer_id = p_consumer and l.lease_id >= v_cursor.lease_floor
              and (l.owner <> p_owner or v_stream.one_message_per_key);
    end if;
    -- If a lease is past its time still, another transaction has it locked, and will release it soon.
    v_batch.due_in := case when v_leases.expires_at <= p_now then 0.1
                           else extract(epoch from v_leases.expires_at - p_now) end;
    v_room := least(p_limit, v_consumer.max_ack_pending - v_leases.held);
    if v_room <= 0 then
        return v_batch;
    end if;
    if v_consumer.rate_limit is not null then
        v_bucket := headrace.allow(v_consumer, v_cursor, v_room, p_now);
        v_room := v_bucket.granted;
        if v_room = 0 then
            v_batch.due_in := least(v_batch.due_in, headrace.refill(v_consumer, v_bucket.tokens));
            return v_batch;
        end if;
    end if;

    -- Search the holes if a transaction that can fill them has ended. Then also return the frozen holes of ended
    -- holders to the cursor, from the lowest on. While messages are replayed, the frozen holes stay frozen.
    if v_cursor.holes <> '{}' or v_cursor.frozen <> '{}' then
        v_progress := array(select pg_snapshot_xip(pg_current_snapshot()));
        if not v_cursor.frozen <@ v_progress then
            v_thawed := headrace.thaw_holes(v_cursor, v_progress, case when v_cursor.replay_floor is null then p_look else 0 end);
            v_cursor := v_thawed.cursor;
            v_until := v_thawed.until;
        end if;
        v_search := v_cursor.holes <> '{}' and (v_cursor.holders <@ v_progress) is not true;
    end if;

    -- 2. Parked messages that are due and first of their key, and the messages behind them. Before they are picked,
    -- the next messages of a replay are parked, and late arrivals of parked keys are parked in their place. Due
    -- messages of blocked keys move to the tails.
    if v_cursor.replay_floor is not null and headrace.parked_up_to(v_cursor, c_window / 2) < c_window / 2 then
        v_cursor := headrace.feed(v_consumer, v_stream, v_cursor, p_look);
    end if;
    select (select seq from headrace.parked
            where consumer_id = p_consumer and seq >= v_cursor.parked_floor order by seq limit 1),
           (select seq from headrace.dead_letters
            where consumer_id = p_consumer and (blocks, seq) >= (true, v_cursor.blocked_floor) order by blocks, seq limit 1)
        into v_parked.lowest, v_parked.blocked;
    if v_parked.lowest is not null and v_consumer.ordered and v_search and not v_stream.one_message_per_key then
        v_admitted := headrace.let_in(v_consumer, v_stream, v_cursor, p_look);
        v_cursor := v_admitted.cursor;
        v_until := least(v_until, v_admitted.until);
        v_parked.lowest := (
            select seq from headrace.parked where consumer_id = p_consumer and seq >= v_cursor.parked_floor order by seq limit 1);
    end if;
    if v_parked.lowest is not null then
        v_parked := headrace.parked_state(v_cursor, v_parked.lowest, v_parked.blocked, p_now);
    end if;
    v_next := v_cursor;
    v_batch.due_in := least(v_batch.due_in, extract(epoch from v_parked.due_next - p_now));
    if v_parked.ready is not null or v_parked.due_at is not null then
        v_picked := headrace.pick(v_consumer, v_stream, v_cursor, v_room, p_bytes, v_busy, v_parked.blocked is not null,
                                  least(v_until, v_cursor.replay_floor - 1), v_singly, p_known, p_now);
        v_room := v_room - coalesce(cardinality(v_picked.seqs), 0);
        v_bytes := v_bytes - v_picked.bytes;
        if v_stream.one_message_per_key or v_singly then
            v_busy := v_busy || v_picked.hashes;
        end if;
        if not v_stream.one_message_per_key and v_picked.removed > coalesce(cardinality(v_picked.seqs), 0) then
            perform headrace.miss(p_consumer, v_picked.removed - coalesce(cardinality(v_picked.seqs), 0),
                                  v_cursor.parked_floor, coalesce(v_picked.seqs[1], v_cursor.position + 1), p_now);
        end if;
    end if;
    if v_next.parked_room <= 0 then
        v_next.parked_room := c_window - headrace.parked_up_to(v_cursor, c_window);
    end if;

    -- 3. Late arrivals and fresh messages.
    -- A full window stops reading ahead. But if there were more late arrivals than one look takes in, the parked
    -- messages wait for them, so those are read.
    if v_room > 0 and v_bytes > 0 and v_cursor.replay_floor is null
       and (v_next.parked_room > 0 or v_until is not null) then
        if v_cursor.mark is not null then
            v_xmin := pg_snapshot_xmin(pg_current_snapshot());
            v_next := headrace.suspect(v_next, v_stream.relation, v_xmin, p_now);
        end if;
        v_look := case when v_consumer.condition = 'true' and v_busy is null and v_parked.lowest is null and v_parked.blocked is null and not v_singly
                       then v_room else greatest(v_room, p_look) end;
        v_one_by_one := headrace.draws_one_by_one(v_stream.sequence::regclass);
        v_had_xid := pg_current_xact_id_if_assigned() is not null;
        if v_parked.lowest is not null or v_parked.blocked is not null then
            v_waiting := headrace.waiting_keys(v_consumer, v_stream, v_cursor, v_parked.lowest is not null, v_parked.blocked is not null);
        end if;
        loop
            v_scanned := headrace.scan(v_consumer, v_stream, v_cursor, v_room, v_look, v_bytes, v_busy || v_waiting.hashes,
                                       coalesce(v_waiting.parked, false), coalesce(v_waiting.blocked, false), v_singly, p_known,
                                       v_search, v_thawed.until);
            exit when v_progress is null or v_until is not null;
            v_progress := array(select pg_snapshot_xip(v_scanned.snapshot));
            exit when v_search or v_cursor.holes = '{}' or (v_cursor.holders <@ v_progress) is true;
            v_search := true;   -- a holder has ended since, and its messages may precede those that were read
        end loop;
        if v_progress is not null and v_until is null and not v_cursor.frozen <@ v_progress then
            -- A holder of frozen holes has ended as well. The next call returns those holes to the cursor.
            v_scanned := null;
            v_scanned.more := true;
            v_next.mark_stamp := v_cursor.mark_stamp;
            v_next.suspects := v_cursor.suspects;
            v_next.suspects_at := v_cursor.suspects_at;
        else
            v_next := headrace.advance(v_next, v_scanned.position, v_scanned.missing, v_scanned.late, v_search, v_scanned.holes_searched,
                                       v_scanned.snapshot, v_drawn, v_one_by_one, v_had_xid);
        end if;
        if v_stream.one_message_per_key and v_parked.lowest is not null and v_scanned.looked_at > 0 then
            perform headrace.forget_outdated(p_consumer, v_stream, v_scanned.hashes || v_scanned.waiting_hashes, v_cursor.parked_floor);
        end if;
        v_batch.looked_at := coalesce(v_scanned.looked_at, 0);
        v_next.parked_room := v_next.parked_room - v_batch.looked_at;
        v_batch.more := v_scanned.more or coalesce(v_scanned.full_up, false) or v_until is not null;
        if v_scanned.waiting_seqs is not null then
            perform headrace.line_up(p_consumer, v_scanned.waiting_seqs, v_scanned.waiting_hashes, v_cursor.parked_floor,
                                     v_consumer.ordered, v_stream.one_message_per_key);
        end if;
    else
        v_batch.more := v_room <= 0 or v_bytes <= 0 or v_cursor.replay_floor is not null and v_next.parked_room > 0;
    end if;

    -- 4. The lease, and the new version of the cursor.
    v_batch.seqs := v_picked.seqs || v_scanned.seqs;
    if v_batch.seqs is not null then
        v_batch.keys := v_picked.keys || v_scanned.keys;
        v_batch.data := v_picked.data || v_scanned.data;
        v_batch.created_at := v_picked.created_at || v_scanned.created_at;
        v_batch.headers := v_picked.headers || v_scanned.headers;
        if v_picked.attempts is not null then
            v_batch.attempts := v_picked.attempts || array_fill(1, array[coalesce(cardinality(v_scanned.seqs), 0)]);
        end if;
        if 0 < any (v_picked.crashes) then
            v_batch.crashes := v_picked.crashes || array_fill(0, array[coalesce(cardinality(v_scanned.seqs), 0)]);
        end if;
        if p_shares is null then
            v_batch.lease_id := headrace.new_lease_id();
            insert into headrace.leases (consumer_id, lease_id, owner, since, expires_at, held, lowest, seqs, hashes, attempts, crashes)
                values (p_consumer, v_batch.lease_id, p_owner, p_now, p_now + v_consumer.ack_wait, cardinality(v_batch.seqs),
                        least(v_picked.seqs[1], v_scanned.seqs[1]), v_batch.seqs, v_picked.hashes || v_scanned.hashes, v_batch.attempts,
                        v_batch.crashes);
        else
            v_batch.lease_ids := headrace.deal(p_consumer, v_batch.seqs, v_picked.hashes || v_scanned.hashes, v_batch.attempts, v_batch.crashes,
                                                 p_shares, least(v_picked.seqs[1], v_scanned.seqs[1]), p_now, p_now + v_consumer.ack_wait);
            v_batch.lease_id := v_batch.lease_ids[1];
        end if;
        if v_batch.lease_id < v_before.lease_floor then
            perform headrace.raise_behind('headrace.lease_ids', v_batch.lease_id >> 20, v_before.lease_floor >> 20);
        end if;
    end if;
    if v_bucket.granted is not null and v_batch.seqs is not null then
        v_next.tokens := v_bucket.tokens - cardinality(v_batch.seqs);
        v_next.tokens_at := p_now;
        if v_bucket.short and cardinality(v_batch.seqs) = v_bucket.granted then
            v_batch.more := false;
            v_batch.due_in := least(v_batch.due_in, headrace.refill(v_consumer, v_next.tokens));
        end if;
    end if;
    v_next.lease_floor := coalesce(v_leases.floor, (select min(id) from unnest(v_batch.lease_ids) as id), v_batch.lease_id, v_cursor.lease_floor);
    -- When nothing waits, the floors rise with the position. Late arrivals and replayed messages lower them again.
    v_lowest := least(v_leases.lowest, v_picked.lowest, v_scanned.seqs[1]);
    v_next.parked_floor := coalesce(least(v_parked.lowest, v_lowest, v_scanned.waiting_seqs[1]),
                                    greatest(v_cursor.parked_floor, v_next.position + 1));
    v_next.ready_floor := coalesce(least(v_parked.ready, v_lowest, v_scanned.waiting_seqs[1]),
                                   greatest(v_cursor.ready_floor, v_next.position + 1));
    v_next.blocked_floor := coalesce(least(v_parked.blocked, v_lowest), greatest(v_cursor.blocked_floor, v_next.position + 1));
    if v_batch.seqs is not null then
        v_next.due_floor := least(v_parked.due_at, v_leases.since, p_now);
    end if;
    perform headrace.move(v_before, v_next);
    return v_batch;
end $$;
