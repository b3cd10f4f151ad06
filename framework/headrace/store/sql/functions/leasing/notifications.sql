-- Notifications of waiting consumers. NOTIFY takes a lock across the whole database from before the commit until
-- after it, so one per publish would limit a server to some hundreds of commits a second. Two things keep it rare.
-- Publishers notify only while a consumer of the stream is subscribed. And among the publishers to one stream that
-- are in flight at the same time, only one notifies. If its notification comes before the others' messages are
-- visible, the waiter's poll finds these a few milliseconds later.
--
-- In flight at the same time means: called in the same slice of time, before the first of these transactions has
-- ended, so a transaction that stays open suppresses only the notifications of publishers in its own slice. It takes
-- at most one lock per stream, however often it publishes.

-- Whether a transaction succeeds must not depend on who listens. Postgres prepares no transaction that has executed
-- NOTIFY, so where transactions can be prepared, the notification waits for the end of the transaction, and is left
-- out if that is a PREPARE TRANSACTION. Then a poll finds what was published. And Postgres commits no transaction that
-- notifies while the queue of notifications is full, because a session that listens has a transaction open.

-- Each stream has one of 64 channels, so that processes without a consumer of the stream are seldom woken, see
-- store/database/listener.py.
create or replace function headrace_internal.send_notification(p_stream int) returns void
language sql as $$ select pg_notify('headrace_' || p_stream % 64, p_stream::text) $$;

-- Notify all who listen for a stream, once this transaction commits.
create or replace function headrace_internal.notify_listeners(p_stream int) returns void
language plpgsql as $$
begin
    if pg_notification_queue_usage() > 0.5 then
        return;
    elsif current_setting('max_prepared_transactions') = '0' then
        perform headrace_internal.send_notification(p_stream);
    else
        perform headrace_internal.notify_at_commit(p_stream);
    end if;
end $$;

-- Notify at the end of the transaction, by a deferred trigger. As the owner, since a publisher needs no right on the table.
create or replace function headrace_internal.notify_at_commit(p_stream int) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    insert into headrace_internal.notifications (stream_id) values (p_stream) on conflict do nothing
$$;

-- SET CONSTRAINTS may run the trigger earlier, and a PREPARE TRANSACTION may follow.
create or replace function headrace_internal.notify_unless_prepared() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if coalesce(current_query(), '') !~* 'prepare.*transaction|set.*constraints' then
        perform headrace_internal.send_notification(new.stream_id);
    end if;
    delete from headrace_internal.notifications where xid = new.xid and stream_id = new.stream_id;
    return null;
end $$;

create or replace function headrace_internal.notify_stream(p_stream int) returns void
language plpgsql as $$
declare
    c_slice  constant float8 := 0.02;   -- seconds. A commit takes a few milliseconds
    v_mark   text := format('(%s)', p_stream);
    v_notified  text := coalesce(current_setting('headrace.woken', true), '');
begin
    if (select until from headrace_internal.waits where stream_id = p_stream order by until desc limit 1) > clock_timestamp()
       and strpos(v_notified, v_mark) = 0
       and pg_try_advisory_xact_lock(
            1212498509, hashtext(v_mark || floor(extract(epoch from clock_timestamp()) / c_slice)))
    then
        perform headrace_internal.notify_listeners(p_stream);
        perform set_config('headrace.woken', v_notified || v_mark, true);
    end if;
end $$;

-- Subscribe consumers to notifications for `p_duration` from now. Each is subscribed again after about half of that time.
-- A subscription that another process has renewed recently is not written again. It lasts ten minutes at most, since each
-- publish notifies meanwhile.
-- Granted: consume
create or replace function headrace_internal.subscribe_consumers(p_consumers int[], p_duration interval) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_now      timestamptz := clock_timestamp();
    v_streams  int[];
begin
    p_duration := least(p_duration, interval '10 minutes');
    perform set_config('synchronous_commit', 'off', true);
    insert into headrace_internal.waiting as w (consumer_id, stream_id, until)
        select id, stream_id, v_now + p_duration from headrace_internal.consumers where id = any (p_consumers) order by id
        on conflict (consumer_id) do update set until = excluded.until where w.until < v_now + p_duration / 2;
    v_streams := array(
        select id from (select distinct stream_id as id from headrace_internal.consumers where id = any (p_consumers)) as s
        where coalesce((select until from headrace_internal.waits where stream_id = s.id order by until desc limit 1), '-infinity') < v_now + p_duration / 2);
    insert into headrace_internal.waits (stream_id, until) select unnest(v_streams), v_now + p_duration on conflict do nothing;
    delete from headrace_internal.waits where (stream_id, until) in (
        select stream_id, until from headrace_internal.waits where stream_id = any (v_streams) and until < v_now + p_duration for update skip locked);
end $$;

-- Return those of these consumers for which no process is subscribed.
-- Granted: consume
create or replace function headrace_internal.without_subscription(p_consumers int[]) returns int[]
language sql set enable_seqscan = off set enable_bitmapscan = off as $$
    select coalesce(array_agg(id), '{}') from unnest(p_consumers) as id
        where coalesce((select until from headrace_internal.waiting where consumer_id = id), '-infinity') <= clock_timestamp()
$$;
