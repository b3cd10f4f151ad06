-- Return the state of a message in each consumer of a stream, by its seq and key.
--
-- A message that is in no table of the consumer is done if the position has passed it and it is in no hole, see
-- journeys.sql. That also holds for one that was dropped, or that was there before the consumer began.
-- Granted: consume
create or replace function headrace_internal.key_states(p_stream text, p_seq bigint, p_key text)
returns table (consumer_id uuid, consumer text, state text, attempts int, until timestamptz, owner uuid, failed_at timestamptz, error text,
               error_type text)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream    headrace_internal.streams;
    v_consumer  headrace_internal.consumers;
    v_cursor    headrace_internal.cursors;
    v_place     headrace_internal.message_place;
begin
    v_stream := headrace_internal.require_stream(p_stream);
    for v_consumer in select * from headrace_internal.consumers as c where c.stream_id = v_stream.id order by c.name loop
        v_cursor := headrace_internal.newest_cursor(v_consumer.id);
        continue when v_cursor.consumer_id is null;     -- it was deleted
        v_place := headrace_internal.place_of_message(v_stream, v_consumer, v_cursor, p_seq, hashtextextended(p_key, 0));
        consumer_id := v_consumer.uid;
        consumer := v_consumer.name;
        state := case v_place.place
            when 'lease' then 'in_flight' when 'ack' then 'acked' when 'replay' then 'replaying'
            when 'ahead' then 'pending' when 'hole' then 'pending' when 'parked' then 'parked'
            when 'tail' then case when v_place.head_place = 'letter' then 'blocked' else 'parked' end
            when 'letter' then case when v_place.blocks then 'blocked' else 'dead_letter' end
            else case when v_place.wanted then 'acked' else 'filtered' end end;
        attempts := case when v_place.place = 'letter' and v_place.blocks then 0 when v_place.place <> 'ack' then v_place.attempts end;
        until := case when v_place.place in ('lease', 'parked') then v_place.until end;
        owner := case v_place.place when 'lease' then v_place.owner end;
        failed_at := v_place.failed_at;
        error := v_place.error;
        error_type := v_place.error_type;
        return next;
    end loop;
end $$;
