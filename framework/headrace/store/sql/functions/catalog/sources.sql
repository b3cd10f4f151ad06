-- Sources: feeds of streams other than publishers. Their settings are stored as given, and their kind defines the
-- meaning.

-- Create a source. Returns whether it is new. An existing one is not changed, whatever its kind. A name that looks like
-- an id is refused, because it could be the id of another source.
-- Granted: all
create or replace function headrace_internal.create_source(p_name text, p_kind text, p_stream text, p_settings json) returns boolean
language plpgsql as $$
declare
    v_id   int;
    v_now  timestamptz := clock_timestamp();
begin
    if p_name is null or p_name !~ '^[a-z0-9][a-z0-9_-]{0,47}$' then
        raise exception using errcode = 'HR004', message = format(
            'The source name %L can''t be used: take 1 to 48 lower-case letters, digits, "-" and "_", the first one a letter or digit.', p_name);
    elsif p_name ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then
        raise exception using errcode = 'HR004', message = format(
            'The source name %L can''t be used: it looks like an id. Take another name.', p_name);
    end if;
    perform pg_advisory_xact_lock(1212498508, 0);   -- the stream can't be deleted meanwhile
    perform headrace_internal.require_unplaced('source', p_name);
    insert into headrace_internal.sources (name, kind, stream_id, settings, created_at, updated_at)
        values (p_name, p_kind, (headrace_internal.require_stream(p_stream)).id, p_settings, v_now, v_now)
        on conflict (name) do nothing
        returning id into v_id;
    if v_id is not null and p_kind = 'postgres' then
        insert into headrace_internal.captures (source_id) values (v_id);
    end if;
    return v_id is not null;
end $$;

-- Find sources by id or name. Null returns all. An id comes before a name that looks like it.
-- Granted: all
create or replace function headrace_internal.source_info(p_id_or_name text default null)
returns table (id uuid, name text, kind text, stream text, stream_id uuid, settings json, created_at timestamptz, updated_at timestamptz, capture json)
language sql as $$
    select o.uid, o.name, o.kind, s.name, s.uid, o.settings, o.created_at, o.updated_at, headrace_internal.capture_info(o.id)
    from headrace_internal.sources as o join headrace_internal.streams as s on s.id = o.stream_id
    where p_id_or_name is null or o.name = p_id_or_name or o.uid::text = p_id_or_name
    order by o.uid::text <> p_id_or_name, o.name
$$;

-- Return all sources, and the first p_limit of the queued and running backfills.
-- Granted: all
create or replace function headrace_internal.sources_at_work(p_limit int) returns table (sources json, backfills json)
language sql set timezone = 'UTC' as $$
    select (select coalesce(json_agg(s), '[]') from headrace_internal.source_info() as s),
           (select coalesce(json_agg(b), '[]') from (
               select b.uid as id, o.name as source, b.kind, b.relation as "table", b.condition as "where", b.rate, b.state, b.reason, b.total,
                      b.read, b.published, b.created_at, b.started_at, b.updated_at, b.finished_at,
                      b.differences
               from headrace_internal.backfills as b join headrace_internal.sources as o on o.id = b.source_id
               where b.state in ('queued', 'running') order by b.id limit p_limit) as b)
$$;

-- Return sources by name: the first p_limit above p_after, or the last ones below p_before in descending order, until the
-- size of their settings and of what is known of their captures exceeds p_bytes.
-- Granted: all
create or replace function headrace_internal.source_page(p_after text, p_before text, p_limit int, p_bytes bigint)
returns table (id uuid, name text, kind text, stream text, stream_id uuid, settings json, created_at timestamptz, updated_at timestamptz, capture json)
language plpgsql as $$
declare
    v_bytes  bigint := 0;
begin
    for id, name, kind, stream, stream_id, settings, created_at, updated_at, capture in
        select o.uid, o.name, o.kind, s.name, s.uid, o.settings, o.created_at, o.updated_at, headrace_internal.capture_info(o.id)
        from headrace_internal.sources as o join headrace_internal.streams as s on s.id = o.stream_id
        where (p_after is null or o.name > p_after) and (p_before is null or o.name < p_before)
        order by case when p_before is null then o.name end, o.name desc limit p_limit
    loop
        return next;
        v_bytes := v_bytes + octet_length(settings::text) + coalesce(octet_length(capture::text), 0);
        exit when v_bytes >= p_bytes;
    end loop;
end $$;

-- Find webhook sources by name.
-- Granted: all
create or replace function headrace_internal.webhook_sources(p_names text[])
returns table (id uuid, name text, kind text, stream text, stream_id uuid, settings json, created_at timestamptz, updated_at timestamptz, capture json)
language sql as $$
    select o.uid, o.name, o.kind, s.name, s.uid, o.settings, o.created_at, o.updated_at, null::json
    from headrace_internal.sources as o join headrace_internal.streams as s on s.id = o.stream_id
    where o.kind = 'webhook' and o.name = any (p_names)
$$;

-- Lock a source until the end of the transaction, before its settings are read and changed. Two changes at the same time would lose
-- one of them. Returns whether the source exists.
-- Granted: all
create or replace function headrace_internal.lock_source(p_id uuid) returns boolean
language plpgsql as $$
begin
    perform from headrace_internal.sources where uid = p_id for update;
    return found;
end $$;

-- Granted: all
create or replace function headrace_internal.edit_source(p_id uuid, p_settings json) returns boolean
language plpgsql as $$
begin
    update headrace_internal.sources set settings = p_settings, updated_at = clock_timestamp() where uid = p_id;
    return found;
end $$;

-- Granted: all
create or replace function headrace_internal.delete_source(p_id uuid) returns boolean
language plpgsql as $$
begin
    delete from headrace_internal.sources where uid = p_id;
    return found;
end $$;
