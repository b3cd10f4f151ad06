-- samples: figures of the past, for charts. See runtime/maintenance/sampler.py, which takes them.

-- Store samples of one moment. p_samples: [{"kind", "object_id", "published", …}], with the columns of the table.
-- Granted: all
create or replace function headrace_internal.record_samples(p_at timestamptz, p_step int, p_samples json) returns void
language plpgsql as $$
begin
    perform set_config('synchronous_commit', 'off', true);      -- a crash loses the last moment of a chart
    insert into headrace_internal.samples
        select s.kind, s.object_id, p_step, p_at, s.published, s.finished, s.lag, s.lag_seconds, s.in_flight, s.parked, s.blocked, s.dead_letters
        from json_populate_recordset(null::headrace_internal.samples, p_samples) as s
        on conflict do nothing;
end $$;

-- Merge the oldest samples of p_step that are older than p_keep into such of p_into seconds, at most p_limit in one call.
-- Returns how many samples were merged.
-- Granted: all
create or replace function headrace_internal.compact_samples(
    p_step int, p_into int, p_keep interval, p_limit int, p_now timestamptz default clock_timestamp()
) returns bigint
language plpgsql set enable_seqscan = off as $$
declare
    v_below   timestamptz := date_bin(make_interval(secs => p_into), p_now - p_keep, 'epoch');
    v_merged  bigint;
begin
    perform set_config('synchronous_commit', 'off', true);
    with gone as (
        delete from headrace_internal.samples as s using (
            select o.kind, o.object_id, o.at from headrace_internal.samples as o
            where o.step = p_step and o.at < v_below order by o.at limit p_limit) as old
        where s.kind = old.kind and s.object_id = old.object_id and s.at = old.at and s.step = p_step
        returning s.*
    ), merged as (
        insert into headrace_internal.samples as m
            select g.kind, g.object_id, p_into, date_bin(make_interval(secs => p_into), g.at, 'epoch') as bin, sum(g.published), sum(g.finished),
                   max(g.lag), max(g.lag_seconds), max(g.in_flight), max(g.parked), max(g.blocked), max(g.dead_letters)
            from gone as g group by g.kind, g.object_id, bin
            on conflict (kind, object_id, at, step) do update
                set published = coalesce(m.published, 0) + coalesce(excluded.published, 0),
                    finished = coalesce(m.finished, 0) + coalesce(excluded.finished, 0),
                    lag = greatest(m.lag, excluded.lag), lag_seconds = greatest(m.lag_seconds, excluded.lag_seconds),
                    in_flight = greatest(m.in_flight, excluded.in_flight), parked = greatest(m.parked, excluded.parked),
                    blocked = greatest(m.blocked, excluded.blocked), dead_letters = greatest(m.dead_letters, excluded.dead_letters)
    )
    select count(*) into v_merged from gone;
    return v_merged;
end $$;

-- Delete the samples of p_step that are older than p_keep, and all but the newest p_rows, at most p_limit in one call.
-- Returns how many were deleted.
-- Granted: all
create or replace function headrace_internal.delete_old_samples(
    p_step int, p_keep interval, p_rows bigint, p_limit int, p_now timestamptz default clock_timestamp()
) returns bigint
language plpgsql set enable_seqscan = off as $$
declare
    v_excess   bigint := (select count(*) - p_rows from headrace_internal.samples as s where s.step = p_step);
    v_deleted  bigint;
begin
    perform set_config('synchronous_commit', 'off', true);
    delete from headrace_internal.samples as s using (
        select o.kind, o.object_id, o.at from (
            select i.kind, i.object_id, i.at, row_number() over (order by i.at) as place
            from headrace_internal.samples as i where i.step = p_step order by i.at limit p_limit) as o
        where o.at < p_now - p_keep or o.place <= v_excess) as old
    where s.kind = old.kind and s.object_id = old.object_id and s.at = old.at and s.step = p_step;
    get diagnostics v_deleted = row_count;
    return v_deleted;
end $$;

-- Return samples of one object in bins of p_width from p_since to before p_until, the last sample before p_since in the
-- bin -1. `taken`: whether samples were taken at all in that time, so that an object without any did not change.
-- Granted: observe
create or replace function headrace_internal.sample_bins(p_kind int, p_object int, p_since timestamptz, p_until timestamptz, p_width interval)
returns table (bin int, taken boolean, published bigint, finished bigint, lag bigint, lag_seconds real, in_flight bigint, parked bigint,
               blocked bigint, dead_letters bigint)
language sql as $$
    with own as (
        select (extract(epoch from s.at - p_since) / extract(epoch from p_width)) as place, s.*
        from headrace_internal.samples as s
        where s.kind = p_kind and s.object_id = p_object and s.at >= p_since and s.at < p_until
    ), total as (
        select distinct floor(extract(epoch from s.at - p_since) / extract(epoch from p_width))::int as bin
        from headrace_internal.samples as s where s.kind = 0 and s.object_id = 0 and s.at >= p_since and s.at < p_until
    ), bins as (
        select floor(o.place)::int as bin, sum(o.published)::bigint as published, sum(o.finished)::bigint as finished, max(o.lag) as lag,
               max(o.lag_seconds) as lag_seconds, max(o.in_flight) as in_flight, max(o.parked) as parked, max(o.blocked) as blocked,
               max(o.dead_letters) as dead_letters
        from own as o group by 1
    )
    select coalesce(b.bin, t.bin), t.bin is not null, b.published, b.finished, b.lag, b.lag_seconds, b.in_flight, b.parked, b.blocked, b.dead_letters
    from bins as b full join total as t on t.bin = b.bin
    union all (
        select -1, true, null, null, s.lag, s.lag_seconds, s.in_flight, s.parked, s.blocked, s.dead_letters
        from headrace_internal.samples as s where s.kind = p_kind and s.object_id = p_object and s.at < p_since
        order by s.at desc limit 1)
    order by 1
$$;
