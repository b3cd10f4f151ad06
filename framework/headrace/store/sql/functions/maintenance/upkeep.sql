-- Other maintenance: delete old message ids, remove tombstones, set hint bits, list tables to vacuum.

-- Delete message ids that are older than the stream's dedupe_window. p_floor: no id is older than that, and there may
-- be many dead rows below it. `reached`: all ids before that time are deleted. Null while there are more.
-- Granted: admin
create or replace function headrace_internal.delete_old_message_ids(
    p_stream int, p_floor timestamptz, p_now timestamptz default clock_timestamp(), out forgotten int, out reached timestamptz
)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    c_limit    constant int := 10000;
    v_stream  headrace_internal.streams;
begin
    v_stream := headrace_internal.lock_stream_for_maintenance(p_stream);
    delete from headrace_internal.message_ids where ctid = any (array(
        select ctid from headrace_internal.message_ids
        where stream_id = v_stream.id and published_at >= p_floor and published_at < p_now - v_stream.dedupe_window
        order by published_at limit c_limit for update skip locked))
      and published_at < p_now - v_stream.dedupe_window;
    get diagnostics forgotten = row_count;
    reached := case when forgotten < c_limit then p_now - v_stream.dedupe_window end;
end $$;

-- Return all streams, with what retention needs for each. p_streams, p_floors: for these streams, no message id is
-- older than the floor.
-- Granted: all
create or replace function headrace_internal.streams_to_sweep(
    p_now timestamptz default clock_timestamp(), p_streams int[] default '{}', p_floors timestamptz[] default '{}'
) returns table (
    id int, name text, updated_at timestamptz, drawn bigint, compacted boolean, tombstones boolean, "full" boolean, sized boolean, aged boolean,
    limited boolean, has_old_ids boolean, altered boolean
)
language sql set enable_seqscan = off set enable_bitmapscan = off as $$
    select s.id, s.name, s.updated_at, headrace_internal.last_drawn_seq(s), s.one_message_per_key, s.tombstones, s.full_until is not null,
           s.max_storage is not null, s.retain_up_to is not null,
           s.max_storage is not null or s.retain_up_to is not null or s.retention = 'interest' or s.tombstones,
           coalesce((select min(published_at) from headrace_internal.message_ids as m
                     where m.stream_id = s.id and published_at >= coalesce(f.floor, '-infinity')) < p_now - s.dedupe_window, false),
           not headrace_internal.draws_one_by_one(s.sequence::regclass)
    from headrace_internal.streams as s left join unnest(p_streams, p_floors) as f(stream, floor) on f.stream = s.id
    order by s.id
$$;

-- Remove keys that have a null payload as their latest one, once every consumer is done with that message. p_after:
-- the seq up to which an earlier call has examined the stream. `reached`: the seq up to which it is examined now.
-- Granted: admin
create or replace function headrace_internal.remove_tombstones(p_stream int, p_after bigint default 0, out removed int, out reached bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    c_scan_limit    constant int := 10000;
    v_stream  headrace_internal.streams;
    v_end     bigint;
    v_floor   bigint;
    v_found   record;
begin
    removed := 0;
    reached := p_after;
    v_stream := headrace_internal.lock_stream_for_maintenance(p_stream);
    if v_stream.id is null or not (v_stream.one_message_per_key and v_stream.tombstones) then
        return;
    end if;
    v_floor := headrace_internal.first_unfinished_seq(p_stream);
    if v_floor is null then     -- no consumer reads the stream, but open transactions will commit below its end
        execute format('select coalesce(max(seq), 0) from %s', v_stream.relation) into v_end;
        v_floor := least(headrace_internal.lowest_open_seq(v_stream, v_end), v_end + 1);
    end if;
    if v_stream.retain_at_least is not null then
        v_floor := least(v_floor, headrace_internal.seq_at(v_stream.name, clock_timestamp() - v_stream.retain_at_least));
    end if;
    execute format('select count(*) as looked_at, max(seq) as last, array_agg(seq) filter (where json_typeof(data) = ''null'') as seqs
                    from (select seq, data from %s where seq > $1 and seq < $2 order by seq limit $3) as m', v_stream.relation)
        into v_found using p_after, v_floor, c_scan_limit;
    if v_found.seqs is not null then
        execute format('delete from %s where seq = any ($1)', v_stream.relation) using v_found.seqs;
        get diagnostics removed = row_count;
    end if;
    reached := greatest(case when v_found.looked_at = c_scan_limit then v_found.last else v_floor - 1 end, 0);
end $$;

-- Set the hint bits of new messages that no consumer has read. The first reader of a row notes in it that its transaction
-- has committed. If the page was last written before a checkpoint, and pages have checksums, Postgres logs the whole page
-- then, as much again as its messages took. Before that checkpoint it logs nothing, so a backlog is read while it is new.
-- p_after: the seq up to which an earlier call has read. Returns the seq up to which nothing is left to read now.
-- Granted: admin
create or replace function headrace_internal.set_hint_bits(p_stream int, p_after bigint) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    c_messages   constant int := 100000;
    c_consumers  constant int := 100;       -- as many are asked how far they have read
    v_stream     headrace_internal.streams;
    v_after      bigint;
    v_drawn      bigint;
    v_read       record;
begin
    select * into v_stream from headrace_internal.streams where id = p_stream;
    v_drawn := headrace_internal.last_drawn_seq(v_stream);
    if not (current_setting('data_checksums')::bool or current_setting('wal_log_hints')::bool) then
        return v_drawn;
    end if;
    select greatest(p_after, max(u.position)) into v_after
        from (select id from headrace_internal.consumers where stream_id = p_stream limit c_consumers) as c
        cross join lateral (
            select position from headrace_internal.cursors where consumer_id = c.id order by version desc limit 1) as u;
    if v_after >= v_drawn then
        return v_drawn;
    end if;
    execute format('select count(*) as count, max(seq) as last from (select seq from %s where seq > $1 and seq <= $2 order by seq limit $3) as m',
                   headrace_internal.table_of_range(v_stream, v_after + 1, v_drawn))
        into v_read using v_after, v_drawn, c_messages;
    return case when v_read.count < c_messages then v_drawn else v_read.last end;
end $$;

-- Return tables with constantly rewritten rows that have more dead rows than live ones. They are vacuumed without
-- waiting for autovacuum, which may come only once a minute.
-- Granted: all
create or replace function headrace_internal.tables_to_vacuum() returns table (relation text, dead bigint)
language sql as $$
    select pg_stat_clear_snapshot();
    select r.relation, pg_stat_get_dead_tuples(r.relation::regclass)
    from (select s.relation from headrace_internal.streams as s where one_message_per_key
          union all values ('headrace_internal.scheduled'), ('headrace_internal.message_ids'), ('headrace_internal.unique_keys')) as r(relation)
    where pg_stat_get_dead_tuples(r.relation::regclass) > greatest(10000, pg_stat_get_live_tuples(r.relation::regclass))
$$;
