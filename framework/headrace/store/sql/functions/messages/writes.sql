-- writes: publish the rows that several tasks have staged, in one transaction, exactly once.
--
-- A task that is retried, or that runs twice at a time, writes its rows twice, so tasks do not publish. Each attempt
-- of a task puts its rows into the write's staging table, under a random id of its own, by COPY and in transactions
-- of any length. When all tasks are done, the caller that knows which attempts count commits these, and no others. In
-- one transaction the rows of all of them become messages, and the number of the batch is recorded. So a batch is
-- published as a whole or not at all, and once, even if its rows were split into tasks differently the second time.
--
-- The staging table is unlogged, because COPY into it costs half, and its rows need not survive. After a crash of the
-- server it is empty. Then there are fewer rows than the attempts report, and the commit is refused.
--
-- The staged rows are not attached to the stream as a segment. Each would need its seq while it is staged, and one that is
-- drawn holds up the readers of all later messages until the commit. They would also have to be logged then. The insert of
-- the commit takes as long as a COPY of the rows, by one process: 2.4 µs a row of 200 bytes on a machine of two cores, where
-- all of a warm Spark's write takes 5, and Spark alone takes 1.3 to pass the rows to Python. A staging table without its
-- index is filled in 0.6 instead of 1.1 µs of processor time, and the commit, which must sort then, loses as much.
--
-- A write may have several streams. It has a row and a staging table for each, and one commit publishes them.
--
-- Locks are taken in this order: the id of a write with several streams, the stream's table, the row of the write, the
-- staging table. The row's lock serializes the creation, emptying and dropping of the staging table. Tasks that fill it
-- take only COPY's own lock on it.

-- Return the staging table for a batch of a write, and create it if necessary. Null if that batch is committed
-- already, so that nothing needs to be staged.
-- p_streaming: whether it is one of many batches. Then the write is remembered for good, otherwise for some days.
create or replace function headrace_internal.stage_write(
    p_stream text, p_write text, p_batch bigint default 0, p_streaming boolean default false
) returns text
language plpgsql as $$
declare
    v_stream  headrace_internal.streams;
    v_write   headrace_internal.writes;
begin
    perform headrace_internal.require_read_committed('headrace_internal.stage_write');
    v_stream := headrace_internal.require_stream(p_stream);
    if octet_length(p_write) not between 1 and 512 then
        raise exception using errcode = 'HR004', message = 'The id of a write has 1 to 512 bytes.';
    end if;
    select * into v_write from headrace_internal.writes where stream_id = v_stream.id and write_id = p_write;
    if v_write.batch >= p_batch then
        return null;
    end if;
    perform headrace_internal.require_stream_with_room(p_stream);     -- if the stream is full, raise before the rows are sent
    -- If other tasks have come before, a task takes no lock here, and touched_at already keeps the janitor away.
    if to_regclass(v_write.staging) is not null and v_write.touched_at > clock_timestamp() - interval '1 hour' then
        return v_write.staging;
    end if;
    insert into headrace_internal.writes (stream_id, write_id, streaming) values (v_stream.id, p_write, p_streaming) on conflict do nothing;
    select * into strict v_write from headrace_internal.writes where stream_id = v_stream.id and write_id = p_write for update;
    if v_write.batch >= p_batch then
        return null;
    elsif to_regclass(v_write.staging) is null then      -- also if a backup was restored without that schema
        v_write.staging := headrace_internal.create_staging(v_stream, p_write);
    end if;
    update headrace_internal.writes set staging = v_write.staging, streaming = p_streaming, touched_at = clock_timestamp()
        where stream_id = v_stream.id and write_id = p_write;
    return v_write.staging;
end $$;

-- Create a staging table with the constraints of the stream, so an invalid row is refused while the task that sends
-- it still knows which row it is.
--
-- COPY tests the constraint for thousands of rows, so its text may be long. An expression accepts what nearly all rows are,
-- without a call of headrace_streams.is_message for each: small, without headers, and a key of printable ASCII characters
-- without wildcards. A scan of 100,000 rows of 200 bytes took 1.2 µs a row with the call, and 0.8 µs with the expression.
-- It takes none for a task that has tested the same and then calls headrace_internal.trust_staging.
create or replace function headrace_internal.create_staging(p_stream headrace_internal.streams, p_write text) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    c_usual    constant text := $usual$headers is null and pg_column_size(data) <= 700000
                    and strpos(data::text, E'\\u0000') = 0 and octet_length(key) <= 1024
                    and key ~ E'^[!-)+,/-=?-~-]+(\\.[!-)+,/-=?-~-]+)*$'$usual$;
    v_name     text := p_stream.id || '.' || md5(p_write);
    v_staging  text := format('headrace_staging.%I', v_name);
    v_check    record;
