-- publish: append messages to a stream, inside the caller's own transaction.
--
--   select headrace.publish('orders', 'orders.us.42', '{"total": 12}');
--
-- A transaction gets its xid before it draws a seq. By then it also holds a row-exclusive lock on the stream's own
-- table (the parent of the segments), and it keeps the lock until it ends. The gap-aware cursor relies on both, see
-- holes.sql.

-- README.md says which of the functions runs when. Those of a stream: an INSERT is planned again each time that it is
-- executed as a text, which costs as much as forty of its rows. A function has its plans at hand.
--
-- NAME.publish_checked takes messages that the process has checked. A search of 10 kB for a NUL takes 7 µs, a sixth of what
-- it takes to store them. Only a member of the owner can be believed, see checks.sql.
--
-- They find the stream by its name and lock nothing, so they are right whatever becomes of it. Their plans take 70 kB each of
-- each connection for each stream that it publishes to, beside 60 kB that the tables take there, so what they have in
-- common is in functions for all streams.

-- Create or replace the functions that publish to a stream, unless they are as they should be. They belong to the owner of
-- the schema, like the table. They are called from outside, so they have a search path of their own.
create or replace function headrace_internal.create_appenders(p_stream headrace_internal.streams) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_appender  record;
begin
    for v_appender in
        select format('headrace_streams.%I', p_stream.name || a.suffix) as name, a.arguments,
               format(a.body, p_stream.name, p_stream.relation, p_stream.name || '.publish') as body
        from (values
            (false, '.publish', 'p_keys text[], p_data json[], p_headers json[]', $body$
declare
    v_stream   int;
    v_checked  boolean;
    v_count    bigint;
begin
    v_stream := headrace_internal.begin_publish(%1$L, p_headers);
    v_checked := headrace_internal.begin_checked(p_keys, p_data, p_headers);
    insert into %2$s (key, data, headers)
        select key, data, headers
        from (select unnest(p_keys) as key, unnest(p_data) as data, unnest(p_headers) as headers) as m
        where case when octet_length(key) <= 1024 and strpos(data::text, E'\\u0000') = 0 or not v_checked then true
                   else headrace_streams.is_message(key, data, headers) end;
    get diagnostics v_count = row_count;
    return headrace_internal.end_publish(v_stream, v_checked, v_count);
end $body$),
            (false, '.publish_checked', 'p_keys text[], p_data json[], p_headers json[]', $body$
declare
    v_stream   int;
    v_trusted  boolean;
    v_count    bigint;
begin
    v_stream := headrace_internal.begin_publish(%1$L, p_headers);
    v_trusted := headrace_internal.begin_trusted(pg_column_size(p_data) + coalesce(pg_column_size(p_headers), 0));
    insert into %2$s (key, data, headers)
        select unnest(p_keys), unnest(p_data), unnest(p_headers);
    get diagnostics v_count = row_count;
    return headrace_internal.end_publish(v_stream, v_trusted, v_count);
end $body$),
            (false, '.publish_one', 'p_key text, p_data json, p_headers json', $body$
declare
    v_stream  int;
    v_seq     bigint;
begin
    v_stream := headrace_internal.begin_publish(%1$L, case when p_headers is not null then array[p_headers] end);
    insert into %2$s (key, data, headers) values (p_key, p_data, p_headers) returning seq into v_seq;
    if (select until from headrace_internal.waits where stream_id = v_stream order by until desc limit 1) > clock_timestamp() then
        perform headrace_internal.notify_stream(v_stream);
    end if;
    return v_seq;
end $body$),
            (true, '.publish', 'p_keys text[], p_data json[], p_headers json[]', $body$
declare
    v_stream  int := headrace_internal.begin_publish(%1$L, p_headers);
    v_count   bigint;
begin
    v_count := cardinality(headrace_internal.upsert_messages(headrace_internal.require_stream(%1$L), p_keys, p_data, p_headers));
    return headrace_internal.end_publish(v_stream, false, v_count);
end $body$),
            (true, '.publish_checked', 'p_keys text[], p_data json[], p_headers json[]', $body$
begin
    return headrace_streams.%3$I(p_keys, p_data, p_headers);
end $body$),
            (true, '.publish_one', 'p_key text, p_data json, p_headers json', $body$
declare
    v_stream  int := headrace_internal.begin_publish(%1$L, case when p_headers is not null then array[p_headers] end);
    v_seq     bigint;
begin
    v_seq := (headrace_internal.upsert_messages(headrace_internal.require_stream(%1$L), array[p_key], array[p_data], array[p_headers]))[1];
    if v_seq is null then       -- unchanged
        select seq into v_seq from %2$s where key = p_key;
    end if;
    return headrace_internal.end_publish(v_stream, false, v_seq);
end $body$)) as a(one_message_per_key, suffix, arguments, body)
        where a.one_message_per_key = p_stream.one_message_per_key
    loop
        if (select prosrc from pg_proc where oid = to_regproc(v_appender.name)) is distinct from v_appender.body then
            execute format('create or replace function %s(%s) returns bigint language plpgsql set search_path = pg_catalog, pg_temp as %L',
                           v_appender.name, v_appender.arguments, v_appender.body);
        end if;
    end loop;
