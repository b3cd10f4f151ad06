-- Consumers: they are declared by name on a stream. Declaring a consumer again changes its settings and keeps its
-- position.

-- Raise HR002, for a consumer that was deleted. Its names, if the caller knows them.
create or replace function headrace_internal.raise_consumer_gone(p_stream text default null, p_name text default null) returns void
language plpgsql as $$
begin
    raise exception using errcode = 'HR002', message = format(
        'The consumer%s no longer exists. Declare it again.', case when p_name is not null then format(' %L of the stream %L', p_name, p_stream) end);
end $$;

-- Take a consumer's lock, until the end of the transaction, and return the consumer. Its settings are read only then: an edit
-- that another session waits for has committed. Raises HR002 if the consumer no longer exists.
create or replace function headrace_internal.lock_consumer(p_consumer int) returns headrace_internal.consumers
language plpgsql as $$
declare
    v_consumer  headrace_internal.consumers;
begin
    perform pg_advisory_xact_lock(1212498508, p_consumer);
    select * into v_consumer from headrace_internal.consumers where id = p_consumer;
    if not found then
        perform headrace_internal.raise_consumer_gone();
    end if;
    return v_consumer;
end $$;

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

-- Return the filters of a selection, null for all keys.
create or replace function headrace_internal.selection_filters(p_selection json) returns text[]
language sql immutable as $$
    select case when p_selection ->> 'filter' is not null then array(select json_array_elements_text(p_selection -> 'filter')) end
$$;

-- Return the condition of a selection: {"filter", "where"}, each optional. filter is an array of filters.
create or replace function headrace_internal.selection_condition(p_selection json) returns text
language sql stable as $$
    select headrace_internal.condition(
        coalesce(headrace_internal.selection_filters(p_selection), '{>}'),
        case when p_selection ->> 'where' is not null then p_selection -> 'where' end)
$$;

-- The columns of headrace_internal.consumers that are no settings. All others are, by their names, but for `filter_where`,
-- which is called `where`.
create or replace function headrace_internal.no_settings() returns text[]
language sql immutable as $$
    select '{id,uid,stream_id,name,condition,longest_wait,deliver_policy,start_seq,start_time,paused_until,version,created_at,updated_at}'::text[]
$$;

-- Create or update a consumer.
-- p_settings: settings, durations in seconds, and for a new consumer deliver_policy, start_seq and start_time, which say where
-- it begins. What an older process does not know keeps its default or its value.
-- Returns the consumer's id, and its settings as they were before (null when it is new).
-- Granted: admin
create or replace function headrace_internal.declare_consumer(
    p_stream text, p_name text, p_settings json, out consumer_id int, out before json
)
language plpgsql as $$
declare
    v_stream   headrace_internal.streams;
    v_found    headrace_internal.consumers;
    v_given    headrace_internal.consumers;
    v_columns  text[];
    v_frees    boolean;
begin
    if not headrace_internal.has_fields(p_settings, '{}') then
        raise exception using errcode = 'HR004', message = 'The settings of a consumer are a JSON object without NUL characters.';
    end if;
    v_stream := headrace_internal.require_stream(p_stream);
    perform pg_advisory_xact_lock(1212498508, 0);
    select * into v_found from headrace_internal.consumers as c where c.stream_id = v_stream.id and c.name = p_name;
    consumer_id := v_found.id;
    v_given := json_populate_record(v_found, p_settings);
    v_given.filter_where := case when json_typeof(p_settings -> 'where') <> 'null' then p_settings -> 'where' end;
    v_given.condition := headrace_internal.condition(v_given.filters, v_given.filter_where);
    v_given.longest_wait := greatest(v_found.longest_wait, v_given.ack_wait);
    if v_given.push is not null and not (
        headrace_internal.has_fields(v_given.push, '{url}') and json_typeof(v_given.push -> 'url') = 'string'
        and coalesce(json_typeof(v_given.push -> 'headers'), 'object') in ('object', 'null')
        and coalesce(json_typeof(v_given.push -> 'secret'), 'null') in ('string', 'null')) then
        raise exception using errcode = 'HR004', message = 'The settings of push are a JSON object with a text as url.';
    end if;
    v_columns := array(
        select quote_ident(case name when 'where' then 'filter_where' else name end) from json_object_keys(p_settings) as name
        where name <> all (headrace_internal.no_settings())) || '{condition,longest_wait}'::text[];
    if consumer_id is null then
        perform headrace_internal.refuse_id('consumer', p_name);
        v_given.stream_id := v_stream.id;
        v_given.name := p_name;
        v_given.deliver_policy := coalesce(v_given.deliver_policy, 'all');
        v_given.created_at := clock_timestamp();
        v_given.updated_at := v_given.created_at;
        execute format('insert into headrace_internal.consumers (%1$s) select %1$s from (select ($1).*) as given returning id',
                       array_to_string(v_columns || '{stream_id,name,deliver_policy,start_seq,start_time,created_at,updated_at}'::text[], ', '))
            into consumer_id using v_given;
        insert into headrace_internal.cursors (consumer_id, version, position) values (declare_consumer.consumer_id, 0, 0);
        if v_given.deliver_policy <> 'all' then
            perform headrace_internal.start_consumer(v_stream, consumer_id, v_given.condition, v_given.deliver_policy, v_given.start_seq, v_given.start_time);
        end if;
        return;
    end if;
    before := headrace_internal.consumer_settings(v_found);
    v_frees := v_found.ordered and not v_given.ordered or v_found.on_exhausted = 'block' and v_given.on_exhausted <> 'block';
    if v_frees then     -- a deletion takes this lock before the consumer's row, too
        perform pg_advisory_xact_lock(1212498508, consumer_id);
    end if;
    if v_found.condition <> v_given.condition or before::text <> headrace_internal.consumer_settings(v_given)::text then
        execute format('update headrace_internal.consumers set (%1$s) = (select %1$s from (select ($2).*) as given), version = version + 1,
                               updated_at = clock_timestamp() where id = $1', array_to_string(v_columns, ', ')) using consumer_id, v_given;
    end if;
    if v_frees then
        perform headrace_internal.free_waiting(consumer_id);
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
            and seq in (select * from headrace_internal.in_flight_seqs(p_consumer, v_cursor.lease_floor));
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
            into v_first using p_consumer, v_cursor.position, (select * from headrace_internal.cursor_holes(v_cursor));
        perform headrace_internal.lock_out_erasures(p_stream.id);
        delete from headrace_internal.replays where consumer_id = p_consumer
            and seq in (select * from headrace_internal.erased_replays(p_consumer, p_stream.id));
        perform headrace_internal.start_replay(p_consumer, v_first);
    end if;
end $$;

create or replace function headrace_internal.consumer_settings(c headrace_internal.consumers) returns json
language sql stable as $$
    select json_object_agg(case name when 'filter_where' then 'where' else name end,
                           case name when 'ack_wait' then to_json(extract(epoch from c.ack_wait)::float8) else value end)
    from json_each(row_to_json(c)) as s(name, value) where name <> all (headrace_internal.no_settings())
$$;
