-- captures: the capture leases of sources, their positions, and the appends of captured messages.
--
-- One process holds a capture lease at a time, for some seconds from each renewal. It appends under the number of its
-- lease, the epoch. An append locks the row of the capture `for key share` until it commits, and a takeover locks it
-- `for update`. So a takeover waits for an append in progress and reads its position, and an append under an epoch
-- that is over is refused. To renew a lease, or to report the state, changes no key and so waits for no other
-- session.

-- Return the sources to capture. `free`: no process captures it.
-- Granted: all
create or replace function headrace_internal.sources_to_capture(p_now timestamptz default clock_timestamp())
returns table (source_id int, uid uuid, name text, stream text, settings json, updated_at timestamptz, paused boolean, free boolean, holder uuid)
language sql as $$
    select c.source_id, o.uid, o.name, s.name, o.settings, o.updated_at, c.paused_at is not null,
           c.held_until is null or c.held_until <= p_now, c.holder
    from headrace_internal.captures as c join headrace_internal.sources as o on o.id = c.source_id join headrace_internal.streams as s on s.id = o.stream_id
    order by o.name
$$;

-- Whether another process holds the capture lease of a source with the same shared slot. One process reads a slot, so
-- it holds the leases of all its sources. The slot's name stays locked until the end of the transaction: by those that
-- take a lease against all others, by those that renew one against takers. Null if a taker can't lock it now.
create or replace function headrace_internal.shared_slot_taken(p_source int, p_holder uuid, p_taking boolean, p_now timestamptz) returns boolean
language plpgsql as $$
declare
    v_slot  text := (select settings ->> 'shared_slot' from headrace_internal.sources where id = p_source);
begin
    if v_slot is null then
        return false;
    end if;
    if p_taking and not pg_try_advisory_xact_lock(1212498513, hashtext(v_slot)) then
        return null;
    elsif not p_taking then
        perform pg_advisory_xact_lock_shared(1212498513, hashtext(v_slot));
    end if;
    return exists (select from headrace_internal.captures as c join headrace_internal.sources as o on o.id = c.source_id
                   where c.source_id <> p_source and o.settings ->> 'shared_slot' = v_slot and c.holder <> p_holder and c.held_until > p_now);
end $$;

-- Return the id of a shared slot. It gets one if it has none.
-- Granted: all
create or replace function headrace_internal.shared_slot_id(p_slot text) returns uuid
language plpgsql as $$
begin
    insert into headrace_internal.shared_slots (name) values (p_slot) on conflict do nothing;
    return (select uid from headrace_internal.shared_slots where name = p_slot);
end $$;

-- Return the sources of a shared slot that have a position, and the positions.
-- Granted: all
create or replace function headrace_internal.shared_slot_positions(p_slot text) returns table (name text, "position" pg_lsn)
language sql as $$
    select o.name, p.position
    from headrace_internal.sources as o
    join lateral (select p.position from headrace_internal.capture_positions as p where p.source_id = o.id order by p.id desc limit 1) as p on true
    where o.kind = 'postgres' and o.settings ->> 'shared_slot' = p_slot
$$;

-- Take the capture lease. Returns its epoch, or null if another process holds it or that of a source with the same
-- shared slot, or is appending at the moment, or if the capture is paused or gone.
-- Granted: all
create or replace function headrace_internal.take_capture(
    p_source int, p_holder uuid, p_duration interval, p_now timestamptz default clock_timestamp()
) returns bigint
language plpgsql as $$
declare
    v_epoch  bigint;
begin
    perform from headrace_internal.captures where source_id = p_source and paused_at is null and (held_until is null or held_until <= p_now)
        for update skip locked;
    if not found or headrace_internal.shared_slot_taken(p_source, p_holder, true, p_now) is not false then
        return null;
    end if;
    update headrace_internal.captures set holder = p_holder, held_until = p_now + p_duration, epoch = epoch + 1
        where source_id = p_source returning epoch into v_epoch;
    return v_epoch;
end $$;

-- Extend the capture lease. Returns whether it is still held under this epoch.
-- Granted: all
create or replace function headrace_internal.renew_capture(
    p_source int, p_epoch bigint, p_duration interval, p_now timestamptz default clock_timestamp()
) returns boolean
language plpgsql as $$
declare
    v_holder  uuid;
