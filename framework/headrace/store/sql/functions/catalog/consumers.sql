-- Consumers: they are declared by name on a stream. Declaring a consumer again changes its settings and keeps its
-- position.

-- Raise HR004 unless these are filters, by the grammar of headrace.model.keys: like keys, but with "*" for one token and
-- ">" as the last token.
create or replace function headrace_internal.check_filters(p_filters text[]) returns void
language plpgsql immutable as $$
declare
    v_filter  text;
    v_wrong   text;
begin
    if cardinality(p_filters) > 0 is not true then
        raise exception using errcode = 'HR004', message = 'A consumer needs a filter; ''>'' takes every message.';
    end if;
    foreach v_filter in array p_filters loop
        v_wrong := case
            when v_filter is null then 'is null: it is a string such as ''orders.us.>'''
            when v_filter = '' then 'is empty: it needs at least one token, such as ''orders'''
            when octet_length(v_filter) > 1024 then 'is longer than 1024 bytes of UTF-8'
            when v_filter collate "C" ~ '(^|\.)(\.|$)' then
                'has an empty token: dots part tokens, so none may lead, trail or repeat'
            when v_filter collate "C" ~ '[\u0001-\u0020\u007F-\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]' then
                'has a blank or a control character, which is no part of a filter: write ''_'' or ''%20'' instead'
            when v_filter collate "C" ~ '(^|\.)>\.' then
                'has ''>'' in the middle: it stands for all the rest, so it can only be the last token; write ''*'' for a single token'
        end;
        if v_wrong is not null then
            raise exception using errcode = 'HR004', message = format(
                'The filter %s %s.', coalesce(quote_literal(left(v_filter, 80)), 'null'), v_wrong);
        end if;
    end loop;
end $$;

-- Return the filters as one condition over `key`. Raises HR004 for anything that is no filter. Postgres quotes every
-- literal (%L), so no text of a user enters the SQL unquoted.
create or replace function headrace_internal.key_condition(p_filters text[]) returns text
language plpgsql immutable as $$
declare
    v_filter     text;
    v_tokens     text[];
    v_pattern    text;
    v_conditions text[] := '{}';
begin
    if cardinality(p_filters) > 100 then
        raise exception using errcode = 'HR004', message =
            'There are more than 100 filters: use fewer with wildcards, or a condition such as key in (…).';
    end if;
    perform headrace_internal.check_filters(p_filters);
    foreach v_filter in array p_filters loop
        if octet_length(v_filter) > 1024 then
            raise exception using errcode = 'HR004', message = 'A filter is longer than 1,024 bytes.';
        end if;
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

-- Return the filters and the condition of a consumer as one SQL condition over a message's columns.
create or replace function headrace_internal.condition(p_filters text[], p_where json) returns text
language plpgsql stable as $$
begin
    if p_where is null then
        return headrace_internal.key_condition(p_filters);
    end if;
    perform headrace_internal.check_filters(p_filters);
    if '>' = any (p_filters) then
        return headrace_internal.where_condition(p_where);
    end if;
    return headrace_internal.key_condition(p_filters) || ' and ' || headrace_internal.where_condition(p_where);
end $$;

-- Create or update a consumer.
-- p_deliver_policy, p_start_seq, p_start_time: where a new consumer begins. An existing one keeps its position.
-- Returns the consumer's id, and its settings as they were before (null when it is new).
-- Granted: admin
create or replace function headrace_internal.declare_consumer(
    p_stream           text,
    p_name             text,
    p_filters          text[],
    p_where            json,
    p_ordered          boolean,
    p_ack_wait         interval,
    p_max_ack_pending  int,
    p_max_deliver      int,
    p_backoff          json,
    p_on_exhausted     text,
    p_max_waiting      int,
    p_deliver_policy   text default 'all',
    p_start_seq        bigint default null,
    p_start_time       timestamptz default null,
    p_rate_limit       float8 default null,
    p_rate_burst       int default null,
    p_push             json default null,
    out consumer_id    int,
    out before         json
)
language plpgsql as $$
declare
    v_stream     headrace_internal.streams;
    v_condition  text := headrace_internal.condition(p_filters, p_where);
    v_now        timestamptz := clock_timestamp();
    v_frees      boolean;
