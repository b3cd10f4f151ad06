-- waiting: what the messages have in common that wait for a consumer, from which flow/diagnosis.py says why it is behind.

-- Return a sample of what waits, for some consumers. At most p_most messages are examined of each kind: in flight, parked,
-- behind a parked one, and above the position. There the filters of keys count, and conditions don't, since one may be
-- slow. `key`: the key of most of them, null if the order of keys doesn't matter. `retries`: how many of the parked messages have failed. The error is that of the one that failed last. `publish_rate`,
-- `finish_rate`: from the last sample of the charts.
-- Granted: consume
create or replace function headrace_internal.waiting_samples(p_consumers int[], p_most int default 1000, p_now timestamptz default clock_timestamp())
returns table (consumer int, at timestamptz, examined bigint, key text, of_key bigint, retries bigint, error text, error_type text, failed_at timestamptz,
               failed_by text, holes bigint, publish_rate float8, finish_rate float8)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_consumer  headrace_internal.consumers;
    v_stream    headrace_internal.streams;
    v_cursor    headrace_internal.cursors;
    v_failed    record;
    v_one       bigint;
begin
    for v_consumer in select * from headrace_internal.consumers as c where c.id = any (p_consumers) loop
        select * into v_stream from headrace_internal.streams as s where s.id = v_consumer.stream_id;
        v_cursor := headrace_internal.newest_cursor(v_consumer.id);
        continue when v_cursor.consumer_id is null;     -- it was deleted
        consumer := v_consumer.id;
        at := p_now;
        holes := (select count(*) from headrace_internal.cursor_holes(v_cursor) as h(holes) cross join unnest(h.holes));
        select count(*) as messages, (array_agg(p.failure order by (p.failure).at desc))[1] as last into v_failed
            from (select failure from headrace_internal.parked where consumer_id = v_consumer.id and seq >= v_cursor.parked_floor
                  order by seq limit p_most) as p
            where (p.failure).at is not null;
        retries := v_failed.messages;
        error := (v_failed.last).error;
        error_type := (v_failed.last).error_type;
        failed_at := (v_failed.last).at;
        failed_by := (v_failed.last).process;
        publish_rate := headrace_internal.sampled_rate(1, v_stream.id, p_now);
        finish_rate := headrace_internal.sampled_rate(2, v_consumer.id, p_now);
        examined := 0;
        key := null;
        of_key := 0;
        if v_consumer.ordered then
            execute format($sql$
                with waiting as materialized (
                    (select m.seq, m.hash
                     from headrace_internal.leases as l cross join headrace_internal.messages_of_lease(l) as m
                     where l.consumer_id = $1.consumer_id and l.lease_id >= $1.lease_floor and m.seq > 0 limit $2)
                    union all
                    (select seq, key_hash from headrace_internal.parked
                     where consumer_id = $1.consumer_id and seq >= $1.parked_floor order by seq limit $2)
                    union all
                    (select seq, key_hash from headrace_internal.tails where consumer_id = $1.consumer_id order by seq limit $2)
                    union all
                    (select seq, hashtextextended(key, 0) from (
                        select seq, key, (%s) as wanted from %s
                        where seq > $1.position and seq <= $1.position + 10 * $2 order by seq limit $2) as m where wanted)
                ), keys as (
                    select max(seq) as seq, count(*) as messages from waiting group by hash
                )
                select (select count(*) from waiting), seq, messages from keys order by messages desc limit 1
                $sql$, headrace_internal.condition(v_consumer.filters, null),
                headrace_internal.table_of_range(v_stream, v_cursor.position + 1, v_cursor.position + 10 * p_most))
                into examined, v_one, of_key using v_cursor, p_most;
            examined := coalesce(examined, 0);
            of_key := coalesce(of_key, 0);
            if v_one is not null then
                execute format('select key from %s where seq = $1', headrace_internal.table_of_range(v_stream, v_one, v_one)) into key using v_one;
            end if;
        end if;
        return next;
    end loop;
end $$;

-- Return the rate of the last sample of a stream (p_kind 1: published) or a consumer (2: finished). An object that did not
-- change has no sample. Null if none was taken lately.
create or replace function headrace_internal.sampled_rate(p_kind int, p_object int, p_now timestamptz) returns float8
language plpgsql as $$
begin
    return (
        select case when s.at is null then 0 else coalesce(s.published, s.finished)::float8 / s.step end
        from headrace_internal.samples as t
        left join headrace_internal.samples as s on s.kind = p_kind and s.object_id = p_object and s.at = t.at and s.step = t.step
        where t.kind = 0 and t.object_id = 0 and t.at > p_now - interval '40 seconds' and t.at <= p_now order by t.at desc limit 1);
end $$;

-- Return how many of the last messages of the stream were examined, at most p_most among ten times as many seqs, if a consumer with filters or a condition
-- wants none of them. 0 if it wants one.
-- Granted: consume
create or replace function headrace_internal.unmatched_messages(p_consumer int, p_most int default 10000) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_consumer  headrace_internal.consumers;
    v_stream    headrace_internal.streams;
    v_after     bigint;
    v_count     bigint;
begin
    select * into v_consumer from headrace_internal.consumers as c where c.id = p_consumer;
    if v_consumer.condition = 'true' then
        return 0;
    end if;
    select * into v_stream from headrace_internal.streams as s where s.id = v_consumer.stream_id;
    if not found then
        return 0;       -- it was deleted
    end if;
    v_after := coalesce(pg_sequence_last_value(v_stream.sequence::regclass), 0) - 10 * p_most;
    execute format($sql$
        with last as (
            select (%s) as wanted from %s where seq > $1 order by seq desc limit $2
        )
        select case when not exists (select from last where wanted) then (select count(*) from last) else 0 end
        $sql$, v_consumer.condition, headrace_internal.table_of_range(v_stream, v_after, v_after + 10 * p_most))
        into v_count using v_after, p_most;
    return v_count;
end $$;
