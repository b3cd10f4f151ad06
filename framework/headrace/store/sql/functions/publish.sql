-- publish: append messages to a stream, inside the caller's own transaction.
--
--   select headrace.publish('orders', 'orders.us.42', '{"total": 12}');
--
-- A transaction gets its xid before it draws a seq. By then it also holds a row-exclusive lock on the stream's own
-- table (the parent of the segments), and it keeps the lock until it ends. The gap-aware cursor relies on both, see
-- holes.sql.

-- An INSERT is planned anew each time that it is executed as a text, which costs as much as forty of its rows. A
-- function has its plans at hand. So each stream of segments has two functions of its own, NAME.append for arrays and
-- NAME.append_one for a message. A stream without them, as after a restore of its table alone, is appended to by a text.
-- The plans take 44 kB of each connection for each stream that it publishes to, beside 60 kB that the tables take there.

-- Create or replace the functions that append to a stream, unless they are as they should be. They belong to the owner of
-- the schema, like the table.
create or replace function headrace_internal.create_appenders(p_stream headrace_internal.streams) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_appender  record;
begin
    for v_appender in
        select format('headrace_streams.%I', p_stream.name || a.suffix) as name, a.arguments, format(a.body, p_stream.relation) as body
        from (values
            ('.append', 'p_keys text[], p_data json[], p_headers json[]',
             'declare v_count bigint; v_together boolean; begin '
             'v_together := headrace_internal.check_together(p_keys, p_data, p_headers); '
             'insert into %s (key, data, headers) '
             'select pg_catalog.unnest(p_keys), pg_catalog.unnest(p_data), pg_catalog.unnest(p_headers); '
             'get diagnostics v_count = row_count; '
             'if v_together then v_together := headrace_internal.end_checked(); end if; '
             'return v_count; end'),
            ('.append_one', 'p_key text, p_data json, p_headers json',
             'declare v_seq bigint; begin '
             'insert into %s (key, data, headers) values (p_key, p_data, p_headers) returning seq into v_seq; '
             'return v_seq; end')) as a(suffix, arguments, body)
        where not p_stream.one_message_per_key
    loop
        if (select prosrc from pg_proc where oid = to_regproc(v_appender.name)) is distinct from v_appender.body then
            execute format('create or replace function %s(%s) returns bigint language plpgsql as %L',
                           v_appender.name, v_appender.arguments, v_appender.body);
        end if;
    end loop;
end $$;

-- Drop the functions that append to a stream.
create or replace function headrace_internal.drop_appenders(p_stream headrace_internal.streams) returns void
language plpgsql as $$
begin
    execute format('drop function if exists headrace_streams.%I(text[], json[], json[])', p_stream.name || '.append');
    execute format('drop function if exists headrace_streams.%I(text, json, json)', p_stream.name || '.append_one');
end $$;

-- The function that appends to a stream. Null if there is none, or if the caller may not execute it. p_suffix: `.append` or
-- `.append_one`. It is inlined where it is called.
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

-- Publish or schedule many messages. The arrays run in parallel.
-- p_message_ids: ids for deduplication, see headrace_internal.publish_or_schedule. p_deliver_at: when to publish a message, if
-- that is later.
-- Returns the number of messages that were published or scheduled.
create or replace function headrace_internal.publish_messages(
    p_stream text, p_keys text[], p_data json[], p_headers json[] default null, p_message_ids text[] default null,
    p_deliver_at timestamptz[] default null
) returns bigint
language plpgsql as $$
declare
    v_id         int;
    v_relation   text;
    v_sequence   text;
    v_drawn      bigint;
    v_full       boolean;
    v_per_key    boolean;
    v_xid        xid8;          -- assigning it is cheaper than PERFORM, which starts a statement
    v_appender   text;
    v_count      bigint;
