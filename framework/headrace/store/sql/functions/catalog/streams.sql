-- Streams: one table each, in the schema headrace_streams, with the name of the stream.

-- Whether a name is a UUID in any spelling that Postgres or Python reads. The HTTP API takes an id wherever it takes a
-- name. `headrace.model.keys` has the same rule.
create or replace function headrace_internal.looks_like_id(p_name text) returns boolean
language sql immutable as $$
    select regexp_replace(regexp_replace(lower(p_name), 'urn:|uuid:', '', 'g'), '[{}()_+\s-]', '', 'g') ~ '^[0-9a-f]{32}$'
$$;

-- Raise if a new name looks like an id. Existing ones stay.
create or replace function headrace_internal.refuse_id(p_kind text, p_name text) returns void
language plpgsql immutable as $$
begin
    if headrace_internal.looks_like_id(p_name) then
        raise exception using errcode = 'HR004', column = 'name', message = format(
            'The name of the %s %L can''t be used, because it looks like an id: choose another name.', p_kind, p_name);
    end if;
end $$;

-- Create a stream.
-- p_settings: any of the policy's columns of headrace_internal.streams, durations in seconds. An existing stream is not
-- changed.
-- `new`: whether the stream was created by this call.
create or replace function headrace_internal.declare_stream(p_name text, p_settings json, out stream_id int, out new boolean)
language plpgsql as $$
declare
    v_stream  headrace_internal.streams;
begin
    if p_name !~ '^[a-z0-9][a-z0-9_-]{0,47}$' then
        raise exception using errcode = 'HR004', column = 'name', message = format(
            'The stream name %L can''t be used: take 1 to 48 lower-case letters, digits, "-" and "_", the first one a letter or digit.', p_name);
    end if;
    perform pg_advisory_xact_lock(1212498508, 0);   -- one creation at a time, so that a second one finds the stream
                                                    -- of the first
    select * into v_stream from headrace_internal.streams where name = p_name;
    stream_id := v_stream.id;
    new := not found;
    if not new then
        return;
    end if;
    perform headrace_internal.refuse_id('stream', p_name);
    perform headrace_internal.require_unplaced('stream', p_name);

    insert into headrace_internal.streams (name, relation, sequence, one_message_per_key)
        values (p_name, format('headrace_streams.%I', p_name), format('headrace_streams.%I', p_name || '.seq'),
                coalesce((p_settings ->> 'one_message_per_key')::boolean, false))
        returning * into v_stream;
    stream_id := v_stream.id;
    perform headrace_internal.set_policy(v_stream.id, p_settings);
    update headrace_internal.streams set updated_at = created_at where id = v_stream.id returning * into v_stream;
    perform headrace_internal.create_message_table(v_stream);
    perform headrace_internal.create_appenders(v_stream);
end $$;

-- Create the table of a new stream. It belongs to the owner of the schema, also if a superuser or a member of that role
-- creates the stream.
create or replace function headrace_internal.create_message_table(p_stream headrace_internal.streams) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    -- Defaults are evaluated in the order of the columns, and the gap-aware cursor depends on that order: a
    -- transaction has its xid before it draws a seq. has_xid is there for its default, and is always null, which takes no
    -- room in a row. created_at comes after seq, so that the transaction that drew a later seq has a later time.
    -- A seq that was drawn before the xid must not be inserted. The identity refuses an INSERT that names a seq. With
    -- one_message_per_key the row's seq is updated, which an identity does not allow. There headrace_internal.upsert_messages does the
    -- writes.
    -- What a message must be: see checks.sql.
    if p_stream.one_message_per_key then
        execute format('create sequence %s', p_stream.sequence);
    end if;
    execute format($ddl$
        create table %1$s (
            has_xid     bool default case when pg_current_xact_id() is null then false end,
            seq         bigint %2$s constraint %3$I primary key,
            created_at  timestamptz not null default clock_timestamp(),
            key         text collate "C" not null,
            data        json not null,
            headers     json,
            constraint valid_message check (%5$s)
        ) %4$s
        $ddl$, p_stream.relation,
        case when p_stream.one_message_per_key then format('not null default nextval(%L)', p_stream.sequence)
             else format('generated always as identity (sequence name %s)', p_stream.sequence) end,
        p_stream.name || '.pkey',
        case when not p_stream.one_message_per_key then 'partition by range (seq)' else
            -- Every update leaves a dead row: vacuum early, by count, and never wait for the lock to truncate the
            -- file.
            'with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
                   autovacuum_analyze_scale_factor = 0.5, vacuum_truncate = off)' end,
        headrace_internal.check_of_messages());
    if p_stream.one_message_per_key then
        execute format('alter sequence %s owned by %s.seq', p_stream.sequence, p_stream.relation);
    end if;
    begin
        execute format('alter table %s alter column data set compression lz4', p_stream.relation);
    exception when feature_not_supported then
        -- This server was built without lz4. pglz costs two thirds of the throughput of 10 kB payloads.
        execute format('alter table %s alter column data set storage external', p_stream.relation);
    end;
    if p_stream.one_message_per_key then
        execute format('alter table %s add column digest bytea, add constraint %I unique (key)', p_stream.relation, p_stream.name || '.key');
    else
        perform headrace_internal.add_segments_ahead(p_stream.id, 1, case when p_stream.max_storage is null then 100000
            else least(100000, greatest(1000, p_stream.max_storage / 16 / 256)) end);
    end if;
