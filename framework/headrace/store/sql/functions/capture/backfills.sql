-- backfills: publish the existing rows of tables while their changes are captured.

-- Create a backfill, or a comparison of a table with its stream. Returns null if the same is queued already, or if it is
-- a backfill of a table whose backfill is running.
-- Granted: all
create or replace function headrace_internal.request_backfill(p_source uuid, p_relation text, p_kind text, p_condition json, p_rate int) returns uuid
language plpgsql as $$
declare
    v_uid  uuid;
begin
    insert into headrace_internal.backfills (source_id, relation, kind, condition, rate)
        select c.source_id, p_relation, p_kind, p_condition, p_rate
        from headrace_internal.captures as c join headrace_internal.sources as o on o.id = c.source_id where o.uid = p_source
        on conflict do nothing
        returning uid into v_uid;
    return v_uid;
end $$;

-- Request that a whole table is read, or compared and repaired. Returns what will do it: a new run, or one that is queued and
-- concerns all rows. Null if another one is running: it may have passed what has changed.
-- Granted: all
create or replace function headrace_internal.request_resync(p_source uuid, p_relation text, p_kind text, p_rate int) returns uuid
language plpgsql as $$
begin
    return coalesce(
        headrace_internal.request_backfill(p_source, p_relation, p_kind, null, p_rate),
        (select b.uid from headrace_internal.backfills as b join headrace_internal.sources as o on o.id = b.source_id
         where o.uid = p_source and b.relation = p_relation and b.kind = p_kind and b.state = 'queued' and b.condition is null));
end $$;

-- Return the backfills and comparisons of a source, or of all sources, the newest first: the first p_limit that are older than a place of
-- this list, a time and an id, or the last ones that are newer than a place, the oldest first, until the size of their
-- conditions and reasons exceeds p_bytes.
-- Granted: all
create or replace function headrace_internal.list_backfills(
    p_source uuid default null, p_limit int default 100, p_after_time timestamptz default null, p_after uuid default null,
    p_before_time timestamptz default null, p_before uuid default null, p_bytes bigint default null
)
returns table (
    id uuid, source text, kind text, relation text, condition json, rate int, state text, reason text, total bigint, read bigint, published bigint,
    created_at timestamptz, started_at timestamptz, updated_at timestamptz, finished_at timestamptz, differences json
)
language plpgsql as $$
declare
    v_bytes  bigint := 0;
begin
    for id, source, kind, relation, condition, rate, state, reason, total, read, published, created_at, started_at, updated_at, finished_at,
        differences in
        select b.uid, o.name, b.kind, b.relation, b.condition, b.rate, b.state, b.reason, b.total, b.read, b.published, b.created_at, b.started_at,
               b.updated_at, b.finished_at, b.differences
        from headrace_internal.backfills as b join headrace_internal.sources as o on o.id = b.source_id
        where (p_source is null or o.uid = p_source)
        and (p_after is null or (b.created_at, b.uid) < (p_after_time, p_after))
        and (p_before is null or (b.created_at, b.uid) > (p_before_time, p_before))
        order by case when p_before is not null then b.created_at end, case when p_before is not null then b.uid end,
                 b.created_at desc, b.uid desc
        limit p_limit
    loop
        return next;
        v_bytes := v_bytes + coalesce(octet_length(condition::text), 0) + coalesce(octet_length(reason), 0);
        exit when v_bytes >= p_bytes;
    end loop;
end $$;

-- Return the backfill or comparison to work on: the one that is running, or else the oldest that is queued. `complete`:
-- all rows of the table were requested before, so its stream should have them.
-- Granted: all
create or replace function headrace_internal.backfill_to_do(p_source int)
returns table (
    id int, kind text, relation text, condition json, rate int, state text, place json, read bigint, total bigint, complete boolean
)
language sql as $$
    select b.id, b.kind, b.relation, b.condition, b.rate, b.state, b.place, b.read, b.total,
           exists (select from headrace_internal.backfills as d where d.source_id = b.source_id and d.relation = b.relation
                   and d.kind = 'backfill' and d.condition is null and d.state = 'done')
    from headrace_internal.backfills as b where b.source_id = p_source and b.state in ('queued', 'running') order by b.state = 'queued', b.id limit 1
