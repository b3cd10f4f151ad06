-- scheduled: list the messages that a stream publishes later, and cancel them before that.

-- Return scheduled messages of a stream in the order of their times, and at the same time in the order of their
-- scheduling: the first p_limit after the place (p_at, p_id), or the last ones before it in descending order, until the
-- size of their data and headers reaches p_bytes.
-- Granted: consume
create or replace function headrace_internal.scheduled_page(
    p_stream text, p_limit int, p_bytes bigint, p_at timestamptz default null, p_id bigint default 0, p_backwards boolean default false
) returns table (id bigint, deliver_at timestamptz, key text, data json, headers json, unique_key text)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream  int := (headrace_internal.require_stream(p_stream)).id;
    v_bytes   bigint := 0;
begin
    for id, deliver_at, key, data, headers, unique_key in execute format(
        'select id, deliver_at, key, data, headers, unique_key from headrace_internal.scheduled
         where stream_id = $1 and (deliver_at, id) %s ($2, $3) order by deliver_at %s, id %2$s limit $4',
        case when p_backwards then '<' else '>' end, case when p_backwards then 'desc' else 'asc' end
    ) using v_stream, coalesce(p_at, '-infinity'), p_id, p_limit loop
        return next;
        v_bytes := v_bytes + octet_length(data::text) + coalesce(octet_length(headers::text), 0);
        exit when v_bytes >= p_bytes;
    end loop;
end $$;

-- Cancel the scheduled messages of a stream with these ids, or those that are due first if there are none, at most
-- p_limit. Returns how many. Their unique keys are free, since the rows of these are no longer of a scheduled message.
-- Granted: admin
create or replace function headrace_internal.unschedule(p_stream text, p_ids bigint[] default null, p_limit int default 10000) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream  int := (headrace_internal.require_stream(p_stream)).id;
    v_count   bigint;
begin
    perform headrace_internal.require_read_committed('headrace_internal.unschedule');     -- it reads after it has the lock
    -- The lock of headrace_internal.publish_scheduled, which deletes the same rows in another order.
    perform pg_advisory_xact_lock(1212498511, v_stream);
    -- There is no index of the ids, since cancelling is rare.
    delete from headrace_internal.scheduled where stream_id = v_stream and (deliver_at, id) in (
        select deliver_at, id from headrace_internal.scheduled
        where stream_id = v_stream and (p_ids is null or id = any (p_ids)) order by deliver_at, id limit p_limit);
    get diagnostics v_count = row_count;
    return v_count;
end $$;
