-- live: the figures of all streams and consumers at one moment, for screens that are drawn again each second.
--
-- What changes all the time is read for all consumers in one statement without any plan per stream: the numbers that
-- the sequences have drawn, the newest version of each cursor, and the leases from its floor on. What takes a count is
-- read for some consumers and streams at a time, which the caller chooses.

-- Return parallel arrays. `streams`, `drawn`: the last number drawn in each stream. `consumers`, `of_streams`,
-- `positions`: the consumers, their streams and their cursors. `held`, `owners`, `lowest`: of those that hold leases (`leasing`), how many messages, by
-- how many owners, and a seq below which they hold none.
-- `with_holes`: the consumers that wait for late commits.
-- `paused`, `paused_until`: the consumers that are paused, and until when, null for no end. `full_streams`: those to which publishing is refused.
-- Granted: all
create or replace function headrace_internal.live_figures(
    out at timestamptz, out streams int[], out drawn bigint[], out consumers int[], out of_streams int[], out positions bigint[],
    out leasing int[], out held bigint[], out owners bigint[], out lowest bigint[], out paused int[], out paused_until timestamptz[],
    out full_streams int[], out with_holes int[]
)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
begin
    at := clock_timestamp();
    select array_agg(s.id), array_agg(coalesce(pg_sequence_last_value(s.sequence::regclass), 0)),
           array_agg(s.id) filter (where s.full_until > at)
        into streams, drawn, full_streams from headrace_internal.streams as s;
    select array_agg(c.id), array_agg(nullif(c.paused_until, 'infinity'))
        into paused, paused_until from headrace_internal.consumers as c where c.paused_until > at;
    with placed as materialized (
        select c.id, c.stream_id, u.position, u.lease_floor, u.holed
        from headrace_internal.consumers as c
        cross join lateral (
            -- The size tells whether there are holes without reading those that are stored apart.
            select u.position, u.lease_floor, u.frozen <> '{}' or pg_column_size(u.holes) > pg_column_size('{}'::int8multirange) as holed
            from headrace_internal.cursors as u where u.consumer_id = c.id order by u.version desc limit 1) as u
    ), leases as (
        select p.id, l.held, l.owners, l.lowest
        from placed as p
        cross join lateral (
            select sum(l.held) as held, count(distinct l.owner) as owners, min(l.lowest) as lowest
            from headrace_internal.leases as l where l.consumer_id = p.id and l.lease_id >= p.lease_floor) as l
        where l.held > 0
    )
    select (select array_agg(p.id) from placed as p), (select array_agg(p.stream_id) from placed as p),
           (select array_agg(p.position) from placed as p),
           (select array_agg(p.id) filter (where p.holed) from placed as p),
           array_agg(l.id), array_agg(l.held), array_agg(l.owners), array_agg(l.lowest)
        into consumers, of_streams, positions, with_holes, leasing, held, owners, lowest from leases as l;
end $$;

-- Return what takes a count, for some consumers, see headrace_internal.count_messages.
-- Granted: all
create or replace function headrace_internal.live_counts(p_consumers int[], p_most int default 100000)
returns table (consumer int, parked bigint, blocked bigint, replaying bigint, dead_letters bigint, missed bigint, lowest bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
begin
    return query select k.consumer, k.parked, k.blocked, k.replaying, k.dead_letters, k.missed, (select min(s) from unnest(k.lowest) as s)
        from headrace_internal.count_messages(p_consumers, p_most) as k;
end $$;

-- Return the size and the number of messages of some streams, and the seq of the last message. Few at a time: it plans
-- queries for each.
-- Granted: all
create or replace function headrace_internal.live_sizes(p_streams int[])
returns table (stream int, messages bigint, size bigint, last_seq bigint, scheduled bigint)
language sql as $$
    select s.id, i.messages, i.size, coalesce(i.last_seq, 0), i.scheduled
    from headrace_internal.streams as s cross join lateral headrace_internal.stream_info(s.name) as i where s.id = any (p_streams)
$$;

-- Return when the first message at or above a seq was published, for pairs of a stream and a seq, and the seq of the
-- last message of each stream. Few at a time, as above.
-- Granted: all
create or replace function headrace_internal.live_times(p_streams int[], p_seqs bigint[])
returns table (stream int, seq bigint, published_at timestamptz, last_seq bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream  headrace_internal.streams;
    v_wanted  record;
begin
    for v_wanted in select * from unnest(p_streams, p_seqs) as w (stream, seq) loop
        select * into v_stream from headrace_internal.streams as s where s.id = v_wanted.stream;
        continue when not found;
        stream := v_wanted.stream;
        seq := v_wanted.seq;
        last_seq := coalesce(headrace_internal.last_message_seq(v_stream), 0);
        published_at := null;
        if seq <= last_seq then
            execute format('select created_at from %s where seq >= $1 order by seq limit 1',
                           headrace_internal.table_of_range(v_stream, v_wanted.seq, last_seq)) into published_at using v_wanted.seq;
        end if;
        return next;
    end loop;
end $$;

-- Return all streams and consumers, as far as they change seldom.
-- Granted: all
create or replace function headrace_internal.live_catalog()
returns table (streams json, consumers json)
language sql set timezone = 'UTC' as $$
    select (select coalesce(json_agg(json_build_object('number', s.id, 'id', s.uid, 'name', s.name,
                                                       'retention', s.retention, 'retain_up_to', extract(epoch from s.retain_up_to)::float8,
                                                       'max_storage', s.max_storage, 'one_message_per_key', s.one_message_per_key)
                                     order by s.name), '[]') from headrace_internal.streams as s),
           (select coalesce(json_agg(json_build_object('number', c.id, 'id', c.uid, 'stream', c.stream_id, 'name', c.name, 'push', c.push is not null,
                                                       'filtered', c.condition <> 'true')
                                     order by c.stream_id, c.name), '[]')
            from headrace_internal.consumers as c)
$$;
