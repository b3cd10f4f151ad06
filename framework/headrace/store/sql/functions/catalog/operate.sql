-- operate: pause and resume a consumer, list its blocked keys, and delete consumers and streams.

-- Lease no messages of a consumer until p_until. Null means until it is resumed. Messages in flight continue.
-- Granted: admin
create or replace function headrace_internal.pause(p_consumer int, p_until timestamptz) returns void
language plpgsql as $$
begin
    update headrace_internal.consumers set paused_until = coalesce(p_until, 'infinity') where id = p_consumer;
    if not found then
        perform headrace_internal.raise_consumer_gone();
    end if;
end $$;

-- Granted: admin
create or replace function headrace_internal.resume(p_consumer int) returns void
language plpgsql as $$
declare
    v_stream  int;
begin
    update headrace_internal.consumers set paused_until = null where id = p_consumer returning stream_id into v_stream;
    if not found then
        perform headrace_internal.raise_consumer_gone();
    end if;
    perform headrace_internal.notify_listeners(v_stream);       -- every waiting worker leases immediately, even without a
                                                                -- subscription
end $$;

-- The keys that a dead letter blocks, in the order of these letters' seqs. `waiting`: the number of messages of the
-- key behind it.
-- Granted: consume
create or replace function headrace_internal.blocked_key_page(
    p_consumer int, p_limit int, p_above bigint default 0, p_below bigint default null, p_newest boolean default false,
    p_bytes bigint default null
)
returns table (key text, seq bigint, since timestamptz, waiting bigint, error text, error_type text)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_bytes  bigint := 0;
begin
    for key, seq, since, waiting, error, error_type in
        select letter.key, letter.seq, letter.died_at,
               letter.others + (select count(*) from headrace_internal.tails as t where t.consumer_id = p_consumer and t.key_hash = letter.key_hash),
               letter.error, letter.error_type
        from (
            select distinct on (d.key_hash) d.key, d.seq, d.died_at, d.error, d.error_type, d.key_hash, count(*) over (partition by d.key_hash) - 1 as others
            from headrace_internal.dead_letters as d where d.consumer_id = p_consumer and d.blocks order by d.key_hash, d.seq) as letter
        where letter.seq > p_above and letter.seq < coalesce(p_below, 9223372036854775807)
        order by case when p_newest then - letter.seq else letter.seq end limit p_limit
    loop
        return next;
        v_bytes := v_bytes + octet_length(key) + coalesce(octet_length(error), 0);
        exit when v_bytes >= p_bytes;
    end loop;
end $$;

-- The number of workers of a consumer, by its leases, and whether a worker waits for its next message.
create or replace function headrace_internal.consumer_use(p_consumer int, p_now timestamptz, out workers bigint, out messages bigint, out waiting boolean)
language sql set enable_seqscan = off set enable_bitmapscan = off as $$
    select count(distinct l.owner), coalesce(sum(l.held), 0),
           exists (select from headrace_internal.waiting as w where w.consumer_id = p_consumer and w.until > p_now)
    from headrace_internal.leases as l
    where l.consumer_id = p_consumer and l.expires_at > p_now and l.lease_id >= (
        select c.lease_floor from headrace_internal.cursors as c where c.consumer_id = p_consumer order by c.version desc limit 1)
$$;

-- Delete a consumer. p_force: even while workers handle its messages. Then the outcomes of these messages are lost,
-- and the workers' next call reports that the consumer is gone.
-- Granted: admin
create or replace function headrace_internal.delete_consumer(p_consumer int, p_force boolean, p_now timestamptz default clock_timestamp()) returns void
language plpgsql set lock_timeout = '5s' as $$
begin
    perform headrace_internal.end_consumer_use(p_consumer, p_force, p_now);
    -- Wakes its workers: their next lease call reports that it is gone.
    perform headrace_internal.notify_listeners(stream_id) from headrace_internal.consumers where id = p_consumer;
    delete from headrace_internal.consumers where id = p_consumer;
exception when lock_not_available or deadlock_detected then
    raise exception using errcode = 'HR006', message =
        'Somebody has kept hold of the consumer for 5 seconds, and nothing was deleted: try again, or look for a transaction that was left open.';
end $$;

-- Take a consumer's lock, end its leases and delete its cursor, before the consumer is deleted. Its tables have no foreign
-- key, because it would lock the consumer's row at each lease call. Raises if the consumer is in use, unless p_force.
create or replace function headrace_internal.end_consumer_use(p_consumer int, p_force boolean, p_now timestamptz) returns void
language plpgsql as $$
declare
    v_consumer  headrace_internal.consumers := headrace_internal.lock_consumer(p_consumer);
    v_users     record;
