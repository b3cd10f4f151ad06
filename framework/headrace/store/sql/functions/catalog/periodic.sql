-- Schedules: periodic messages, each published once by whichever process comes first.
--
-- The processes compute the due times, since Postgres knows no cron expressions. All of them may compute the same one.
-- headrace_internal.run_schedule then publishes for the first of them, and moves the schedule on, in one transaction.

-- Create a schedule, or change its settings. The schedule's stream can't be changed. The next due time stays, unless
-- p_restart: the due times are others now. `before`: the settings until now, null for a new schedule.
-- Granted: admin
create or replace function headrace_internal.declare_schedule(
    p_name text, p_stream text, p_settings json, p_digest text, p_restart text[] default '{}',
    p_now timestamptz default clock_timestamp(), out before json
) language plpgsql as $$
declare
    v_stream    headrace_internal.streams;
    v_schedule  headrace_internal.schedules;
begin
    if not headrace_internal.has_fields(p_settings, '{every,zone,key,data,functions,missed,max_missed}') then
        raise exception using errcode = 'HR004', message = 'The settings of a schedule are a JSON object with all fields, and no NUL character.';
    end if;
    perform pg_advisory_xact_lock(1212498508, 0);   -- the stream can't be deleted meanwhile
    v_stream := headrace_internal.require_stream(p_stream);
    select * into v_schedule from headrace_internal.schedules where name = p_name for update;
    if not found then
        insert into headrace_internal.schedules (name, stream_id, settings, digest, seen_at, created_at, updated_at)
            values (p_name, v_stream.id, p_settings, p_digest, p_now, p_now, p_now);
        return;
    elsif v_schedule.stream_id <> v_stream.id then
        raise exception using errcode = 'HR004', message = format(
            'The schedule %L publishes to the stream %L, which can''t be changed to %L: remove it with `headrace schedule rm %s`, or give this one another name.',
            p_name, (select name from headrace_internal.streams where id = v_schedule.stream_id), p_stream, p_name);
    end if;
    before := v_schedule.settings;
    if v_schedule.digest = p_digest then
        update headrace_internal.schedules set seen_at = p_now where id = v_schedule.id;
        return;
    end if;
    update headrace_internal.schedules
        set settings = p_settings, digest = p_digest, seen_at = p_now, updated_at = p_now,
            next_at = case when exists (select from unnest(p_restart) as r(setting)
                                        where v_schedule.settings ->> r.setting is distinct from p_settings ->> r.setting)
                           then null else v_schedule.next_at end
        where id = v_schedule.id;
end $$;

-- Return the state of schedules for a process that declares them with settings of these digests.
-- held: whether these are the settings. If not, abandoned tells that no process with the others has asked for p_grace.
-- Granted: any
create or replace function headrace_internal.poll_schedules(
    p_names text[], p_digests text[], p_now timestamptz default clock_timestamp(), p_grace interval default '90 seconds'
) returns table (name text, held boolean, abandoned boolean, paused boolean, next_at timestamptz, requested_at timestamptz, at timestamptz)
language plpgsql as $$
begin
    -- Recorded now and then, by one of the processes.
    update headrace_internal.schedules as s set seen_at = p_now where s.id in (
        select o.id from headrace_internal.schedules as o join unnest(p_names, p_digests) as g(name, digest) on o.name = g.name and o.digest = g.digest
        where o.seen_at < p_now - p_grace / 3 order by o.id for update of o skip locked);
    return query
        select s.name, s.digest = g.digest, s.seen_at < p_now - p_grace, s.paused_at is not null,
               case when s.digest = g.digest then s.next_at end, case when s.digest = g.digest then s.requested_at end, p_now
        from unnest(p_names, p_digests) as g(name, digest) join headrace_internal.schedules as s on s.name = g.name;
end $$;

-- Publish the messages of a schedule and move it on, if it is still in the state that the process has seen. Otherwise
-- another process was first, or it was paused, changed or removed. Then null is returned, and nothing was done.
-- p_run: name and digest of the schedule, next_at and requested_at as headrace_internal.poll_schedules returned them,
-- due_at of the messages, and next_due.
-- A schedule with a unique key publishes nothing while a message of it is pending, see unique.sql. It is moved on.
-- Granted: publish
create or replace function headrace_internal.run_schedule(
    p_stream text, p_run json, p_keys text[], p_data json[], p_headers json[], p_now timestamptz default clock_timestamp()
) returns bigint
language plpgsql as $$
declare
    v_run         record;
    v_id          int;
    v_unique_key  text;
    v_count       bigint := cardinality(p_keys);