begin
    execute format('create unlogged table %s (attempt uuid not null, place bigint not null, key text collate "C" not null,
                                              data json not null, headers json)', v_staging);
    for v_check in
        select conname, case when conname = 'valid_message'
                             then format('check (headrace_streams.are_checked() or %s or headrace_streams.is_message(key, data, headers))', c_usual)
                             else pg_get_constraintdef(oid) end as definition
        from pg_constraint
        where conrelid = p_stream.relation::regclass and contype = 'c'
    loop
        execute format('alter table %s add constraint %I %s', v_staging, v_check.conname, v_check.definition);
    end loop;
    -- Values that the stream would compress are compressed here, by the tasks, and then copied as they are.
    if exists (select from pg_attribute where attrelid = p_stream.relation::regclass and attname = 'data' and attcompression = 'l') then
        execute format('alter table %s alter column data set compression lz4', v_staging);
    else
        execute format('alter table %s alter column data set storage external', v_staging);
    end if;
    -- Read each attempt's rows in their order, without sorting them.
    execute format('create index %I on %s (attempt, place)', v_name || '.place', v_staging);
    return v_staging;
end $$;

-- Publish what these attempts have staged: [{"partition": 0, "attempt": "uuid", "rows": 123}], in the order of the
-- partitions, and of the places within them. With one_message_per_key the last row of a key counts, and they are
-- published in the order of their keys. Returns the number of messages published, or 0 if the batch was committed
-- before. All or nothing. A caller that lost the response may call again.
create or replace function headrace_internal.commit_write(p_stream text, p_write text, p_batch bigint, p_parts json) returns bigint
language plpgsql as $$
declare
    v_stream  headrace_internal.streams;
    v_write   headrace_internal.writes;
    v_count   bigint;
begin
    perform headrace_internal.require_read_committed('headrace_internal.commit_write');
    v_stream := headrace_internal.require_stream(p_stream);
    select * into v_write from headrace_internal.writes where stream_id = v_stream.id and write_id = p_write;
    if v_write.batch >= p_batch then
        return 0;
    end if;
    v_stream := headrace_internal.require_stream_with_room(p_stream);
    if v_stream.drawn > 0 and headrace_internal.seems_behind(v_stream.sequence, v_stream.drawn) then
        perform headrace_internal.require_sequence_ahead(v_stream, v_stream.drawn);
    end if;
    perform pg_current_xact_id();
    execute format('lock table %s in row exclusive mode', v_stream.relation);
    select * into v_write from headrace_internal.writes where stream_id = v_stream.id and write_id = p_write for update;
    if v_write.batch >= p_batch then
        return 0;
    elsif to_regclass(v_write.staging) is null then
        perform headrace_internal.require_all_parts(p_stream, p_write, (select sum(rows)::bigint from json_to_recordset(p_parts) as p(rows bigint)), 0);
        return 0;       -- there was nothing to stage
    elsif v_stream.one_message_per_key then
        v_count := headrace_internal.upsert_staged(v_stream, v_write, p_parts);
    else
        v_count := headrace_internal.append_staged(v_stream, v_write, p_parts);
    end if;
    update headrace_internal.writes set batch = p_batch, messages = messages + v_count, touched_at = clock_timestamp()
        where stream_id = v_stream.id and write_id = p_write;
    perform headrace_internal.clear_staging(v_stream.id, p_write);
    perform headrace_internal.notify_stream(v_stream.id);
    return v_count;
end $$;

-- Publish what attempts have staged in several streams, in one transaction: the parts of commit_write, each with the name
-- of its stream as "stream". All or nothing. Returns the number of messages published, or 0 if the batch was committed
-- before in any stream. A batch that runs again may name other streams than the first time, so commits of the write wait
-- for each other at a lock of its id. The streams are locked in the order of their names.
create or replace function headrace_internal.commit_writes(p_write text, p_batch bigint, p_parts json) returns bigint
language plpgsql as $$
declare
    v_stream  record;
    v_count   bigint := 0;
begin
    perform headrace_internal.require_read_committed('headrace_internal.commit_writes');
    perform pg_advisory_xact_lock(1212498514, hashtext(p_write));
    if exists (select from headrace_internal.writes where write_id = p_write and batch >= p_batch) then
        perform headrace_internal.abort_writes(p_write, p_batch);
        return 0;
    end if;
    for v_stream in
        select p.part ->> 'stream' as name, json_agg(p.part) as parts from json_array_elements(p_parts) as p(part)
        group by 1 order by 1
    loop
        v_count := v_count + headrace_internal.commit_write(v_stream.name, p_write, p_batch, v_stream.parts);
    end loop;
    return v_count;