begin
    if p_push is not null and not (headrace_internal.has_fields(p_push, '{url}') and json_typeof(p_push -> 'url') = 'string'
                                   and coalesce(json_typeof(p_push -> 'headers'), 'object') in ('object', 'null')
                                   and coalesce(json_typeof(p_push -> 'secret'), 'null') in ('string', 'null')) then
        raise exception using errcode = 'HR004', message = 'The settings of push are a JSON object with a text as url, and no NUL character.';
    end if;
    v_stream := headrace_internal.require_stream(p_stream);
    perform pg_advisory_xact_lock(1212498508, 0);
    select c.id, headrace_internal.consumer_settings(c), c.ordered and not p_ordered or c.on_exhausted = 'block' and p_on_exhausted <> 'block'
        into consumer_id, before, v_frees
        from headrace_internal.consumers c where c.stream_id = v_stream.id and c.name = p_name;
    if not found then
        perform headrace_internal.refuse_id('consumer', p_name);
        insert into headrace_internal.consumers (stream_id, name, filters, filter_where, condition, ordered, ack_wait, max_ack_pending,
                                        max_deliver, backoff, on_exhausted, max_waiting, deliver_policy, start_seq, start_time,
                                        rate_limit, rate_burst, push, created_at, updated_at)
            values (v_stream.id, p_name, p_filters, p_where, v_condition, p_ordered, p_ack_wait, p_max_ack_pending,
                    p_max_deliver, p_backoff, p_on_exhausted, p_max_waiting, p_deliver_policy, p_start_seq, p_start_time,
                    p_rate_limit, p_rate_burst, p_push, v_now, v_now)
            returning id into consumer_id;
        insert into headrace_internal.cursors (consumer_id, version, position) values (declare_consumer.consumer_id, 0, 0);
        if p_deliver_policy <> 'all' then
            perform headrace_internal.start_consumer(v_stream, declare_consumer.consumer_id, v_condition, p_deliver_policy, p_start_seq, p_start_time);
        end if;
    else
        if v_frees then     -- a deletion takes this lock before the consumer's row, too
            perform pg_advisory_xact_lock(1212498508, declare_consumer.consumer_id);
        end if;
        update headrace_internal.consumers c
            set filters = p_filters, filter_where = p_where, condition = v_condition, ordered = p_ordered, ack_wait = p_ack_wait,
                max_ack_pending = p_max_ack_pending, max_deliver = p_max_deliver, backoff = p_backoff,
                on_exhausted = p_on_exhausted, max_waiting = p_max_waiting, rate_limit = p_rate_limit, rate_burst = p_rate_burst,
                push = p_push,
                version = version + 1, updated_at = clock_timestamp()
            where c.id = declare_consumer.consumer_id
              and (filters, filter_where::text, condition, ordered, ack_wait, max_ack_pending, max_deliver, backoff::text, on_exhausted,
                   max_waiting, rate_limit, rate_burst, push::text)
                  is distinct from
                  (p_filters, p_where::text, v_condition, p_ordered, p_ack_wait, p_max_ack_pending, p_max_deliver, p_backoff::text,
                   p_on_exhausted, p_max_waiting, p_rate_limit, p_rate_burst, p_push::text);
        if v_frees then
            perform headrace_internal.free_waiting(declare_consumer.consumer_id);
        end if;
    end if;
end $$;

-- Free the messages that wait for what a consumer's settings no longer ask for. If it blocks no keys any more, blocked
-- keys continue after the dead letters that blocked them, which stay. If it is not ordered any more, no message waits
-- for another one of its key. They may be many, so they are parked in portions, as those of a replay. The caller has the
-- consumer's lock.
create or replace function headrace_internal.free_waiting(p_consumer int) returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_consumer  headrace_internal.consumers;
    v_cursor    headrace_internal.cursors;
    v_next      headrace_internal.cursors;
    v_keys      bigint[];
    v_first     bigint;