begin
    update headrace_internal.captures set held_until = p_now + p_duration where source_id = p_source and epoch = p_epoch and paused_at is null
        returning holder into v_holder;
    if not found then
        return false;
    end if;
    if headrace_internal.shared_slot_taken(p_source, v_holder, false, p_now) then       -- while this lease had expired
        update headrace_internal.captures set held_until = null, holder = null where source_id = p_source;
        return false;
    end if;
    delete from headrace_internal.capture_positions where source_id = p_source
        and id < (select max(id) from headrace_internal.capture_positions where source_id = p_source);
    return true;
end $$;

-- Continue the capture lease under another epoch, which is returned. Null if the lease is over. An append that lost
-- its connection may still be running here. This waits for it, and any later one is refused, so the position that is
-- read next is the last one.
-- Granted: all
create or replace function headrace_internal.reopen_capture(p_source int, p_epoch bigint) returns bigint
language plpgsql as $$
declare
    v_epoch  bigint;
begin
    perform from headrace_internal.captures where source_id = p_source and epoch = p_epoch and paused_at is null for update;
    if not found then
        return null;
    end if;
    update headrace_internal.captures set epoch = epoch + 1 where source_id = p_source returning epoch into v_epoch;
    return v_epoch;
end $$;

-- Granted: all
create or replace function headrace_internal.release_capture(p_source int, p_epoch bigint) returns void
language sql as $$
    update headrace_internal.captures set held_until = null, holder = null where source_id = p_source and epoch = p_epoch
$$;

-- Report the state of a capture. `since` is kept while the state and its reason stay the same.
-- Granted: all
create or replace function headrace_internal.report_capture(
    p_source int, p_epoch bigint, p_state text, p_reason text, p_remedy text, p_report json, p_now timestamptz default clock_timestamp()
) returns boolean
language plpgsql as $$
begin
    update headrace_internal.captures
        set since = case when (state, coalesce(reason, '')) = (p_state, coalesce(p_reason, '')) then since else p_now end,
            state = p_state, reason = p_reason, mend = p_remedy, facts = coalesce(p_report, facts), told_at = p_now
        where source_id = p_source and epoch = p_epoch;
    return found;
end $$;

-- Stop a capture until it is resumed, since every process that takes it over would be held up. It counts as paused for
-- `sources_to_capture` and `take_capture`, and has the state `halted`, which is shown as `stopped`. Returns whether the lease
-- was still held under this epoch.
-- Granted: all
create or replace function headrace_internal.stop_capture(
    p_source int, p_epoch bigint, p_reason text, p_remedy text, p_now timestamptz default clock_timestamp()
) returns boolean
language plpgsql as $$
begin
    perform from headrace_internal.captures where source_id = p_source and epoch = p_epoch and paused_at is null
        for update;                 -- waits for an append in progress
    update headrace_internal.captures
        set state = 'halted', reason = p_reason, mend = p_remedy, since = p_now, told_at = p_now, paused_at = p_now,
            held_until = null, holder = null
        where source_id = p_source and epoch = p_epoch and paused_at is null;
    return found;
end $$;

-- Return the position to continue from. No row before the first position.
-- Granted: all
create or replace function headrace_internal.capture_position(p_source int)
returns table ("position" pg_lsn, captured bigint, system_id text, timeline int)
language sql as $$
    select p.position, p.captured, c.system_id, c.timeline
    from headrace_internal.captures as c
    join lateral (select * from headrace_internal.capture_positions as p where p.source_id = c.source_id order by p.id desc limit 1) as p on true
    where c.source_id = p_source
$$;

-- Begin a capture at a position of a server, for the first time or again.
-- Granted: all
create or replace function headrace_internal.begin_capture(
    p_source int, p_epoch bigint, p_position pg_lsn, p_system_id text, p_timeline int
) returns void
language plpgsql as $$
begin
    update headrace_internal.captures set system_id = p_system_id, timeline = p_timeline where source_id = p_source and epoch = p_epoch;
    perform headrace_internal.require_capture_lease(p_source, p_epoch);
    insert into headrace_internal.capture_positions (source_id, epoch, position, captured)
        values (p_source, p_epoch, p_position,
                coalesce((select captured from headrace_internal.capture_positions where source_id = p_source order by id desc limit 1), 0));