end $$;

-- Publish what these attempts have staged for the only batch of a write, and forget the write. For a caller that settles
-- messages in the same transaction: then no repetition needs to be recognized, since its acks can't be made again.
-- Granted: publish
create or replace function headrace_internal.publish_staged(p_stream text, p_write text, p_parts json) returns bigint
language plpgsql as $$
declare
    v_stream  headrace_internal.streams := headrace_internal.require_stream(p_stream);
    v_count   bigint := headrace_internal.commit_write(p_stream, p_write, 0, p_parts);
begin
    -- A table that another session uses is left to the janitor, which finds it by the record.
    delete from headrace_internal.writes where stream_id = v_stream.id and write_id = p_write and staging is null;
    return v_count;
end $$;

create or replace function headrace_internal.require_all_parts(p_stream text, p_write text, p_wanted bigint, p_found bigint) returns void
language plpgsql as $$
begin
    if p_wanted is distinct from p_found and p_wanted > 0 then
        raise exception using errcode = 'HR009', message = format(
            'Of the %s rows that the write %L to the stream %L has staged %s are there, perhaps since the database server crashed meanwhile: nothing was published, write them again.',
            p_wanted, p_write, p_stream, p_found);
    end if;
end $$;

-- The staging table has checked its rows already.
create or replace function headrace_internal.append_staged(p_stream headrace_internal.streams, p_write headrace_internal.writes, p_parts json) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
    v_part   record;
    v_rows   bigint;
    v_count  bigint := 0;
begin
    perform headrace_internal.trust_staging();
    for v_part in
        select p.attempt, p.rows from json_to_recordset(p_parts) as p(partition int, attempt uuid, rows bigint)
        where p.rows > 0 order by p.partition
    loop
        execute format('insert into %s (key, data, headers) select key, data, headers from %s where attempt = $1 order by place',
                       p_stream.relation, p_write.staging) using v_part.attempt;
        get diagnostics v_rows = row_count;
        perform headrace_internal.require_all_parts(p_stream.name, p_write.write_id, v_part.rows, v_rows);
        v_count := v_count + v_rows;
    end loop;
    perform headrace_internal.end_checked();
    return v_count;
end $$;

-- Publish the staged rows in pieces, since headrace_internal.upsert_messages takes arrays. The existing rows are locked first, and all of
-- it goes in the order of the keys, so that two such writes don't deadlock.
create or replace function headrace_internal.upsert_staged(p_stream headrace_internal.streams, p_write headrace_internal.writes, p_parts json) returns bigint
language plpgsql as $$
declare
    c_messages  constant int := 5000;
    c_bytes     constant bigint := 4000000;
    v_part      record;
    v_message   record;
    v_keys      text[] := '{}';
    v_data      json[] := '{}';
    v_headers   json[] := '{}';
    v_bytes     bigint := 0;
    v_count     bigint := 0;