begin
    -- Wait for settles in progress, which have read the settings before.
    perform from headrace_internal.leases where consumer_id = p_consumer order by lease_id for no key update;
    select * into v_consumer from headrace_internal.consumers where id = p_consumer;
    select * into v_cursor from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1;
    if v_consumer.on_exhausted <> 'block' then
        with freed as (
            update headrace_internal.dead_letters set blocks = false where consumer_id = p_consumer and blocks returning key_hash
        )
        select array_agg(key_hash) into v_keys from freed;
    end if;
    if v_consumer.ordered then
        v_next := v_cursor;
        v_next.parked_floor := least(v_cursor.parked_floor, headrace_internal.promote_tails(p_consumer, v_keys, null, 0));
        v_next.ready_floor := least(v_cursor.ready_floor, v_next.parked_floor);
        perform headrace_internal.write_cursor(v_cursor, v_next);
    else
        -- A message that is in flight and was to be delivered again, in its order, is delivered already.
        delete from headrace_internal.parked where consumer_id = p_consumer
            and seq in (select headrace_internal.in_flight_seqs(p_consumer, v_cursor.lease_floor));
        with gone as (
            delete from headrace_internal.tails where consumer_id = p_consumer returning seq, key_hash
        ), added as (
            insert into headrace_internal.replays (consumer_id, seq, key_hash) select p_consumer, seq, key_hash from gone on conflict do nothing
        )
        select min(seq) into v_first from gone;
        perform headrace_internal.start_replay(p_consumer, v_first);
    end if;
    perform headrace_internal.notify_stream(v_consumer.stream_id);
end $$;

-- Set the first position of a new consumer.
create or replace function headrace_internal.start_consumer(
    p_stream headrace_internal.streams, p_consumer int, p_condition text, p_policy text, p_start_seq bigint, p_start_time timestamptz
) returns void
language plpgsql as $$
declare
    v_cursor  headrace_internal.cursors;
    v_first   bigint;
begin
    if p_policy = 'by_start_seq' then
        perform headrace_internal.seek(p_consumer, p_start_seq - 1);
        return;
    elsif p_policy = 'by_start_time' then
        perform headrace_internal.seek(p_consumer, headrace_internal.position_at(p_stream.name, p_start_time));
        return;
    end if;
    perform headrace_internal.seek(p_consumer, null);
    if p_policy = 'last_per_key' then
        -- A message that commits during this read is in a hole of the cursor, and is delivered from there.
        select * into v_cursor from headrace_internal.cursors where consumer_id = p_consumer order by version desc limit 1;
        execute format($sql$
            with last as (
                select max(seq) as seq, hashtextextended(key, 0) as hash from %s
                where seq <= $2 and not seq <@ $3 and (%s) group by key
            ), added as (
                insert into headrace_internal.replays (consumer_id, seq, key_hash) select $1, seq, hash from last returning seq
            )
            select min(seq) from added
            $sql$, p_stream.relation, p_condition)
            into v_first using p_consumer, v_cursor.position, headrace_internal.all_holes(v_cursor);
        perform headrace_internal.start_replay(p_consumer, v_first);
    end if;
end $$;

create or replace function headrace_internal.consumer_settings(c headrace_internal.consumers) returns json
language sql stable as $$
    select json_build_object(
        'filters', c.filters, 'where', c.filter_where, 'ordered', c.ordered, 'ack_wait', extract(epoch from c.ack_wait)::float8,
        'max_ack_pending', c.max_ack_pending, 'max_deliver', c.max_deliver, 'backoff', c.backoff,
        'on_exhausted', c.on_exhausted, 'max_waiting', c.max_waiting,
        'rate_limit', c.rate_limit, 'rate_burst', c.rate_burst, 'push', c.push)
$$;
