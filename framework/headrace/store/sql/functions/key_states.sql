-- Return the state of the latest message of a key in each consumer of a stream. No row if the stream has no message
-- of that key.
--
-- The tables of messages in flight, parked, blocked or to be replayed are read first, since the settings may have
-- changed after the message got there. A message that is in none of them is done if the position has passed it and it
-- is in no hole. That also holds for one that was dropped, or that was there before the consumer began.
create or replace function headrace_internal.key_states(p_stream text, p_key text)
returns table (seq bigint, consumer_id uuid, consumer text, state text, attempts int, until timestamptz, owner uuid)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream    headrace_internal.streams;
    v_consumer  headrace_internal.consumers;
    v_cursor    headrace_internal.cursors;
    v_wanted    boolean;
begin
    v_stream := headrace_internal.require_stream(p_stream);
    select l.seq into seq from headrace_internal.latest(p_stream, p_key) as l;
    if seq is null then
        return;
    end if;
    for v_consumer in select * from headrace_internal.consumers as c where c.stream_id = v_stream.id order by c.name loop
        select * into v_cursor from headrace_internal.cursors as c where c.consumer_id = v_consumer.id order by c.version desc limit 1;
        consumer_id := v_consumer.uid;
        consumer := v_consumer.name;
        owner := null;
        select 'in_flight', coalesce(m.attempt, 1), held.expires_at, held.owner into state, attempts, until, owner
            from headrace_internal.leases as held cross join unnest(held.seqs, held.attempts) as m(seq, attempt)
            where held.consumer_id = v_consumer.id and held.lease_id >= v_cursor.lease_floor and m.seq = key_states.seq;
        if not found then
            select 'parked', p.attempts, nullif(p.due_at, '-infinity') into state, attempts, until
                from headrace_internal.parked as p where p.consumer_id = v_consumer.id and p.seq = key_states.seq;
        end if;
        if not found then
            select case when d.blocks then 'blocked' else 'parked' end, 0, null into state, attempts, until
                from (select from headrace_internal.tails as t where t.consumer_id = v_consumer.id and t.seq = key_states.seq
                      union all
                      select from headrace_internal.dead_letters as d where d.consumer_id = v_consumer.id and d.seq = key_states.seq and d.blocks) as m
                cross join lateral (
                    select coalesce(bool_or(blocks), false) as blocks from headrace_internal.dead_letters as d
                    where d.consumer_id = v_consumer.id and d.key_hash = hashtextextended(p_key, 0) and d.blocks) as d;
        end if;
        if not found then
            select 'replaying', 0, null into state, attempts, until
                from headrace_internal.replays as r where r.consumer_id = v_consumer.id and r.seq = key_states.seq;
        end if;
        if not found then
            execute format('select (%s) from %s where seq = $1', v_consumer.condition, v_stream.relation) into v_wanted using seq;
            if v_wanted and (seq > v_cursor.position or seq <@ headrace_internal.all_holes(v_cursor)) then
                state := 'pending'; attempts := 0; until := null;
            else
                select 'dead_letter', d.attempts, null into state, attempts, until
                    from headrace_internal.dead_letters as d where d.consumer_id = v_consumer.id and d.seq = key_states.seq;
                if not found then
                    state := case when v_wanted then 'acked' else 'filtered' end; attempts := null; until := null;
                end if;
            end if;
        end if;
        return next;
    end loop;
    if consumer is null then    -- no consumer reads the stream, but the message exists
        return next;
    end if;
end $$;
