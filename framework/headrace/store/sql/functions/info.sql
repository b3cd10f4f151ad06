-- What people and tools ask about streams and consumers. Nothing here counts the whole of a large table.

create function headrace.stream_info(p_stream text default null)
returns table (name text, created_at timestamptz, first_seq bigint, last_seq bigint, messages bigint, size bigint, consumers bigint)
language plpgsql stable as $$
declare
    v_stream  headrace.streams;
begin
    for v_stream in select * from headrace.streams as s where p_stream is null or s.name = p_stream order by s.name loop
        name := v_stream.name;
        created_at := v_stream.created_at;
        execute format('select min(seq), max(seq), (select count(*) from (select from %1$s limit 10000) as few) from %1$s', v_stream.relation)
            into first_seq, last_seq, messages;
        if messages = 10000 then
            select greatest(messages, reltuples::bigint) into messages from pg_class where oid = v_stream.relation::regclass;
        end if;
        size := pg_total_relation_size(v_stream.relation::regclass);
        select count(*) into consumers from headrace.consumers as c where c.stream_id = v_stream.id;
        return next;
    end loop;
end $$;

create function headrace.consumer_info(p_stream text default null, p_name text default null)
returns table (stream text, name text, settings json, "position" bigint, lag bigint, in_flight bigint, owners bigint,
               parked bigint, blocked bigint, dead_letters bigint, holes bigint)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_consumer  headrace.consumers;
    v_stream    headrace.streams;
    v_cursor    headrace.cursors;
begin
    for v_stream in select * from headrace.streams as s where p_stream is null or s.name = p_stream order by s.name loop
        for v_consumer in
            select * from headrace.consumers as c
            where c.stream_id = v_stream.id and (p_name is null or c.name = p_name) order by c.name
        loop
            select * into v_cursor from headrace.cursors where consumer_id = v_consumer.id order by version desc limit 1;
            stream := v_stream.name;
            name := v_consumer.name;
            settings := headrace.consumer_settings(v_consumer);
            "position" := v_cursor.position;
            execute format('select coalesce(max(seq), 0) from %s', v_stream.relation) into lag;
            lag := greatest(lag - v_cursor.position, 0);
            select coalesce(sum(l.held), 0), count(distinct l.owner) into in_flight, owners
                from headrace.leases as l where l.consumer_id = v_consumer.id and l.lease_id >= v_cursor.lease_floor;
            select count(*) into parked from headrace.parked as p
                where p.consumer_id = v_consumer.id and p.seq >= v_cursor.parked_floor;
            select count(*) into blocked from headrace.blocked as b where b.consumer_id = v_consumer.id;
            select count(*) into dead_letters from headrace.dead_letters as d where d.consumer_id = v_consumer.id;
            select count(*) into holes from unnest(v_cursor.holes);
            return next;
        end loop;
    end loop;
end $$;
