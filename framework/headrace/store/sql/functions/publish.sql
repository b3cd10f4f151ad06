-- publish: append messages to a stream, inside the caller's own transaction.
--
--   select headrace.publish('orders', 'orders.us.42', '{"total": 12}');

create function headrace.publish_many(
    p_stream   text,
    p_keys     text[],
    p_data     json[],
    p_headers  json[] default null
) returns bigint
language plpgsql as $$
declare
    v_stream  headrace.streams;
    v_count   bigint;
begin
    select * into v_stream from headrace.streams where name = p_stream;
    if not found then
        raise exception using errcode = 'HR001', message = format('There is no stream %L: create it, or mend the name.', p_stream);
    end if;
    perform pg_current_xact_id();       -- before any seq is drawn: see streams.sql
    execute format('insert into %s (key, data, headers) select * from unnest($1, $2, $3)', v_stream.relation)
        using p_keys, p_data, p_headers;
    get diagnostics v_count = row_count;
    perform headrace.wake(v_stream.id);
    return v_count;
end $$;

create function headrace.publish(
    p_stream   text,
    p_key      text,
    p_data     json,
    p_headers  json default null
) returns bigint
language plpgsql as $$
declare
    v_stream  headrace.streams;
    v_seq     bigint;
begin
    select * into v_stream from headrace.streams where name = p_stream;
    if not found then
        raise exception using errcode = 'HR001', message = format('There is no stream %L: create it, or mend the name.', p_stream);
    end if;
    perform pg_current_xact_id();
    execute format('insert into %s (key, data, headers) values ($1, $2, $3) returning seq', v_stream.relation)
        into v_seq using p_key, p_data, p_headers;
    perform headrace.wake(v_stream.id);
    return v_seq;
end $$;