end $$;

-- Raise unless the capture is held under this epoch, and prevent a takeover until the end of the transaction.
create or replace function headrace_internal.require_capture_lease(p_source int, p_epoch bigint) returns void
language plpgsql as $$
begin
    perform from headrace_internal.captures where source_id = p_source and epoch = p_epoch and paused_at is null for key share;
    if not found then
        raise exception using errcode = 'HR007', message =
            'The source is captured by another process now, or is paused or removed: nothing was appended.';
    end if;
end $$;

-- Append messages under an epoch. p_progress: {"position", "captured", "chunks", "failures", "retried", "after"}, each
-- optional. With a position, the append contains all messages that were committed up to there.
-- `chunks`: the chunks of backfills among the messages: [{"id", "place", "read", "published", "done"}].
-- `failures`: [{"key", "data", "error", "overtaken"}], data as text. `retried`: ids of failures that have been resolved.
-- `after`: the position of the append before. The epoch is not enough of a fence. A database that was restored to
-- an earlier time has an earlier position under the same epoch, and the captured server has already discarded the
-- changes in between.
-- Granted: all
create or replace function headrace_internal.append_captured(
    p_source int, p_epoch bigint, p_stream text, p_keys text[], p_data json[], p_progress json default null
) returns void
language plpgsql as $$
declare
    v_after    constant pg_lsn := p_progress ->> 'after';
    v_last     pg_lsn;
    v_id       bigint;
    v_largest  bigint;
begin
    perform headrace_internal.require_capture_lease(p_source, p_epoch);
    if v_after is not null then
        select position into v_last from headrace_internal.capture_positions where source_id = p_source order by id desc limit 1;
        if v_last is distinct from v_after then
            raise exception using errcode = 'HR007', message = format(
                'This process has captured the source up to %s, and the database has it up to %s, perhaps because it was put back to an earlier time: nothing was appended.',
                v_after, coalesce(v_last::text, 'nowhere'));
        end if;
    end if;
    if cardinality(p_keys) > 0 then
        perform headrace_internal.publish_messages(p_stream, p_keys, p_data);
    end if;
    if p_progress ->> 'chunks' is not null then
        perform headrace_internal.advance_backfills(p_source, p_progress -> 'chunks');
    end if;
    if p_progress ->> 'failures' is not null then
        -- A failure that was overtaken happened before the messages of this append were published.
        insert into headrace_internal.capture_failures (source_id, key, data, error, failed_at)
            select p_source, f.value ->> 'key', (f.value ->> 'data')::json, f.value ->> 'error',
                   case when (f.value ->> 'overtaken')::boolean then now() else clock_timestamp() end
            from json_array_elements(p_progress -> 'failures') with ordinality as f order by f.ordinality;
    end if;
    if p_progress ->> 'retried' is not null then
        delete from headrace_internal.capture_failures
            where source_id = p_source and id in (select value::bigint from json_array_elements_text(p_progress -> 'retried'));
    end if;
    if p_progress ->> 'position' is not null then
        insert into headrace_internal.capture_positions (source_id, epoch, position, captured)
            values (p_source, p_epoch, (p_progress ->> 'position')::pg_lsn, coalesce((p_progress ->> 'captured')::bigint, 0))
            returning id into v_id;
        select max(id) into v_largest from headrace_internal.capture_positions where source_id = p_source;
        if v_id < v_largest then    -- otherwise this position would not be the newest
            perform headrace_internal.raise_sequence_behind(pg_get_serial_sequence('headrace_internal.capture_positions', 'id'), v_id, v_largest);
        end if;
    end if;
end $$;

-- Pause a capture, so that no process captures it from now on, or resume it. Returns whether there is such a capture.
-- Granted: all
create or replace function headrace_internal.pause_capture(p_source uuid, p_paused boolean, p_now timestamptz default clock_timestamp()) returns boolean
language plpgsql as $$
declare
    v_id  int;
begin
    select c.source_id into v_id from headrace_internal.captures as c join headrace_internal.sources as o on o.id = c.source_id where o.uid = p_source
        for update of c;            -- waits for an append in progress
    update headrace_internal.captures
        set paused_at = case when p_paused then coalesce(paused_at, p_now) end, held_until = null, holder = null,
            reason = case when state <> 'halted' then reason end, mend = case when state <> 'halted' then mend end,
            state = case when state = 'halted' then 'new' else state end    -- only a resumed one is halted here
        where source_id = v_id and (paused_at is not null) <> p_paused;
    return v_id is not null;