end $$;

-- Raise unless the transaction is read committed. A function that reads several times, or after it got a lock, must
-- see the newest state at each read.
create or replace function headrace_internal.require_read_committed(p_function text) returns void
language plpgsql stable as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using errcode = 'HR003', message = format(
            '%s must run under read committed: each of its reads must see the newest state.', p_function);
    end if;
end $$;

create or replace function headrace_internal.require_stream(p_name text) returns headrace_internal.streams
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_stream  headrace_internal.streams;
begin
    select * into v_stream from headrace_internal.streams where name = p_name;
    if not found then
        raise exception using errcode = 'HR001', message = format('There is no stream %L: create it, or mend the name.', p_name);
    end if;
    return v_stream;
end $$;

-- Change a stream's policy. Settings that are not given stay.
create or replace function headrace_internal.edit_stream(p_name text, p_settings json) returns void
language plpgsql as $$
declare
    v_stream  headrace_internal.streams;
begin
    v_stream := headrace_internal.require_stream(p_name);
    if (p_settings ->> 'one_message_per_key')::boolean <> v_stream.one_message_per_key then
        raise exception using errcode = 'HR004', column = 'one_message_per_key', message = format(
            'one_message_per_key of the stream %L can''t be changed, its table is made for it: create another stream, and republish this one into it.', p_name);
    end if;
    perform headrace_internal.set_policy(v_stream.id, p_settings);
end $$;

create or replace function headrace_internal.set_policy(p_stream int, p_settings json) returns void
language plpgsql as $$
declare
    v_before  interval;
    v_after   interval;
begin
    select dedupe_window into v_before from headrace_internal.streams where id = p_stream for no key update;
    update headrace_internal.streams as s set
        retention       = case when p.has ? 'retention'       then p.j ->> 'retention' else s.retention end,
        retain_up_to    = case when p.has ? 'retain_up_to'    then make_interval(secs => (p.j ->> 'retain_up_to')::float8) else s.retain_up_to end,
        retain_at_least = case when p.has ? 'retain_at_least' then make_interval(secs => (p.j ->> 'retain_at_least')::float8) else s.retain_at_least end,
        max_storage     = case when p.has ? 'max_storage'     then (p.j ->> 'max_storage')::bigint else s.max_storage end,
        dedupe          = case when p.has ? 'dedupe'          then (p.j ->> 'dedupe')::boolean else s.dedupe end,
        tombstones      = case when p.has ? 'tombstones'      then (p.j ->> 'tombstones')::boolean else s.tombstones end,
        dedupe_window   = case when p.has ? 'dedupe_window'   then make_interval(secs => (p.j ->> 'dedupe_window')::float8) else s.dedupe_window end,
        index_keys      = case when p.has ? 'index_keys'      then (p.j ->> 'index_keys')::boolean else s.index_keys end,
        has_key_indexes = s.has_key_indexes or coalesce((p.j ->> 'index_keys')::boolean, false),
        full_until      = null,     -- the check of the stream's size sets it again
        updated_at      = clock_timestamp()
    from (select p_settings as j, p_settings::jsonb as has) as p
    where s.id = p_stream
    returning dedupe_window into v_after;
    -- Older ids are remembered long enough by now, whatever the window is.
    update headrace_internal.message_ids set published_at = published_at
            - headrace_internal.replayable_time(message_id, v_before) + headrace_internal.replayable_time(message_id, v_after)
        where v_before <> v_after and stream_id = p_stream and published_at > clock_timestamp() - interval '10 minutes'
          and headrace_internal.replayable_time(message_id, v_before) <> headrace_internal.replayable_time(message_id, v_after);
end $$;

create or replace function headrace_internal.stream_settings(s headrace_internal.streams) returns json
language sql stable as $$
    select json_build_object(
        'retention', s.retention, 'retain_up_to', extract(epoch from s.retain_up_to)::float8,
        'retain_at_least', extract(epoch from s.retain_at_least)::float8, 'max_storage', s.max_storage,
        'one_message_per_key', s.one_message_per_key, 'dedupe', s.dedupe, 'tombstones', s.tombstones,
        'dedupe_window', extract(epoch from s.dedupe_window)::float8, 'index_keys', s.index_keys)
$$;
