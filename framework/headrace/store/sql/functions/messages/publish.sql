-- publish: append messages to a stream, inside the caller's own transaction.
--
--   select headrace.publish('orders', 'orders.us.42', '{"total": 12}');
--
-- A transaction gets its xid before it draws a seq. By then it also holds a row-exclusive lock on the stream's own
-- table (the parent of the segments), and it keeps the lock until it ends. The gap-aware cursor relies on both, see
-- holes.sql.

-- An INSERT is planned anew each time that it is executed as a text, which costs as much as forty of its rows. A
-- function has its plans at hand. So each stream has functions of its own that publish: NAME.publish for many messages, and
-- NAME.publish_one for one. Processes of the owner call them directly, see store/database/direct_statements.py. All others
-- call headrace.publish, which calls them by a text. A stream without them, as after a restore of its table alone, is
-- published to by headrace_internal.publish_messages itself.
--
-- Messages that the process has checked are published by NAME.publish_checked, or by NAME.publish_joined, whose texts are
-- joined by the character U+0001, which is in no key and no JSON. A search of 10 kB for a NUL takes 7 µs, a sixth of what it
-- takes to store them, and a driver takes longer to send 100 texts than one. Only a member of the owner can be believed, see
-- checks.sql.
--
-- They find the stream by its name and lock nothing, so they are right whatever becomes of it. Their plans take 70 kB each of
-- each connection for each stream that it publishes to, beside 60 kB that the tables take there. So what they have in
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
               format(a.body, p_stream.name, p_stream.relation, p_stream.name || '.publish', p_stream.name || '.publish_checked') as body
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
end $body$),
            (null, '.publish_joined', 'p_keys text, p_data text, p_headers text', $body$
begin
    return headrace_streams.%4$I(string_to_array(p_keys, E'\u0001'), string_to_array(p_data, E'\u0001')::json[],
                                 string_to_array(p_headers, E'\u0001', '')::json[]);
end $body$)) as a(one_message_per_key, suffix, arguments, body)
        where coalesce(a.one_message_per_key = p_stream.one_message_per_key, true)
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
    execute format('drop function if exists headrace_streams.%I(text, text, text)', p_stream.name || '.publish_joined');
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

-- Publish or schedule many messages. The arrays run in parallel.
-- p_message_ids: ids for deduplication, see headrace_internal.publish_or_schedule. p_deliver_at: when to publish a message, if
-- that is later.
-- Returns the number of messages that were published or scheduled.
-- Granted: publish
create or replace function headrace_internal.publish_messages(
    p_stream text, p_keys text[], p_data json[], p_headers json[] default null, p_message_ids text[] default null,
    p_deliver_at timestamptz[] default null
) returns bigint
language plpgsql as $$
declare
    v_appender  text;
    v_id        int;
    v_stream    headrace_internal.streams;
    v_count     bigint;
begin
    if p_message_ids is null and p_deliver_at is null then
        v_appender := headrace_internal.appender(p_stream, '.publish');
        if v_appender is not null then
            execute 'select ' || v_appender || '($1, $2, $3)' into v_count using p_keys, p_data, p_headers;
            return v_count;
        end if;
    end if;
    v_id := headrace_internal.begin_publish(p_stream, p_headers);
    v_stream := headrace_internal.require_stream(p_stream);
    if p_message_ids is not null or p_deliver_at is not null then
        select c.count into v_count from headrace_internal.publish_or_schedule(
            v_stream, p_keys, p_data, p_headers, p_message_ids, p_deliver_at) as c;
    elsif v_stream.one_message_per_key then
        v_count := cardinality(headrace_internal.upsert_messages(v_stream, p_keys, p_data, p_headers));
    else
        execute format('insert into %s (key, data, headers) select * from unnest($1, $2, $3)', v_stream.relation)
            using p_keys, p_data, p_headers;
        get diagnostics v_count = row_count;
    end if;
    return headrace_internal.end_publish(v_id, false, v_count);
end $$;

-- Publish one message. Returns its seq. If the message id was published before, returns the seq of that message.
-- Returns null if the message is scheduled for later.
-- Granted: publish
create or replace function headrace_internal.publish_message(
    p_stream text, p_key text, p_data json, p_headers json, p_message_id text, p_deliver_at timestamptz
) returns bigint
language plpgsql as $$
declare
    v_appender  text;
    v_id        int;
    v_stream    headrace_internal.streams;
    v_seq       bigint;
begin
    if p_message_id is null and p_deliver_at is null then
        v_appender := headrace_internal.appender(p_stream, '.publish_one');
        if v_appender is not null then
            execute 'select ' || v_appender || '($1, $2, $3)' into v_seq using p_key, p_data, p_headers;
            return v_seq;
        end if;
    end if;
    v_id := headrace_internal.begin_publish(p_stream, array[p_headers]);
    v_stream := headrace_internal.require_stream(p_stream);
    if p_message_id is not null or p_deliver_at is not null then
        select c.seqs[1] into v_seq from headrace_internal.publish_or_schedule(
            v_stream, array[p_key], array[p_data], array[p_headers], array[p_message_id], array[p_deliver_at]) as c;
        if v_seq is null then
            select seq into v_seq from headrace_internal.message_ids where stream_id = v_id and message_id = p_message_id;
        end if;
    elsif v_stream.one_message_per_key then
        v_seq := (headrace_internal.upsert_messages(v_stream, array[p_key], array[p_data], array[p_headers]))[1];
        if v_seq is null then       -- unchanged
            execute format('select seq from %s where key = $1', v_stream.relation) into v_seq using p_key;
        end if;
    else
        execute format('insert into %s (key, data, headers) values ($1, $2, $3) returning seq', v_stream.relation)
            into v_seq using p_key, p_data, p_headers;
    end if;
    return headrace_internal.end_publish(v_id, false, v_seq);
