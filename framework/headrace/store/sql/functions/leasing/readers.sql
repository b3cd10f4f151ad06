-- readers: the statement that reads fresh messages, and a function for each stream that keeps its plans.
--
-- A statement that names a segment is dynamic SQL elsewhere, and then it is parsed and planned at each call, which takes
-- longer than reading a hundred messages. So each stream has a function with such a statement for each of its
-- last segments. A session plans those that it uses. Calls that read an older segment, or find no such function, as after a
-- restore of the table alone, execute the statement as text.
--
-- The function only reads, and the caller says from which segment. So it is right whatever becomes of the segments, and may
-- be replaced at any time. Only one function is kept for each stream, since a session never frees the plans of one that
-- was dropped.

-- Messages as they are read for a lease call, in the order of seq.
create type headrace_internal.fresh_messages as (
    seqs bigint[], hashes bigint[],
    keys text[], data json[], headers json[], created_at timestamptz[],     -- null for those that the caller has cached
    whole  boolean      -- whether no payload is large. Large ones are left out, so that none is read
);

-- The largest size of a payload that is small: a message that fits a page as it is delivered is not moved to the TOAST table.
create or replace function headrace_internal.small_payload() returns bigint
language sql immutable as 'select 8192::bigint';

-- Return SQL for whether a payload is small. It is text, as headrace_internal.payload_bytes is.
create or replace function headrace_internal.has_small_payload() returns text
language sql immutable as $$
    select 'pg_column_size(data) + coalesce(pg_column_size(headers), 0) <= ' || headrace_internal.small_payload()::text
           || ' and pg_column_compression(data) is null and pg_column_compression(headers) is null'
$$;

-- Return the statement that reads messages. $1: this segment. $2: the seq above which to read. $3: the largest number of
-- messages. $4: the seqs that the caller has cached. Its result is one row of fresh_messages.
create or replace function headrace_internal.fresh_query(p_relation text) returns text
language sql immutable as $f$
    select $sql$
        select array_agg(seq), array_agg(hash), array_agg(case when not known then key end), array_agg(case when small and not known then data end),
               array_agg(case when small and not known then headers end), array_agg(case when not known then created_at end),
               coalesce(bool_and(small or known), true)
        from (select seq, key, data, headers, created_at, hashtextextended(key, 0) as hash, coalesce(seq <@ $4, false) as known,
                     $sql$ || headrace_internal.has_small_payload() || ' as small from ' || p_relation || ' where seq > $2 order by seq limit $3) as m'
$f$;

-- The name of the function that reads a stream.
create or replace function headrace_internal.reader_name(p_stream int) returns text
language sql immutable as $$
    select 'headrace_streams."read.' || p_stream::text || '"'
$$;

-- Create or replace the function that reads a stream's last segments, unless it is as it should be. It belongs to the owner
-- of the schema, like the table.
create or replace function headrace_internal.create_reader(p_stream int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    c_segments  constant int := 8;      -- mostly four are created ahead
    v_name      constant text := headrace_internal.reader_name(p_stream);
    v_body      text;
begin
    select format(E'begin\n%s    end if;\n    return null;\nend ', string_agg(
               format(E'    %s $1 = %L then\n    return (select row(m.*)::headrace_internal.fresh_messages from (%s) as m);\n',
                      case when place = 1 then 'if' else 'elsif' end, relation, headrace_internal.fresh_query(relation)), '' order by place))
        into v_body
        from (select relation, row_number() over (order by lower desc) as place from headrace_internal.segments
              where stream_id = p_stream order by lower desc limit c_segments) as l having count(*) > 0;
    if (select prosrc from pg_proc where oid = to_regproc(v_name)) is distinct from v_body then
        execute format('create or replace function %s(text, bigint, int, int8multirange) returns headrace_internal.fresh_messages
                        language plpgsql as %L', v_name, v_body);
    end if;
end $$;

-- Drop the function that reads a stream.
create or replace function headrace_internal.drop_reader(p_stream int) returns void
language plpgsql as $$
begin
    execute format('drop function if exists %s(text, bigint, int, int8multirange)', headrace_internal.reader_name(p_stream));
end $$;

-- The streams that exist already.
do $$
begin
    perform headrace_internal.create_reader(id) from headrace_internal.streams where not one_message_per_key;
end $$;

-- Read fresh messages from a segment. The parameters: see headrace_internal.fresh_query. p_reader: the function of the
-- stream, null if there is none.
create or replace function headrace_internal.read_fresh(
    p_reader regproc, p_relation text, p_position bigint, p_limit int, p_cached int8multirange
) returns headrace_internal.fresh_messages
language plpgsql as $$
declare
    v_read  headrace_internal.fresh_messages;
begin
    if has_function_privilege(p_reader, 'execute') then
        execute format('select * from %s($1, $2, $3, $4)', p_reader) into v_read using p_relation, p_position, p_limit, p_cached;
    end if;
    if v_read.whole is null then
        execute headrace_internal.fresh_query(p_relation) into v_read using p_relation, p_position, p_limit, p_cached;
    end if;
    return v_read;
end $$;
