-- Consumers: declared by name on a stream; declaring again changes the settings and keeps the place.

-- The filters as one condition over `key`. Every literal is quoted by Postgres (%L); no text of a user's gets in raw.
create function headrace.key_condition(p_filters text[]) returns text
language plpgsql immutable as $$
declare
    v_filter     text;
    v_tokens     text[];
    v_pattern    text;
    v_conditions text[] := '{}';
begin
    foreach v_filter in array p_filters loop
        v_tokens := string_to_array(v_filter, '.');
        if v_filter = '>' then
            return 'true';
        elsif not v_tokens && array['*', '>'] then
            v_conditions := v_conditions || format('key = %L', v_filter);
        elsif not '*' = any (v_tokens) then     -- the only wildcard is the ">" at the end
            v_conditions := v_conditions || format('key ^@ %L', left(v_filter, -1));
        else
            select string_agg(case token when '*' then '[^.]+' when '>' then '.+'
                                         else regexp_replace(token, '[].^$*+?(){}|\\[]', '\\\&', 'g') end, '\.' order by place)
                into v_pattern from unnest(v_tokens) with ordinality as t(token, place);
            v_conditions := v_conditions || format('key ~ %L', '^' || v_pattern || '$');
        end if;
    end loop;
    return '(' || array_to_string(v_conditions, ' or ') || ')';
end $$;

-- Returns the consumer's id, and its settings as they were before (null when it is new).
create function headrace.declare_consumer(
    p_stream           text,
    p_name             text,
    p_filters          text[],
    p_ordered          boolean,
    p_ack_wait         interval,
    p_max_ack_pending  int,
    p_max_deliver      int,
    p_backoff          json,
    p_on_exhausted     text,
    out consumer_id    int,
    out before         json
)
language plpgsql as $$
declare
    v_stream  int;
begin
    select id into v_stream from headrace.streams where name = p_stream;
    if not found then
        raise exception using errcode = 'HR001', message = format('There is no stream %L: create it, or mend the name.', p_stream);
    end if;
    perform pg_advisory_xact_lock(1212498508, 0);
    select c.id, headrace.consumer_settings(c) into consumer_id, before
        from headrace.consumers c where c.stream_id = v_stream and c.name = p_name;
    if not found then
        insert into headrace.consumers (stream_id, name, filters, condition, ordered, ack_wait, max_ack_pending,
                                        max_deliver, backoff, on_exhausted)
            values (v_stream, p_name, p_filters, headrace.key_condition(p_filters), p_ordered, p_ack_wait, p_max_ack_pending,
                    p_max_deliver, p_backoff, p_on_exhausted)
            returning id into consumer_id;
        insert into headrace.cursors (consumer_id, version, position) values (declare_consumer.consumer_id, 0, 0);
    else
        update headrace.consumers c
            set filters = p_filters, condition = headrace.key_condition(p_filters), ordered = p_ordered, ack_wait = p_ack_wait,
                max_ack_pending = p_max_ack_pending, max_deliver = p_max_deliver, backoff = p_backoff,
                on_exhausted = p_on_exhausted, updated_at = clock_timestamp()
            where c.id = declare_consumer.consumer_id
              and (filters, ordered, ack_wait, max_ack_pending, max_deliver, backoff::text, on_exhausted)
                  is distinct from
                  (p_filters, p_ordered, p_ack_wait, p_max_ack_pending, p_max_deliver, p_backoff::text, p_on_exhausted);
    end if;
end $$;

create function headrace.consumer_settings(c headrace.consumers) returns json
language sql stable as $$
    select json_build_object(
        'filters', c.filters, 'ordered', c.ordered, 'ack_wait', extract(epoch from c.ack_wait)::float8,
        'max_ack_pending', c.max_ack_pending, 'max_deliver', c.max_deliver, 'backoff', c.backoff,
        'on_exhausted', c.on_exhausted)
$$;
