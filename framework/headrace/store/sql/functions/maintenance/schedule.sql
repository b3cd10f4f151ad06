-- Scheduled messages: they are published when they are due.

-- Publish the messages that are due, in the order of their times, and at the same time in the order of their
-- scheduling. One call at a time for each stream, until the commit, so that this is the order of their seqs, too.
-- p_floor: nothing is due before that time, where there may be many dead rows. `due_in`: seconds until there is more
-- to do, null when nothing is scheduled.
-- Granted: admin
create or replace function headrace_internal.publish_scheduled(
    p_stream int, p_now timestamptz default clock_timestamp(), p_floor timestamptz default '-infinity', out moved int, out due_in float8
) language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream  headrace_internal.streams;
    v_due     record;
begin
    moved := 0;
    select * into v_stream from headrace_internal.streams where id = p_stream;
    if not found then
        return;
    elsif not pg_try_advisory_xact_lock(1212498511, p_stream) then
        due_in := 0.05;
        return;
    end if;
    begin
        with due as (
            delete from headrace_internal.scheduled where stream_id = p_stream and (deliver_at, id) in (
                select deliver_at, id from headrace_internal.scheduled
                where stream_id = p_stream and deliver_at >= p_floor and deliver_at <= p_now order by deliver_at, id limit 1000)
              and deliver_at >= p_floor
            returning *
        )
        select count(*) as count, array_agg(key order by deliver_at, id) as keys, array_agg(data order by deliver_at, id) as data,
               array_agg(headers order by deliver_at, id) as headers, array_agg(unique_key order by deliver_at, id) as unique_keys
            into v_due from due;
        if v_due.count > 0 then     -- they were checked when they were scheduled
            perform headrace_internal.begin_publish(v_stream.name, null);
            -- Before the stream's row, as in headrace_internal.publish_with_options.
            execute format('lock table only %s in row exclusive mode', v_stream.relation);
            perform headrace_internal.append_recorded(v_stream, v_due.keys, v_due.data, v_due.headers, null, v_due.unique_keys);
            perform headrace_internal.notify_stream(p_stream);
        end if;
        moved := v_due.count;
    exception
        when sqlstate 'HR005' then      -- the stream is full
            due_in := 1;
            return;
    end;
    select greatest(extract(epoch from deliver_at - p_now), 0) into due_in from headrace_internal.scheduled
        where stream_id = p_stream and deliver_at >= p_floor and deliver_at < 'infinity' order by deliver_at limit 1;
end $$;

-- Return the streams that have scheduled messages, and in how many seconds the next one is due. p_floor: nothing is
-- due before that time, except in the streams of p_except.
-- Granted: all
create or replace function headrace_internal.next_scheduled(
    p_now timestamptz default clock_timestamp(), p_floor timestamptz default '-infinity', p_except int[] default '{}'
) returns table (stream_id int, stream text, due_in float8)
language sql set enable_seqscan = off set enable_bitmapscan = off as $$
    select s.id, s.name, greatest(extract(epoch from d.deliver_at - p_now), 0)
    from headrace_internal.streams as s
    cross join lateral (
        select deliver_at from headrace_internal.scheduled
        where scheduled.stream_id = s.id and deliver_at < 'infinity'
          and deliver_at >= case when s.id = any (p_except) then '-infinity' else p_floor end
        order by deliver_at limit 1) as d
$$;

-- Return the transactions that may have added rows to a table that are not visible yet, and the time after which no
-- other transaction adds an earlier row. Publishers lock the table before they read the clock.
create or replace function headrace_internal.open_inserts(p_table regclass, out at timestamptz, out holders text[])
language plpgsql as $$
begin
    at := clock_timestamp();
    holders := array(
        select virtualtransaction from pg_locks
        where locktype = 'relation' and mode = 'RowExclusiveLock' and granted and relation = p_table
          and database = (select oid from pg_database where datname = current_database()));
end $$;