begin
    for v_part in
        execute format('select p.rows, (select count(*) from %s as s where s.attempt = p.attempt) as found
                        from json_to_recordset($1) as p(attempt uuid, rows bigint)', p_write.staging) using p_parts
    loop
        perform headrace_internal.require_all_parts(p_stream.name, p_write.write_id, v_part.rows, v_part.found);
    end loop;
    execute format('with locked as materialized (
                        select from %s where key in (
                            select s.key from %s as s join json_to_recordset($1) as p(attempt uuid) using (attempt))
                        order by key for update)
                    select count(*) from locked', p_stream.relation, p_write.staging) into v_count using p_parts;
    v_count := 0;
    for v_message in
        execute format('select distinct on (s.key) s.key, s.data, s.headers, octet_length(s.data::text) as bytes
                        from %s as s join json_to_recordset($1) as p(partition int, attempt uuid) using (attempt)
                        order by s.key, p.partition desc, s.place desc', p_write.staging) using p_parts
    loop
        v_keys := array_append(v_keys, v_message.key);
        v_data := array_append(v_data, v_message.data);
        v_headers := array_append(v_headers, v_message.headers);
        v_bytes := v_bytes + v_message.bytes;
        if cardinality(v_keys) >= c_messages or v_bytes >= c_bytes then
            v_count := v_count + cardinality(headrace_internal.upsert_messages(p_stream, v_keys, v_data, v_headers));
            v_keys := '{}';
            v_data := '{}';
            v_headers := '{}';
            v_bytes := 0;
        end if;
    end loop;
    if v_keys <> '{}' then
        v_count := v_count + cardinality(headrace_internal.upsert_messages(p_stream, v_keys, v_data, v_headers));
    end if;
    return v_count;
end $$;

-- Delete what is staged for a batch that won't be committed. A write that has committed nothing is deleted as a
-- whole.
-- Granted: publish
create or replace function headrace_internal.abort_write(p_stream text, p_write text, p_batch bigint) returns void
language plpgsql as $$
declare
    v_stream  headrace_internal.streams;
begin
    perform headrace_internal.require_read_committed('headrace_internal.abort_write');
    select * into v_stream from headrace_internal.streams where name = p_stream;
    perform from headrace_internal.writes where stream_id = v_stream.id and write_id = p_write and batch < p_batch for update;
    if found then
        perform headrace_internal.clear_staging(v_stream.id, p_write);
        delete from headrace_internal.writes where stream_id = v_stream.id and write_id = p_write and batch = -1 and staging is null;
    end if;
end $$;

-- Delete what is staged in any stream for a batch of a write that won't be committed.
create or replace function headrace_internal.abort_writes(p_write text, p_batch bigint) returns void
language plpgsql as $$
declare
    v_stream  text;
begin
    for v_stream in
        select s.name from headrace_internal.writes as w join headrace_internal.streams as s on s.id = w.stream_id
        where w.write_id = p_write order by s.name
    loop
        perform headrace_internal.abort_write(v_stream, p_write, p_batch);
    end loop;
end $$;

-- Empty the staging table of a write, or drop it if no further batch is to come. The caller has locked the write's
-- row. A task that still fills the table is not waited for, since its result is no longer needed. Then the rows that
-- exist by now are deleted, and a table that should be dropped is left to the janitor.
create or replace function headrace_internal.clear_staging(p_stream int, p_write text, p_drop boolean default false) returns void
language plpgsql as $$
declare
    c_large  constant bigint := 8000000;    -- bytes. Below that, rows are deleted, which does not change the catalog,
                                            -- since there may be many batches a second
    v_write  headrace_internal.writes;
begin
    select * into v_write from headrace_internal.writes where stream_id = p_stream and write_id = p_write;
    if to_regclass(v_write.staging) is null then
        update headrace_internal.writes set staging = null where stream_id = p_stream and write_id = p_write and staging is not null;
        return;
    elsif v_write.streaming and not p_drop and pg_total_relation_size(v_write.staging::regclass) < c_large then
        execute format('delete from %s', v_write.staging);
        return;
    end if;
    execute format('lock table %s in access exclusive mode nowait', v_write.staging);
    if v_write.streaming and not p_drop then
        execute format('truncate %s', v_write.staging);
    else
        execute format('drop table %s', v_write.staging);
        update headrace_internal.writes set staging = null where stream_id = p_stream and write_id = p_write;
    end if;
exception when lock_not_available then
    execute format('delete from %s', v_write.staging);
end $$;

-- Drop the staging tables of writes that were not touched for a day, and of single writes that are committed. Delete
-- the records of single writes, after a day if nothing was committed, otherwise after a week. Returns the number of
-- tables and rows. Rows that another session has locked are left for the next call, and another user's tables to that
-- user.
-- Granted: all
create or replace function headrace_internal.clean_up_writes(p_now timestamptz default clock_timestamp()) returns int
language plpgsql as $$
declare
    c_tables  constant int := 100;      -- each of them takes some locks until the end
    c_rows    constant int := 10000;
    v_write   headrace_internal.writes;
    v_rows    int;
    v_count   int := 0;
begin
    perform headrace_internal.require_read_committed('headrace_internal.clean_up_writes');
    for v_write in
        select * from headrace_internal.writes
        where staging is not null and (touched_at < p_now - interval '1 day' or batch >= 0 and not streaming)
          and pg_has_role((select relowner from pg_class where oid = to_regclass(staging)), 'usage') is not false
        limit c_tables for update skip locked
    loop
        perform headrace_internal.clear_staging(v_write.stream_id, v_write.write_id, true);
        v_count := v_count + 1;
    end loop;
    delete from headrace_internal.writes as w using (
            select stream_id, write_id from headrace_internal.writes
            where staging is null and not streaming
              and touched_at < p_now - case when batch < 0 then interval '1 day' else interval '7 days' end
            limit c_rows for update skip locked) as old
        where w.stream_id = old.stream_id and w.write_id = old.write_id;
    get diagnostics v_rows = row_count;
    return v_count + v_rows;
end $$;
