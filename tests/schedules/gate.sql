-- The gate at which sessions stop between the statements of rewritten functions, see rewrite.py. It is open for every
-- session that has not called gate.begin.
--
-- Nothing here belongs to a transaction, since a subtransaction that is rolled back must not bring an earlier state back:
-- the number of gates that a session has passed is a temporary sequence, and what a session waits for are session-level
-- advisory locks that the scheduler holds. A temporary sequence assigns no xid, which a lease call would refuse.

create schema gate;
grant usage on schema gate to public;

-- Take part in a schedule.
-- p_session: its number. p_stops: the numbers of the gates at which it stops, as in ',3,17,'.
create function gate.begin_schedule(p_session int, p_stops text) returns void
language plpgsql as $$
begin
    if to_regclass('pg_temp.passed') is null then
        create temp sequence passed;
    end if;
    perform setval('pg_temp.passed', 1, false), setseed(0.1 * p_session),
            set_config('gate.session', p_session::text, false), set_config('gate.stops', p_stops, false);
end $$;

-- Pass a gate. A session stops at the gates that its schedule names, until the scheduler gives up the lock of that number.
-- It stops at any gate while the scheduler holds lock 0, as after a wait for another session's lock.
create function gate.pass() returns boolean
language plpgsql as $$
declare
    v_session  constant int := nullif(current_setting('gate.session', true), '');
    v_class    int;
    v_number   int;
    v_lock     int;
begin
    if v_session is null then
        return false;
    end if;
    v_class := 46000 + v_session;
    v_number := nextval('pg_temp.passed');
    if strpos(current_setting('gate.stops'), ',' || v_number || ',') > 0 then
        v_lock := v_number;
    elsif pg_try_advisory_lock_shared(v_class, 0) then
        return not pg_advisory_unlock_shared(v_class, 0);
    else
        v_lock := 0;
    end if;
    raise notice 'gate % %', v_number, v_lock;
    perform pg_advisory_lock_shared(v_class, v_lock);
    return not pg_advisory_unlock_shared(v_class, v_lock);
end $$;

-- The number of gates that this session has passed.
create function gate.passed() returns int
language plpgsql as $$
begin
    return pg_sequence_last_value('pg_temp.passed');
end $$;

-- The ids of leases without their random part, so that a state is the same whichever session has made a lease.
create or replace function headrace_internal.new_lease_id() returns bigint
language sql as $$
    select nextval('headrace_internal.lease_ids') << 20
$$;

-- The effects of transactional handlers.
create table gate.effects (seq bigint not null);

-- All that decides what happens next, as one text: the same text, the same future. Null while a session has locked the
-- stream's table, since the scheduler must not wait for a session that waits for the scheduler.
create function gate.state() returns text
language plpgsql as $$
begin
    lock table only headrace_streams.orders in access share mode nowait;
    return json_build_object(
        'messages', (select coalesce(json_agg(json_build_array(seq, key, hashtextextended(key, 0)) order by seq), '[]') from headrace_streams.orders),
        'consumer', (select json_build_object('id', id, 'ordered', ordered, 'on_exhausted', on_exhausted, 'paused', paused_until is not null)
                     from headrace_internal.consumers where name = 'ship'),
        'compacted', (select one_message_per_key from headrace_internal.streams where name = 'orders'),
        'cursor', (select to_json(u) from (select c.*, round(extract(epoch from due_floor)) as due, (select * from headrace_internal.cursor_holes(c)) as all_holes from headrace_internal.cursors as c
                   where consumer_id = (select id from headrace_internal.consumers where name = 'ship') order by version desc limit 1) as u),
        'leases', (select coalesce(json_agg(json_build_object('id', lease_id, 'owner', owner, 'expires', round(extract(epoch from expires_at)), 'seqs', array(select seq from headrace_internal.messages_of_lease(l)),
                          'hashes', hashes, 'held', held, 'lowest', lowest, 'attempts', attempts) order by lease_id), '[]') from headrace_internal.leases as l),
        'acks', (select coalesce(json_agg(json_build_array(lease_id, seq) order by lease_id, seq), '[]') from headrace_internal.acks),
        -- The seqs of what the consumer's history says was acked, null without a history.
        'completed', (select (select coalesce(json_agg(c.lower >> 10 << 10 | m.place order by c.lower, m.place), '[]')
                              from headrace_internal.completions as c cross join unnest(headrace_internal.places_between(c.lower, c.upper, c.places)) as m(place)
                              where c.consumer_id = s.id and c.outcome = 'acked')
                      from headrace_internal.consumers as s where s.name = 'ship' and s.history is not null),
        'parked', (select coalesce(json_agg(json_build_array(seq, key_hash, attempts, crashes, round(extract(epoch from nullif(due_at, '-infinity')))) order by seq), '[]')
                   from headrace_internal.parked),
        'tails', (select coalesce(json_agg(json_build_array(seq, key_hash) order by seq), '[]') from headrace_internal.tails),
        'dead', (select coalesce(json_agg(json_build_array(seq, key_hash, blocks, key) order by seq), '[]') from headrace_internal.dead_letters),
        'orphans', (select coalesce(json_agg(json_build_array(name, consumer_id)), '[]') from (
                        select 'cursors' as name, consumer_id from headrace_internal.cursors union all
                        select 'leases', consumer_id from headrace_internal.leases union all
                        select 'acks', consumer_id from headrace_internal.acks union all
                        select 'owners', consumer_id from headrace_internal.owners union all
                        select 'cancellations', consumer_id from headrace_internal.cancellations union all
                        select 'replays', consumer_id from headrace_internal.replays) as r
                    where consumer_id not in (select id from headrace_internal.consumers)),
        'replays', (select coalesce(json_agg(seq order by seq), '[]') from headrace_internal.replays),
        'erased', (select coalesce(json_agg(seq order by seq), '[]') from headrace_internal.erasures),
        'cancelled', (select coalesce(json_agg(json_build_array(seq, ended_at is null, coalesce(outcome, '')) order by seq), '[]')
                      from headrace_internal.cancellations),
        'effects', (select coalesce(json_agg(seq order by seq), '[]') from gate.effects),
        'scheduled', (select coalesce(json_agg(key order by key), '[]') from headrace_internal.scheduled),
        'unique', (select coalesce(json_agg(json_build_array(unique_key, seq) order by unique_key, version), '[]') from headrace_internal.unique_keys)
    )::text;