end $$;

-- Drop the functions that publish to a stream.
create or replace function headrace_internal.drop_appenders(p_stream headrace_internal.streams) returns void
language plpgsql as $$
begin
    execute format('drop function if exists headrace_streams.%I(text[], json[], json[])', p_stream.name || '.publish');
    execute format('drop function if exists headrace_streams.%I(text[], json[], json[])', p_stream.name || '.publish_checked');
    execute format('drop function if exists headrace_streams.%I(text, json, json)', p_stream.name || '.publish_one');
end $$;

-- The function that publishes to a stream. Null if there is none, or if the caller may not execute it. p_suffix: `.publish`
-- or `.publish_one`. It is inlined where it is called.
create or replace function headrace_internal.appender(p_stream text, p_suffix text) returns text
language sql volatile as $$
    select case when has_function_privilege(to_regproc(format('headrace_streams.%I', p_stream || p_suffix))::oid, 'execute')
                then format('headrace_streams.%I', p_stream || p_suffix) end
$$;

-- The streams that exist already.
do $$
begin
    perform headrace_internal.create_appenders(s) from headrace_internal.streams as s;
end $$;

-- Begin to publish: check that the stream exists, has room and can be written to, and what expires, and assign the
-- transaction's id. Returns the id of the stream.
create or replace function headrace_internal.begin_publish(p_stream text, p_headers json[]) returns int
language plpgsql as $$
declare
    v_id        int;
    v_sequence  text;
    v_drawn     bigint;
    v_full      boolean;
    v_xid       xid8;           -- assigning it is cheaper than PERFORM, which starts a statement
begin
    select id, sequence, drawn, full_until is not null into v_id, v_sequence, v_drawn, v_full
        from headrace_internal.streams where name = p_stream;
    if v_id is null or v_full then
        perform headrace_internal.require_stream_with_room(p_stream);
    end if;
    if v_drawn > 0 then         -- an IF of its own, because each transaction prepares the expressions that it evaluates
        if headrace_internal.seems_behind(v_sequence, v_drawn) then
            perform headrace_internal.require_sequence_ahead(headrace_internal.require_stream(p_stream), v_drawn);
        end if;
    end if;
    if p_headers is not null then
        if headrace_internal.may_expire(p_headers) then
            perform headrace_internal.check_expiry(p_headers);
        end if;
    end if;
    v_xid := pg_current_xact_id();
    return v_id;
end $$;