end $$;

-- End the current capture lease. No more messages are appended under settings that have changed, and the next process
-- that captures the source uses the new ones.
-- Granted: all
create or replace function headrace_internal.interrupt_capture(p_source uuid) returns void
language plpgsql as $$
declare
    v_id  int;
begin
    select c.source_id into v_id from headrace_internal.captures as c join headrace_internal.sources as o on o.id = c.source_id where o.uid = p_source
        for update of c;            -- waits for an append in progress
    update headrace_internal.captures set epoch = epoch + 1, holder = null, held_until = null where source_id = v_id;
end $$;

-- Forget the position of a capture. The next process that captures the source begins at the source's end, so what was
-- committed meanwhile is missing. Its backfills end, since they miss the same changes, and so does a pause. Returns
-- whether there is such a capture.
-- Granted: all
create or replace function headrace_internal.reset_capture(p_source uuid, p_now timestamptz default clock_timestamp()) returns boolean
language plpgsql as $$
declare
    v_id  int;
begin
    select c.source_id into v_id from headrace_internal.captures as c join headrace_internal.sources as o on o.id = c.source_id where o.uid = p_source
        for update of c;            -- waits for an append in progress, and the next one is refused because of the new
                                    -- epoch
    update headrace_internal.captures
        set epoch = epoch + 1, holder = null, held_until = null, paused_at = null, system_id = null, timeline = null,
            state = 'new', reason = null, mend = null, since = p_now, facts = null, told_at = null
        where source_id = v_id;
    delete from headrace_internal.capture_positions where source_id = v_id;
    delete from headrace_internal.captured_tables where source_id = v_id;
    update headrace_internal.backfills set state = 'cancelled', reason = 'The capture began anew.', finished_at = p_now
        where source_id = v_id and state in ('queued', 'running');
    return v_id is not null;
end $$;

-- Return the state of a capture.
-- Granted: all
create or replace function headrace_internal.capture_info(p_source int, p_now timestamptz default clock_timestamp()) returns json
language sql set timezone = 'UTC' as $$
    select json_build_object(
        'state', case when c.paused_at is not null then case when c.state = 'halted' then 'stopped' else 'paused' end
                      when c.held_until is null or c.held_until <= p_now then 'unattended' else c.state end,
        'reason', c.reason, 'mend', c.mend,
        'since', case when c.paused_at is not null then c.paused_at
                      when c.held_until is null or c.held_until <= p_now then greatest(c.since, coalesce(c.held_until, c.told_at))
                      else c.since end,
        'paused_at', c.paused_at,
        'holder', case when c.held_until > p_now then c.holder end,
        'position', p.position, 'captured', coalesce(p.captured, 0), 'system_id', c.system_id, 'timeline', c.timeline,
        'failures', (select count(*) from (select from headrace_internal.capture_failures as f where f.source_id = c.source_id limit 10000) as f),
        'facts', c.facts, 'told_at', c.told_at,
        'shared_slot_id', (select s.uid from headrace_internal.shared_slots as s join headrace_internal.sources as o on o.settings ->> 'shared_slot' = s.name
                           where o.id = c.source_id))
    from headrace_internal.captures as c
    left join lateral (select * from headrace_internal.capture_positions as p where p.source_id = c.source_id order by p.id desc limit 1) as p on true
    where c.source_id = p_source
$$;

-- Return the changes that could not be made into messages, the oldest first.
-- Granted: all
create or replace function headrace_internal.capture_failure_page(
    p_source uuid, p_above bigint default 0, p_limit int default 100, p_below bigint default null, p_bytes bigint default null
)
returns table (id bigint, key text, data json, error text, failed_at timestamptz, attempts int, retry boolean)
language plpgsql as $$
declare
    v_bytes  bigint := 0;