$$;

-- Start a backfill, or continue it, with an estimate of the rows to read.
-- Granted: all
create or replace function headrace_internal.begin_backfill(p_source int, p_epoch bigint, p_id int, p_total bigint) returns boolean
language plpgsql as $$
begin
    perform headrace_internal.require_capture_lease(p_source, p_epoch);
    update headrace_internal.backfills
        set state = 'running', total = p_total, started_at = coalesce(started_at, clock_timestamp()), updated_at = clock_timestamp()
        where source_id = p_source and id = p_id and state in ('queued', 'running');
    return found;
end $$;

-- Return whether a backfill is still to be done.
-- Granted: all
create or replace function headrace_internal.is_backfill_unfinished(p_id int) returns boolean
language sql as $$
    select exists (select from headrace_internal.backfills where id = p_id and state in ('queued', 'running'))
$$;

-- Record the chunks of backfills that an append contained. If a backfill was cancelled meanwhile, only its counts and
-- its place change.
create or replace function headrace_internal.advance_backfills(p_source int, p_chunks json) returns void
language sql as $$
    update headrace_internal.backfills as b
        set place = coalesce(c.place, b.place), read = b.read + c.read, published = b.published + c.published,
            state = case when b.state = 'running' and c.done then 'done' else b.state end,
            finished_at = case when b.state = 'running' and c.done then clock_timestamp() else b.finished_at end,
            updated_at = clock_timestamp(),
            differences = case when c.differences is null then b.differences
                               else headrace_internal.add_differences(b.differences || c.differences) end
    from (
        select id, sum(read)::bigint as read, sum(published)::bigint as published, bool_or(done) as done,
               (array_agg(place order by n desc) filter (where place is not null))[1] as place,
               array_agg(differences order by n) filter (where differences is not null) as differences
        from (
            select (c.value ->> 'id')::int as id, (c.value ->> 'read')::bigint as read, (c.value ->> 'published')::bigint as published,
                   (c.value ->> 'done')::boolean as done, c.ordinality as n,
                   case when json_typeof(c.value -> 'place') <> 'null' then c.value -> 'place' end as place,
                   case when json_typeof(c.value -> 'differences') <> 'null' then c.value -> 'differences' end as differences
            from json_array_elements(p_chunks) with ordinality as c) as c
        group by id) as c
    where b.source_id = p_source and b.id = c.id
$$;

-- Mark a backfill as failed, for the process that captures the source. Raises if its capture lease is over, since
-- that process may use settings that have changed.
-- Granted: all
create or replace function headrace_internal.fail_backfill(p_source int, p_epoch bigint, p_id int, p_reason text) returns boolean
language plpgsql as $$
begin
    perform headrace_internal.require_capture_lease(p_source, p_epoch);
    update headrace_internal.backfills set state = 'failed', reason = p_reason, finished_at = clock_timestamp()
        where source_id = p_source and id = p_id and state in ('queued', 'running');
    return found;
end $$;

-- Cancel one backfill by its id, or all of a source that are queued or running. Returns the number cancelled.
-- Granted: all
create or replace function headrace_internal.cancel_backfills(p_source uuid, p_id uuid default null) returns bigint
language plpgsql as $$
declare
    v_count  bigint;
begin
    update headrace_internal.backfills as b set state = 'cancelled', finished_at = clock_timestamp()
        from headrace_internal.sources as o
        where o.id = b.source_id and o.uid = p_source and (p_id is null or b.uid = p_id) and b.state in ('queued', 'running');
    get diagnostics v_count = row_count;
    return v_count;
end $$;