begin
    select id, relation, sequence, drawn, full_until is not null, one_message_per_key
        into v_id, v_relation, v_sequence, v_drawn, v_full, v_per_key
        from headrace_internal.streams where name = p_stream;
    if v_id is null or v_full then
        perform headrace_internal.require_stream_with_room(p_stream);
    end if;
    if v_drawn > 0 and headrace_internal.seems_behind(v_sequence, v_drawn) then
        perform headrace_internal.require_sequence_ahead(headrace_internal.require_stream(p_stream), v_drawn);
    end if;
    if headrace_internal.may_expire(p_headers) then
        perform headrace_internal.check_expiry(p_headers);
    end if;
    v_xid := pg_current_xact_id();
    if p_message_ids is not null or p_deliver_at is not null then
        select c.count into v_count from headrace_internal.publish_or_schedule(
            headrace_internal.require_stream(p_stream), p_keys, p_data, p_headers, p_message_ids, p_deliver_at) as c;
    elsif v_per_key then
        v_count := cardinality(headrace_internal.upsert_messages(headrace_internal.require_stream(p_stream), p_keys, p_data, p_headers));
    else
        v_appender := headrace_internal.appender(p_stream, '.append');
        if v_appender is not null then
            execute 'select ' || v_appender || '($1, $2, $3)' into v_count using p_keys, p_data, p_headers;
        else
            execute format('insert into %s (key, data, headers) select * from unnest($1, $2, $3)', v_relation)
                using p_keys, p_data, p_headers;
            get diagnostics v_count = row_count;
        end if;
    end if;
    -- Read last, because a standby can't read an unlogged table, and its refusal to publish must come first.
    if (select until from headrace_internal.waits where stream_id = v_id order by until desc limit 1) > clock_timestamp() then
        perform headrace_internal.notify_stream(v_id);
    end if;
    return v_count;
end $$;

-- Publish one message. Returns its seq. If the message id was published before, returns the seq of that message.
-- Returns null if the message is scheduled for later.
create or replace function headrace_internal.publish_message(
    p_stream text, p_key text, p_data json, p_headers json, p_message_id text, p_deliver_at timestamptz
) returns bigint
language plpgsql as $$
declare
    v_id         int;
    v_relation   text;
    v_sequence   text;
    v_drawn      bigint;
    v_full       boolean;
    v_per_key    boolean;
    v_xid        xid8;          -- assigning it is cheaper than PERFORM, which starts a statement
    v_appender   text;
    v_seq        bigint;
begin
    select id, relation, sequence, drawn, full_until is not null, one_message_per_key
        into v_id, v_relation, v_sequence, v_drawn, v_full, v_per_key
        from headrace_internal.streams where name = p_stream;
    if v_id is null or v_full then
        perform headrace_internal.require_stream_with_room(p_stream);
    end if;
    if v_drawn > 0 and headrace_internal.seems_behind(v_sequence, v_drawn) then
        perform headrace_internal.require_sequence_ahead(headrace_internal.require_stream(p_stream), v_drawn);
    end if;
    if headrace_internal.may_expire(array[p_headers]) then
        perform headrace_internal.check_expiry(array[p_headers]);
    end if;
    v_xid := pg_current_xact_id();
    if p_message_id is not null or p_deliver_at is not null then
        select c.seqs[1] into v_seq from headrace_internal.publish_or_schedule(
            headrace_internal.require_stream(p_stream), array[p_key], array[p_data], array[p_headers], array[p_message_id],
            array[p_deliver_at]) as c;
        if v_seq is null then
            select seq into v_seq from headrace_internal.message_ids where stream_id = v_id and message_id = p_message_id;
        end if;
    elsif v_per_key then
        v_seq := (headrace_internal.upsert_messages(headrace_internal.require_stream(p_stream), array[p_key], array[p_data], array[p_headers]))[1];
        if v_seq is null then       -- unchanged
            execute format('select seq from %s where key = $1', v_relation) into v_seq using p_key;
        end if;
    else
        v_appender := headrace_internal.appender(p_stream, '.append_one');
        if v_appender is not null then
            execute 'select ' || v_appender || '($1, $2, $3)' into v_seq using p_key, p_data, p_headers;
        else
            execute format('insert into %s (key, data, headers) values ($1, $2, $3) returning seq', v_relation)
                into v_seq using p_key, p_data, p_headers;
        end if;
    end if;
    if (select until from headrace_internal.waits where stream_id = v_id order by until desc limit 1) > clock_timestamp() then
        perform headrace_internal.notify_stream(v_id);
    end if;
    return v_seq;
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
language plpgsql as $$
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