begin
    for id, key, data, error, failed_at, attempts, retry in execute format($sql$
        select f.id, f.key, f.data, f.error, f.failed_at, f.attempts, f.retry
        from headrace_internal.capture_failures as f
        where f.source_id = (select o.id from headrace_internal.sources as o where o.uid = $1) and f.id > $2 and f.id < $3
        order by f.id %s limit $4
        $sql$, case when p_below is null then '' else 'desc' end)
        using p_source, p_above, coalesce(p_below, 9223372036854775807), p_limit
    loop
        return next;
        v_bytes := v_bytes + octet_length(data::text) + octet_length(error) + coalesce(octet_length(key), 0);
        exit when v_bytes >= p_bytes;
    end loop;
end $$;

-- Mark failures for a retry by the process that captures: these ids, or all of the source. Returns the number marked.
-- Granted: all
create or replace function headrace_internal.retry_capture_failures(p_source uuid, p_ids bigint[] default null) returns bigint
language plpgsql as $$
declare
    v_count  bigint;
begin
    update headrace_internal.capture_failures as f set retry = true from headrace_internal.sources as o
        where o.id = f.source_id and o.uid = p_source and not f.retry and (p_ids is null or f.id = any (p_ids));
    get diagnostics v_count = row_count;
    return v_count;
end $$;

-- Granted: all
create or replace function headrace_internal.drop_capture_failures(p_source uuid, p_ids bigint[] default null) returns bigint
language plpgsql as $$
declare
    v_count  bigint;
begin
    delete from headrace_internal.capture_failures as f using headrace_internal.sources as o
        where o.id = f.source_id and o.uid = p_source and (p_ids is null or f.id = any (p_ids));
    get diagnostics v_count = row_count;
    return v_count;
end $$;

-- Return the failures that are to be retried now.
-- Granted: all
create or replace function headrace_internal.capture_failures_to_retry(p_source int, p_limit int default 100)
returns table (id bigint, key text, data json, failed_at timestamptz)
language sql as $$
    select f.id, f.key, f.data, f.failed_at from headrace_internal.capture_failures as f where f.source_id = p_source and f.retry order by f.id limit p_limit
$$;

-- Record that these failures failed again.
-- Granted: all
create or replace function headrace_internal.record_repeated_failures(p_source int, p_ids bigint[], p_errors text[]) returns void
language sql as $$
    update headrace_internal.capture_failures as f set retry = false, error = g.error, attempts = f.attempts + 1
    from unnest(p_ids, p_errors) as g(id, error) where f.source_id = p_source and f.id = g.id
$$;

-- Return the rows that a stream with one_message_per_key has now for these keys.
-- Granted: admin
create or replace function headrace_internal.rows_of_keys(p_stream text, p_keys text[]) returns table (key text, data json)
language plpgsql as $$
begin
    return query execute format('select key, data from %s where key = any ($1)', (headrace_internal.require_stream(p_stream)).relation)
        using p_keys;
end $$;

-- Return those of these keys that were published after a time.
-- Granted: admin
create or replace function headrace_internal.keys_published_since(p_stream text, p_keys text[], p_since timestamptz[]) returns setof text
language plpgsql as $$
begin
    return query execute format(
        'select g.key from unnest($1, $2) as g(key, since) where exists (select from %s as m where m.key = g.key and m.created_at > g.since)',
        (headrace_internal.require_stream(p_stream)).relation) using p_keys, p_since;
end $$;

-- After a table was truncated, publish a tombstone for each of its rows that the stream has. Returns the number of
-- rows.
-- Granted: all
create or replace function headrace_internal.publish_truncation(
    p_source int, p_epoch bigint, p_stream text, p_schema text, p_relation text, p_metadata json
) returns bigint
language plpgsql as $$
declare
    v_stream  headrace_internal.streams := headrace_internal.require_stream(p_stream);
    v_keys    text[];
begin
    perform headrace_internal.require_capture_lease(p_source, p_epoch);
    execute format($f$
        select coalesce(array_agg(key order by seq), '{}') from %s
        where data #>> '{metadata,table_schema}' = $1 and data #>> '{metadata,table_name}' = $2 and json_typeof(data -> 'record') = 'object'
        $f$, v_stream.relation) into v_keys using p_schema, p_relation;
    if v_keys <> '{}' then
        perform headrace_internal.publish_messages(p_stream, v_keys, array_fill(json_build_object('record', null, 'metadata', p_metadata), array[cardinality(v_keys)]));
    end if;
    return cardinality(v_keys);
end $$;