end $$;

create or replace function headrace_internal.require_stream_with_room(p_name text) returns headrace_internal.streams
language plpgsql stable as $$
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

-- Publish messages with ids, and schedule messages for later. An id that was published within the stream's
-- dedupe_window is not published again. If an id occurs twice in a call, the first message is published. `seqs`: the
-- seqs of the messages that were published now, in their order.
create or replace function headrace_internal.publish_or_schedule(
    p_stream headrace_internal.streams, p_keys text[], p_data json[], p_headers json[], p_message_ids text[], p_deliver_at timestamptz[],
    out count bigint, out seqs bigint[]
)
language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
    v_now    timestamptz;
    v_fresh  text[] := '{}';
    v_due    record;
begin
    if p_message_ids is not null then
        -- Lock the stream's table before its row, which the ids refer to. A deletion of the stream locks them in this
        -- order, too.
        execute format('lock table only %s in row exclusive mode', p_stream.relation);
        lock table headrace_internal.message_ids in row exclusive mode;
    end if;
    if p_deliver_at is not null then
        lock table headrace_internal.scheduled in row exclusive mode;
    end if;
    v_now := clock_timestamp();     -- after the locks: see headrace_internal.open_inserts
    if p_message_ids is not null then
        -- Insert the ids in their order, so that two publishers of the same ids don't deadlock.
        with fresh as (
            insert into headrace_internal.message_ids as m (stream_id, message_id, published_at)
                select p_stream.id, given.id, v_now + headrace_internal.replayable_time(given.id, p_stream.dedupe_window)
                from (select distinct unnest(p_message_ids)) as given(id)
                where given.id is not null order by given.id
                on conflict (stream_id, message_id) do update set published_at = excluded.published_at, seq = null
                    where m.published_at < v_now - p_stream.dedupe_window
                returning message_id
        )
        select coalesce(array_agg(message_id), '{}') into v_fresh from fresh;
    end if;
    with given as (
        select *, row_number() over (partition by id order by place) as times
        from unnest(p_keys, p_data, p_headers, p_message_ids, p_deliver_at) with ordinality as g(key, data, headers, id, due, place)
    ), chosen as (
        select * from given where id is null or times = 1 and id = any (v_fresh)
    ), later as (
        insert into headrace_internal.scheduled (stream_id, deliver_at, key, data, headers)
            select p_stream.id, due, key, data, headers from chosen where due > v_now order by place
            returning id
    )
    select (select pg_catalog.count(*) from later) as later, array_agg(key order by place) as keys, array_agg(data order by place) as data,
           array_agg(headers order by place) as headers, array_agg(id order by place) as ids
        into v_due from chosen where due is null or due <= v_now;
    count := v_due.later;
    if v_due.keys is null then
        return;
    elsif p_stream.one_message_per_key then
        seqs := headrace_internal.upsert_messages(p_stream, v_due.keys, v_due.data, v_due.headers);
        execute format('insert into headrace_internal.message_ids (stream_id, message_id, published_at, seq)
                            select $1, d.id, $4, m.seq from unnest($2, $3) as d(id, key) join %s as m using (key) where d.id is not null
                            on conflict (stream_id, message_id) do update set seq = excluded.seq', p_stream.relation)
            using p_stream.id, v_due.ids, v_due.keys, v_now;
    else
        seqs := headrace_internal.append_returning_seqs(p_stream, v_due.keys, v_due.data, v_due.headers);
        -- All of these ids have rows already. An update with a join would read all ids whenever the planner believes
        -- that the table is empty.
        insert into headrace_internal.message_ids (stream_id, message_id, published_at, seq)
            select p_stream.id, d.id, v_now, d.seq from unnest(v_due.ids, seqs) as d(id, seq) where d.id is not null
            on conflict (stream_id, message_id) do update set seq = excluded.seq;
    end if;
    count := count + cardinality(seqs);
end $$;

-- Append messages, and return their seqs in their order.
create or replace function headrace_internal.append_returning_seqs(
    p_stream headrace_internal.streams, p_keys text[], p_data json[], p_headers json[]
) returns bigint[]
language plpgsql as $$
declare
    v_seqs  bigint[];
begin
    perform headrace_internal.check_together(p_keys, p_data, p_headers);
    execute format('with published as (insert into %s (key, data, headers) select * from unnest($1, $2, $3) returning seq)
                    select array_agg(seq order by seq) from published', p_stream.relation)
        into v_seqs using p_keys, p_data, p_headers;
    perform headrace_internal.end_checked();
    return v_seqs;
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
            update %1$s as m set seq = d.seq, xid = pg_current_xact_id(), created_at = clock_timestamp(), data = d.data,
                                 headers = d.headers, digest = d.digest
            from drawn as d where m.key = d.key
            returning m.key, m.seq
        ), added as (
            -- Another publisher may just have added the key, too; then this message comes after that.
            insert into %1$s as m (seq, key, data, headers, digest)
            select seq, key, data, headers, digest from drawn as d
            where not exists (select from moved where moved.key = d.key) order by key
            on conflict (key) do update
                set seq = nextval($5::regclass), xid = pg_current_xact_id(), created_at = clock_timestamp(), data = excluded.data,
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