-- End to publish: check each row again from here on, and notify waiting consumers. p_checked: of begin_checked. Returns
-- p_result.
create or replace function headrace_internal.end_publish(p_stream int, p_checked boolean, p_result bigint) returns bigint
language plpgsql as $$
begin
    if p_checked then
        p_checked := headrace_internal.end_checked();
    end if;
    -- Read last, because a standby can't read an unlogged table, and its refusal to publish must come first.
    if (select until from headrace_internal.waits where stream_id = p_stream order by until desc limit 1) > clock_timestamp() then
        perform headrace_internal.notify_stream(p_stream);
    end if;
    return p_result;
end $$;

-- Publish many messages, all of them now. Returns the number of messages that were published.
-- Granted: publish
create or replace function headrace_internal.publish_messages(p_stream text, p_keys text[], p_data json[], p_headers json[] default null) returns bigint
language plpgsql as $$
declare
    v_appender  text := headrace_internal.appender(p_stream, '.publish');
    v_count     bigint;
begin
    if v_appender is null then
        return (headrace_internal.publish_with_options(p_stream, p_keys, p_data, p_headers, null)).published;
    end if;
    execute 'select ' || v_appender || '($1, $2, $3)' into v_count using p_keys, p_data, p_headers;
    return v_count;
end $$;

-- Publish one message now. Returns its seq, or that of the message that `dedupe` found unchanged.
-- Granted: publish
create or replace function headrace_internal.publish_message(p_stream text, p_key text, p_data json, p_headers json default null) returns bigint
language plpgsql as $$
declare
    v_appender  text := headrace_internal.appender(p_stream, '.publish_one');
    v_seq       bigint;
begin
    if v_appender is null then
        return (headrace_internal.publish_with_options(p_stream, array[p_key], array[p_data], array[p_headers], null)).seq;
    end if;
    execute 'select ' || v_appender || '($1, $2, $3)' into v_seq using p_key, p_data, p_headers;
    return v_seq;
end $$;

create or replace function headrace_internal.require_stream_with_room(p_name text) returns headrace_internal.streams
language plpgsql as $$
declare
    v_stream  headrace_internal.streams;
begin
    v_stream := headrace_internal.require_stream(p_name);
    if v_stream.full_until > clock_timestamp() then
        raise exception using errcode = 'HR005', message = format(
            'The stream %L holds its max_storage of %s, and what it holds must still be kept: publishing goes on by itself once something may go, or when max_storage is raised.',
            p_name, pg_size_pretty(v_stream.max_storage));
    end if;
    return v_stream;
end $$;

-- The options of p_count messages as rows, in their order. This is their only reading.
-- p_options: an object for all messages, or an array with an object for each. It is inlined where it is called.
create or replace function headrace_internal.publish_options(p_options json, p_count int)
returns table (message_id text, deliver_at timestamptz, unique_key text, unique_while text)
language sql stable as $$
    select o.message_id, o.deliver_at, o.unique_key, o.unique_while
    from json_to_recordset(case json_typeof(p_options) when 'object' then json_build_array(p_options) else p_options end)
             as o(message_id text, deliver_at timestamptz, unique_key text, unique_while text)
    cross join generate_series(1, case json_typeof(p_options) when 'object' then p_count else 1 end)
$$;