begin
    select * into v_users from headrace_internal.consumer_use(p_consumer, p_now);
    if not p_force and (v_users.workers > 0 or v_users.waiting) then
        raise exception using errcode = 'HR006', message = format(
            'The consumer %L of the stream %L is in use: %s. Stop its workers first, or delete it by force.',
            v_consumer.name, (select name from headrace_internal.streams where id = v_consumer.stream_id),
            case when v_users.workers > 0
                 then format('%s at work on %s', headrace_internal.count_of(v_users.workers, 'worker'), headrace_internal.count_of(v_users.messages, 'message'))
                 else 'a worker waits for its next message' end);
    end if;
    -- The leases are locked before the consumer itself. A settle in progress has locked its leases, and reads the
    -- consumer next.
    perform headrace_internal.end_leases(p_consumer);
    delete from headrace_internal.cursors where consumer_id = p_consumer;
    delete from headrace_internal.owners where consumer_id = p_consumer;
    delete from headrace_internal.replays where consumer_id = p_consumer;
end $$;

-- End all leases of a consumer. The caller holds the consumer's lock. They are locked in the order of their ids, as a
-- settle locks them. Without the ordering, a small table would be read in another order.
create or replace function headrace_internal.end_leases(p_consumer int) returns void
language plpgsql as $$
begin
    perform from headrace_internal.leases where consumer_id = p_consumer order by lease_id for update;
    delete from headrace_internal.leases where consumer_id = p_consumer;
    delete from headrace_internal.acks where consumer_id = p_consumer;
end $$;

create or replace function headrace_internal.count_of(p_count bigint, p_noun text) returns text
language sql stable as $$
    select format('%s %s%s', p_count, p_noun, case when p_count <> 1 then 's' end)
$$;

-- Delete a stream with its messages, its consumers and its sources. p_force: even while workers handle them, or a
-- webhook feeds the stream. p_end_leases: even while workers handle them.
-- Granted: admin
create or replace function headrace_internal.delete_stream(
    p_stream text, p_force boolean, p_now timestamptz default clock_timestamp(), p_end_leases boolean default false
) returns void
language plpgsql set lock_timeout = '5s' as $$
declare
    v_stream    headrace_internal.streams;
    v_consumer  int;
    v_source    record;
    v_staging   text;
begin
    perform pg_advisory_xact_lock(1212498508, 0);   -- no consumer or source is declared meanwhile
    select * into v_stream from headrace_internal.streams where name = p_stream;
    if not found then
        raise exception using errcode = 'HR001', message = format('There is no stream %L.', p_stream);
    end if;
    -- A source that captures has a replication slot. The slot would remain and retain its server's WAL, so this is
    -- refused even by force.
    select name, kind into v_source from headrace_internal.sources where stream_id = v_stream.id and (kind = 'postgres' or not p_force)
        order by kind, name limit 1;
    if found then
        raise exception using errcode = 'HR006', message = format(
            'The stream %L is in use: the source %L delivers to it. Remove what delivers to it first%s.',
            p_stream, v_source.name, case when v_source.kind = 'webhook' then ', or delete the stream by force' else '' end);
    end if;
    for v_consumer in select id from headrace_internal.consumers where stream_id = v_stream.id order by id loop
        perform headrace_internal.end_consumer_use(v_consumer, p_force or p_end_leases, p_now);
    end loop;
    -- Take the locks in the order in which other sessions take them. Otherwise Postgres would end one of the two
    -- sessions as a deadlock. A session that waits for messages locks the consumer's row and then the stream's. A
    -- session that publishes scheduled messages locks rows of the schedule. One that runs a schedule locks its row. A
    -- session that publishes with a message id, or begins a write, locks the stream's row. The table comes last.
    perform pg_advisory_xact_lock(1212498511, v_stream.id);
    perform from headrace_internal.consumers where stream_id = v_stream.id order by id for update;
    perform from headrace_internal.schedules where stream_id = v_stream.id order by id for update;
    perform from headrace_internal.streams where id = v_stream.id for update;
    execute format('drop table %s', v_stream.relation);     -- with its segments, and the sequence that its column owns
    perform headrace_internal.drop_appenders(v_stream);
    perform headrace_internal.drop_reader(v_stream.id);
    for v_staging in select staging from headrace_internal.writes where stream_id = v_stream.id for update loop
        if v_staging is not null then
            execute format('drop table %s', v_staging);
        end if;
    end loop;
    delete from headrace_internal.grants where stream_id = v_stream.id;
    delete from headrace_internal.streams where id = v_stream.id;
    perform headrace_internal.notify_listeners(v_stream.id);       -- wakes the workers of its consumers
exception when lock_not_available or deadlock_detected then
    raise exception using errcode = 'HR006', message = format(
        'Somebody has kept hold of the stream %L for 5 seconds, and nothing was deleted: stop its publishers, or look for a transaction that was left open.',
        p_stream);
end $$;