exception when lock_not_available or undefined_table then
    return null;
end $$;

-- Make the stream again if it was deleted, with its functions as they were, and the segments that are missing.
create function gate.rebuild() returns void
language plpgsql as $$
declare
    v_relation  text;
begin
    if to_regclass('headrace_streams.orders')::oid is distinct from (select oid from saved.relation) then
        if exists (select from headrace_internal.streams where name = 'orders') then
            perform headrace_internal.delete_stream(p_stream => 'orders', p_force => true);
        end if;
        perform setval(pg_get_serial_sequence('headrace_internal.streams', 'id'), 1, false);
        perform headrace_internal.declare_stream(p_name => 'orders', p_settings => (select policy from gate.settings));
        for v_relation in delete from headrace_internal.segments returning relation loop
            execute format('drop table if exists %s', v_relation);
        end loop;
        update pg_proc as p set prosrc = a.prosrc from saved.appenders as a
            where p.pronamespace = 'headrace_streams'::regnamespace and p.proname = a.proname;
        update saved.relation set oid = 'headrace_streams.orders'::regclass;
    end if;
    if to_regclass('saved.segments') is not null then
        perform headrace_internal.add_segment(stream_id, lower, upper) from saved.segments where to_regclass(relation) is null;
    end if;
end $$;

-- Install all functions of Headrace again, as an upgrade does, with the gates that they have. It may stop halfway.
create function gate.reinstall() returns void
language plpgsql as $$
declare
    v_function  record;
begin
    perform pg_advisory_xact_lock(1212498508, -1);
    for v_function in
        select p.oid, row_number() over (order by p.proname, p.oid) as number
        from pg_proc as p where pronamespace in ('headrace'::regnamespace, 'headrace_internal'::regnamespace) and prokind = 'f' order by 2
    loop
        execute pg_get_functiondef(v_function.oid);
        if v_function.number % 100 = 50 then
            perform gate.pass();
        end if;
    end loop;
end $$;

-- Deliver all that is left, in a year, and what is redriven after that. One call of the scheduler, but many transactions.
-- p_rounds: the messages of each batch, for each time, and null as the last batch if there was no end.
create procedure gate.drain(p_consumer int, inout p_rounds jsonb)
language plpgsql as $$
declare
    c_now  constant timestamptz := timestamptz '2030-01-01 00:00Z' + interval '365 days';
    v_batch    record;
    v_batches  jsonb;
begin
    p_rounds := '[]';
    if exists (select from headrace_internal.consumers where id = p_consumer and paused_until is not null) then
        perform headrace_internal.resume(p_consumer => p_consumer);
        commit;
    end if;
    for v_round in 1 .. 3 loop
        v_batches := '[]';
        for v_call in 1 .. 41 loop
            if v_call = 41 then
                v_batches := v_batches || 'null'::jsonb;
                exit;
            end if;
            select * into v_batch from headrace_internal.lease(
                p_consumer => p_consumer, p_owner => '00000000-0000-4000-8000-000000000000', p_bounds => row(100, 1000, 1000000, false), p_now => c_now);
            commit;
            exit when v_batch.lease_id is null and not v_batch.more;
            if v_batch.lease_id is not null then
                perform from headrace_internal.settle_outcomes(
                    p_consumer => p_consumer, p_whole => array[v_batch.lease_id], p_leases => '{}', p_seqs => '{}', p_failures => '{}', p_now => c_now);
                commit;
                v_batches := v_batches || jsonb_build_array(v_batch.seqs);
            end if;
        end loop;
        p_rounds := p_rounds || jsonb_build_array(v_batches);
        exit when not exists (select from headrace_internal.dead_letters where consumer_id = p_consumer);
        exit when headrace_internal.redrive_chosen(p_consumer => p_consumer) = 0;
        commit;
    end loop;
end $$;