begin
    select * into v_run from json_to_record(p_run) as r(
        name text, digest text, next_at timestamptz, requested_at timestamptz, due_at timestamptz, next_due timestamptz);
    select s.id, s.settings ->> 'unique_key' into v_id, v_unique_key
        from headrace_internal.schedules as s join headrace_internal.streams as t on t.id = s.stream_id
        where s.name = v_run.name and t.name = p_stream and s.digest = v_run.digest and s.paused_at is null
          and s.next_at is not distinct from v_run.next_at and s.requested_at is not distinct from v_run.requested_at
        for update of s skip locked;
    if not found then
        return null;
    end if;
    if v_count > 0 and v_unique_key is not null then
        v_count := (headrace_internal.publish_with_options(p_stream, p_keys, p_data, p_headers, json_build_object('unique_key', v_unique_key))).published;
    elsif v_count > 0 then
        perform headrace_internal.publish_messages(p_stream, p_keys, p_data, p_headers);
    end if;
    update headrace_internal.schedules
        set next_at = v_run.next_due, requested_at = null, messages = messages + v_count,
            last_due_at = case when v_count > 0 then v_run.due_at else last_due_at end,
            last_run_at = case when v_count > 0 then p_now else last_run_at end
        where id = v_id;
    return v_count;
end $$;

-- Pause a schedule, or resume it. A schedule that is resumed continues with its first due time from now. Returns whether
-- it exists.
-- Granted: all
create or replace function headrace_internal.pause_schedule(p_name text, p_paused boolean, p_now timestamptz default clock_timestamp()) returns boolean
language plpgsql as $$
begin
    update headrace_internal.schedules
        set paused_at = case when p_paused then coalesce(paused_at, p_now) end,
            next_at = case when p_paused or paused_at is null then next_at end,
            requested_at = case when p_paused then null else requested_at end
        where name = p_name;
    return found;
end $$;

-- Ask for a message of a schedule now. Returns whether the schedule is paused, or null if it doesn't exist.
-- Granted: all
create or replace function headrace_internal.request_schedule(p_name text, p_now timestamptz default clock_timestamp()) returns boolean
language plpgsql as $$
declare
    v_paused  boolean;
begin
    update headrace_internal.schedules
        set requested_at = case when paused_at is null then coalesce(requested_at, p_now) end
        where name = p_name returning paused_at is not null into v_paused;
    return v_paused;
end $$;

-- Remove a schedule. Returns whether it existed.
-- Granted: all
create or replace function headrace_internal.delete_schedule(p_name text) returns boolean
language plpgsql as $$
begin
    delete from headrace_internal.schedules where name = p_name;
    return found;
end $$;

-- Return schedules by name: the one called p_name, or the first p_limit above p_after, or the last ones below p_before
-- in descending order, until the size of their settings exceeds p_bytes. `state`: paused, running, or idle when no running
-- process declares it with its settings.
-- Granted: all
create or replace function headrace_internal.schedule_page(
    p_name text, p_after text default null, p_before text default null, p_limit int default null, p_bytes bigint default null,
    p_now timestamptz default clock_timestamp(), p_grace interval default '90 seconds'
) returns table (name text, stream text, settings json, state text, next_at timestamptz, requested_at timestamptz, last_due_at timestamptz,
                 last_run_at timestamptz, messages bigint, paused_at timestamptz, seen_at timestamptz, created_at timestamptz, updated_at timestamptz)
language plpgsql as $$
declare
    v_bytes  bigint := 0;
begin
    for name, stream, settings, state, next_at, requested_at, last_due_at, last_run_at, messages, paused_at, seen_at, created_at, updated_at in
        select s.name, t.name, s.settings, case when s.paused_at is not null then 'paused' when s.seen_at < p_now - p_grace then 'idle' else 'running' end, s.next_at, s.requested_at, s.last_due_at,
               s.last_run_at, s.messages, s.paused_at, s.seen_at, s.created_at, s.updated_at
        from headrace_internal.schedules as s join headrace_internal.streams as t on t.id = s.stream_id
        where (p_name is null or s.name = p_name) and (p_after is null or s.name > p_after) and (p_before is null or s.name < p_before)
        order by case when p_before is null then s.name end, s.name desc limit p_limit
    loop
        return next;
        v_bytes := v_bytes + octet_length(settings::text);
        exit when v_bytes >= p_bytes;
    end loop;
end $$;