-- Publish or schedule messages with options, one or many. The arrays run in parallel.
-- p_options: see headrace_internal.publish_options. Null for none.
--   message_id    a message whose id was published within the stream's dedupe_window is not published again. If an id
--                 occurs twice in a call, the first message is published.
--   unique_key    a message is not published while the last one with its unique key is pending, see unique.sql. Of several
--                 in a call, the first one is published. Not together with a message_id.
--   unique_while  `pending`, or `waiting` to ignore messages in flight. The same for all.
--   deliver_at    when to publish the message, if that is later.
-- published: how many messages were published or scheduled. seq: of a single message, its seq, or that of the message with
-- its id or unique key. Null if it is scheduled.
-- Granted: publish
create or replace function headrace_internal.publish_with_options(
    p_stream text, p_keys text[], p_data json[], p_headers json[], p_options json, out published bigint, out seq bigint
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    v_id      int := headrace_internal.begin_publish(p_stream, p_headers);
    v_stream  headrace_internal.streams := headrace_internal.require_stream(p_stream);
    v_given   record;
    v_now     timestamptz;
    v_fresh   text[];
    v_taken   text[];
    v_due     record;
    v_seqs    bigint[];
begin
    select array_agg(o.message_id) as ids, array_agg(o.deliver_at) as due, array_agg(o.unique_key) as unique_keys,
           count(o.message_id) > 0 as has_ids, count(o.deliver_at) > 0 as has_due, count(o.unique_key) > 0 as has_unique_keys,
           count(o.message_id || o.unique_key) > 0 as has_both,
           array_agg(distinct coalesce(o.unique_while, 'pending')) filter (where o.unique_key is not null) as unique_while
        into v_given from headrace_internal.publish_options(p_options, cardinality(p_keys)) as o;
    if v_given.has_both then
        raise exception using errcode = 'HR004', column = 'unique_key', message = 'A message can''t have both a unique key and a message id: give one of the two.';
    elsif cardinality(v_given.unique_while) > 1 then
        raise exception using errcode = 'HR004', message =
            'The messages of a call must have the same unique_while: give those with another one in a second call.';
    elsif not v_given.unique_while[1] in ('pending', 'waiting') then
        raise exception using errcode = 'HR004', column = 'unique_while', message = format(
            'unique_while can''t be %L: take "pending", or "waiting" to publish while a message of the unique key is in flight.', v_given.unique_while[1]);
    end if;
    if v_given.has_ids or v_given.has_unique_keys then
        -- Lock the stream's table before its row, which ids and unique keys refer to. A deletion of the stream locks the
        -- row first, so a publisher may be ended as a deadlock with it.
        execute format('lock table only %s in row exclusive mode', v_stream.relation);
    end if;
    if v_given.has_ids then
        lock table headrace_internal.message_ids in row exclusive mode;
    end if;
    if v_given.has_due then
        lock table headrace_internal.scheduled in row exclusive mode;
    end if;
    v_now := clock_timestamp();     -- after the locks: see headrace_internal.open_inserts
    if v_given.has_ids then
        -- Insert the ids in their order, so that two publishers of the same ids don't deadlock.
        with fresh as (
            insert into headrace_internal.message_ids as m (stream_id, message_id, published_at)
                select v_id, given.id, v_now + headrace_internal.replayable_time(given.id, v_stream.dedupe_window)
                from (select distinct unnest(v_given.ids)) as given(id)
                where given.id is not null order by given.id
                on conflict (stream_id, message_id) do update set published_at = excluded.published_at, seq = null
                    where m.published_at < v_now - v_stream.dedupe_window
                returning message_id
        )
        select array_agg(message_id) into v_fresh from fresh;
    end if;
    if v_given.has_unique_keys then
        v_taken := headrace_internal.take_unique_keys(v_stream, v_given.unique_keys, v_given.unique_while[1]);
    end if;
    if p_options is null then       -- as a role that may only insert into the stream's table
        select 0::bigint as later, p_keys as keys, p_data as data, p_headers as headers, null::text[] as ids, null::text[] as unique_keys into v_due;
    else
        with given as (
            select *, row_number() over (partition by id, unique_key order by place) as times
            from unnest(p_keys, p_data, p_headers, v_given.ids, v_given.due, v_given.unique_keys) with ordinality
                     as g(key, data, headers, id, due, unique_key, place)
        ), chosen as materialized (
            select * from given
            where id is null and unique_key is null
               or times = 1 and (id in (select unnest(v_fresh)) or unique_key in (select unnest(v_taken)))
        ), later as (
            insert into headrace_internal.scheduled (stream_id, deliver_at, key, data, headers, unique_key)
                select v_id, due, key, data, headers, unique_key from chosen where due > v_now order by place
                returning deliver_at, id, unique_key
        )
        select (select count(*) from later) as later, (select array_agg(unique_key) from later) as later_keys,
               (select array_agg(deliver_at) from later) as later_at, (select array_agg(id) from later) as later_ids,
               array_agg(key order by place) as keys, array_agg(data order by place) as data, array_agg(headers order by place) as headers,
               array_agg(id order by place) as ids, array_agg(unique_key order by place) as unique_keys
            into v_due from chosen where due is null or due <= v_now;
    end if;
    published := v_due.later;
    if v_given.has_unique_keys and v_due.later > 0 then
        perform headrace_internal.record_unique_keys(v_id, v_due.later_keys, null, v_due.later_at, v_due.later_ids);
    end if;
    if v_due.keys is not null then
        v_seqs := headrace_internal.append_recorded(
            v_stream, v_due.keys, v_due.data, v_due.headers, case when v_given.has_ids then v_due.ids end,
            case when v_given.has_unique_keys then v_due.unique_keys end);
        published := published + coalesce(cardinality(v_seqs), 0);
    end if;
    if cardinality(p_keys) = 1 then
        seq := v_seqs[1];
        if published > 0 then
            null;
        elsif v_given.has_ids then
            select m.seq into seq from headrace_internal.message_ids as m where m.stream_id = v_id and m.message_id = v_given.ids[1];
        elsif v_given.has_unique_keys then
            select last.seq into seq from headrace_internal.last_unique(v_id, v_given.unique_keys) as last;
        else    -- unchanged
            execute format('select seq from %s where key = $1', v_stream.relation) into seq using p_keys[1];
        end if;
    end if;
    perform headrace_internal.end_publish(v_id, false, published);
end $$;

-- Publish messages, and record their seqs with those of their ids and unique keys that they have, which are theirs. Returns
-- the seqs of those that were published, in their order.
create or replace function headrace_internal.append_recorded(
    p_stream headrace_internal.streams, p_keys text[], p_data json[], p_headers json[], p_message_ids text[], p_unique_keys text[]
) returns bigint[]
language plpgsql as $$
declare
    v_published  bigint[];
    v_seqs       bigint[];      -- with those of messages that `dedupe` found unchanged
begin
    if p_stream.one_message_per_key then
        v_published := headrace_internal.upsert_messages(p_stream, p_keys, p_data, p_headers);
        if p_message_ids is not null or p_unique_keys is not null then
            execute format('select array_agg(m.seq order by d.place) from unnest($1) with ordinality as d(key, place) join %s as m using (key)',
                           p_stream.relation) into v_seqs using p_keys;
        end if;
    else
        perform headrace_internal.check_together(p_keys, p_data, p_headers);
        execute format('with published as (insert into %s (key, data, headers) select * from unnest($1, $2, $3) returning seq)
                        select array_agg(seq order by seq) from published', p_stream.relation)
            into v_published using p_keys, p_data, p_headers;
        perform headrace_internal.end_checked();
        v_seqs := v_published;
    end if;
    if p_message_ids is not null then
        -- All of these ids have rows already. An update with a join would read all ids whenever the planner believes
        -- that the table is empty.
        insert into headrace_internal.message_ids (stream_id, message_id, published_at, seq)
            select p_stream.id, d.id, clock_timestamp(), d.seq from unnest(p_message_ids, v_seqs) as d(id, seq) where d.id is not null
            on conflict (stream_id, message_id) do update set seq = excluded.seq;
    end if;
    if p_unique_keys is not null then
        perform headrace_internal.record_unique_keys(p_stream.id, p_unique_keys, v_seqs, null, null);
    end if;
    return v_published;
end $$;

-- The time for which a message id is remembered longer than the stream's dedupe_window. Ids of webhooks whose
-- signatures have a time are remembered for as long as such a signature may be accepted: 5 minutes before and after its
-- time. Otherwise a delivery could be replayed after a shorter window. The id's published_at is later by this time.
create or replace function headrace_internal.replayable_time(p_message_id text, p_window interval) returns interval
language sql immutable parallel safe as $$
    select case when starts_with(p_message_id, 'headrace:timed-webhook:') then greatest(interval '10 minutes' - p_window, interval '0')
                else interval '0' end
$$;

-- one_message_per_key: move each key's row to a new seq, with the new payload. If a key occurs twice, the last
-- message is stored. A seq is drawn only after the key's row is locked, so that the later one of two publishers has
-- the larger seq. Rows are locked in the order of their keys, so that publishers don't deadlock.
-- Returns the seqs that were published, without the payloads that `dedupe` found unchanged.
create or replace function headrace_internal.upsert_messages(p_stream headrace_internal.streams, p_keys text[], p_data json[], p_headers json[]) returns bigint[]
language plpgsql as $$
declare
    v_held  record;
    v_due   record;
    v_seqs  bigint[];
begin
    execute format('lock table %s in row exclusive mode', p_stream.relation);   -- before any seq is drawn
    -- A message that may expire is published again although its payload is the same, since it lives from then on.
    execute format('select array_agg(key) as keys, max(seq) as largest,
                           array_agg(case when digest is not null and not headrace_internal.may_expire(array[headers]) then digest end) as digests
                    from (select seq, key, headers, digest from %s where key = any ($1) order by key for update) as held', p_stream.relation)
        into v_held using p_keys;
    select array_agg(key order by place) as keys, array_agg(data order by place) as data,
           array_agg(headers order by place) as headers, array_agg(digest order by place) as digests
        into v_due
        from (
            select *, case when p_stream.dedupe then sha256(convert_to(data::text, 'UTF8')) end as digest
            from (select *, row_number() over (partition by key order by place desc) as last
                  from unnest(p_keys, p_data, p_headers) with ordinality as g(key, data, headers, place)) as g
            where last = 1) as g
        where not p_stream.dedupe
           or not exists (select from unnest(v_held.keys, v_held.digests) as h(key, digest)
                          where h.key = g.key and h.digest = g.digest);
    if v_due.keys is null then
        return '{}';
    end if;
    perform headrace_internal.check_together(v_due.keys, v_due.data, v_due.headers);
    execute format($sql$
        with drawn as materialized (
            select *, nextval($5::regclass) as seq from unnest($1, $2, $3, $4) as d(key, data, headers, digest)
        ), moved as (
            update %1$s as m set seq = d.seq, created_at = clock_timestamp(), data = d.data,
                                 headers = d.headers, digest = d.digest
            from drawn as d where m.key = d.key
            returning m.key, m.seq
        ), added as (
            -- Another publisher may just have added the key, too; then this message comes after that.
            insert into %1$s as m (seq, key, data, headers, digest)
            select seq, key, data, headers, digest from drawn as d
            where not exists (select from moved where moved.key = d.key) order by key
            on conflict (key) do update
                set seq = nextval($5::regclass), created_at = clock_timestamp(), data = excluded.data,
                    headers = excluded.headers, digest = excluded.digest
            returning m.seq
        )
        select array_agg(seq order by seq) from (select seq from moved union all select seq from added) as s
        $sql$, p_stream.relation)
        into v_seqs using v_due.keys, v_due.data, v_due.headers, v_due.digests, p_stream.sequence;
    perform headrace_internal.end_checked();
    if v_seqs[1] < v_held.largest then      -- rows move to new seqs here, so the primary key may not reject a seq
                                            -- that was used before
        perform headrace_internal.raise_sequence_behind(p_stream.sequence, v_seqs[1], greatest(v_held.largest, headrace_internal.largest_seq(p_stream)));
    end if;
    return v_seqs;
end $$;
